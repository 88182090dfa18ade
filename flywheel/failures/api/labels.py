"""Failures for programs: what is proposed and decided, a decision, its undo."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.labels.decisions import LATEST, BadLabel, Superseded, decide, undo
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Trajectory

router = Router(tags=["failures"])


class FailureOut(Schema):
    id: int
    trace_id: str
    decision: str
    bucket: str
    step: str
    corrected: dict[str, Any] | None
    note: str
    labelled_by: str
    labelled_at: datetime
    current: bool
    taken_back_at: datetime | None

    @staticmethod
    def resolve_trace_id(row: Failure) -> str:
        return row.trajectory.trace_id

    @staticmethod
    def resolve_labelled_by(row: Failure) -> str:
        return row.labelled_by.username


class FailurePage(Schema):
    items: list[FailureOut]
    next: str | None


class ProposalOut(Schema):
    detector: str
    bucket: str
    step: str
    score: float
    evidence: str


class LabelsOut(Schema):
    proposals: list[ProposalOut]
    decisions: list[FailureOut]
    """The newest first; the one that is `current` counts."""


class FailureQuery(Schema):
    bucket: str = ""
    decision: str = ""
    current: bool = True
    """Leave out decisions that were superseded or taken back."""
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class LabelIn(Body):
    bucket: str = ""
    """Empty: nothing is wrong with this trajectory."""
    step: str = ""
    """Span id of the failing step."""
    corrected: dict[str, Any] | None = None
    """What should have happened: `{"tool": name, "arguments": {…}}` or `{"text": answer}`."""
    note: str = ""
    seen: int | None = None
    """The id of the decision that you saw, 0 for none: 409 when somebody decided since. Left out, it is not checked."""


class UndoIn(Body):
    seen: int | None = None


@router.get("/failures", response=FailurePage, auth=Key(Scope.READ), operation_id="list_failures")
def list_failures(request: HttpRequest, asked: Query[FailureQuery]) -> dict[str, Any]:
    """Decisions of people, newest first. `rejected` ones say that nothing is wrong."""
    rows = Failure.objects.filter(project=keyed(request).project).select_related("trajectory", "labelled_by")
    if asked.current:
        rows = rows.filter(current=True)
    if asked.bucket:
        if asked.bucket not in (buckets := every(keyed(request).project)):
            raise HttpError(400, f"bucket: {asked.bucket!r} is unknown, one of {', '.join(buckets)} is wanted")
        rows = rows.filter(bucket=asked.bucket)
    if asked.decision:
        if asked.decision not in Decision.values:
            known = ", ".join(Decision.values)
            raise HttpError(400, f"decision: {asked.decision!r} is unknown, one of {known} is wanted")
        rows = rows.filter(decision=asked.decision)
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


@router.get("/trajectories/{trace_id}/failures", response=LabelsOut, auth=Key(Scope.READ), operation_id="get_labels")
def get_labels(request: HttpRequest, trace_id: str) -> dict[str, Any]:
    """What is proposed for a trajectory and what was decided."""
    row = _trajectory(request, trace_id)
    return {
        "proposals": list(row.proposals.all()),
        "decisions": list(row.failures.select_related("trajectory", "labelled_by")),
    }


@router.post(
    "/trajectories/{trace_id}/failures",
    response={201: FailureOut},
    auth=Key(Scope.REVIEW),
    operation_id="label_trajectory",
)
def label_trajectory(request: HttpRequest, trace_id: str, wanted: LabelIn) -> Status[Failure]:
    """Decide about a trajectory. The decision supersedes the one that stood; the same one twice is one."""
    try:
        failure = decide(
            trajectory=_trajectory(request, trace_id),
            actor=keyed(request).actor,
            bucket=wanted.bucket,
            step=wanted.step,
            corrected=wanted.corrected,
            note=wanted.note,
            seen=LATEST if wanted.seen is None else wanted.seen,
        )
    except BadLabel as error:
        raise HttpError(422, str(error)) from None
    except Superseded as error:
        raise HttpError(409, f"{error}; yours is not saved") from None
    return Status(201, failure)


@router.post(
    "/trajectories/{trace_id}/failures/undo",
    response=LabelsOut,
    auth=Key(Scope.REVIEW),
    operation_id="undo_label",
)
def undo_label(request: HttpRequest, trace_id: str, wanted: UndoIn) -> dict[str, Any]:
    """Take back the decision that counts; the one before it counts again."""
    row = _trajectory(request, trace_id)
    try:
        undo(
            trajectory=row,
            actor=keyed(request).actor,
            seen=LATEST if wanted.seen is None else wanted.seen,
        )
    except Superseded as error:
        raise HttpError(409, f"{error}; nothing was taken back") from None
    return get_labels(request, trace_id)


def _trajectory(request: HttpRequest, trace_id: str) -> Trajectory:
    row = Trajectory.objects.filter(project=keyed(request).project, trace_id=trace_id).first()
    if row is None:
        raise HttpError(404, f"there is no trajectory {trace_id[:64]!r}")
    return row
