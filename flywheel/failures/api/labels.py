"""Failures for programs: what is proposed and decided, a decision, its undo."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Unreadable, check_choice, one
from flywheel.edge.schemas import Body, Schema
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.labels.decisions import LATEST, decide, undo
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import home_of

router = Router(tags=["failures"])


class FailureOut(Schema):
    id: int
    trace_id: str = Field(alias="trajectory.trace_id")
    decision: str
    """`confirmed`, `changed`, `added` or `rejected`."""
    bucket: str
    """Key of the category; empty if nothing is wrong."""
    step: str
    """Span id of the failing step; empty for the whole trajectory."""
    corrected: dict[str, Any] | None
    """What should have happened, as in `POST /trajectories/{trace_id}/failures`."""
    note: str
    labelled_by: Ref
    labelled_at: datetime
    current: bool
    """Whether this decision counts now."""
    taken_back_at: datetime | None


class ProposalOut(Schema):
    detector: str
    bucket: str
    step: str
    score: float
    """The detector's confidence, from 0 to 1."""
    evidence: str


class LabelsOut(Schema):
    proposals: list[ProposalOut]
    decisions: list[FailureOut]
    """Newest first; the one that is `current` counts."""


class FailureQuery(ListQuery):
    bucket: str = ""
    """Key of a category."""
    decision: str = ""
    """`confirmed`, `changed`, `added` or `rejected`."""
    current: bool = True
    """Leave out decisions that were superseded or taken back."""


class LabelIn(Body):
    bucket: str = ""
    """Key of the category; empty if nothing is wrong."""
    step: str = ""
    """Span id of the failing step; empty for the whole trajectory."""
    corrected: dict[str, Any] | None = None
    """What should have happened, as one of: `{"tool": name, "arguments": {…}}`; `{"calls": [call, call, …], "order":
    "given"}` (two or more, or order `"any"`); `{"text": answer}`; `{"refuse": text}`; `{"ask": text}`; `{"avoid":
    [tool, …], "text": text}` (no call of these tools; for an empty list, no call at all). In the last three, an empty
    text accepts any words."""
    note: str = ""
    seen: int | None = None
    """Id of the decision that you saw, 0 for none: 409 if someone has decided since. Omit it to skip this check."""


class UndoIn(Body):
    seen: int | None = None
    """Id of the decision that you saw: 409 if someone has decided since. Omit it to skip this check."""


@router.get("/failures", response=page_of(FailureOut), auth=Key(Scope.READ))
def list_failures(request: HttpRequest, query: Query[FailureQuery]) -> dict[str, Any]:
    """List people's decisions, newest first. A `rejected` decision means that nothing is wrong."""
    rows = Failure.objects.filter(project=keyed(request).project).select_related("trajectory", "labelled_by")
    if query.current:
        rows = rows.filter(current=True)
    if query.bucket:
        check_choice(query.bucket, every(keyed(request).project), field="bucket", error=Unreadable)
        rows = rows.filter(bucket=query.bucket)
    if query.decision:
        check_choice(query.decision, Decision.values, field="decision", error=Unreadable)
        rows = rows.filter(decision=query.decision)
    return paginate(rows, query)


@router.get("/trajectories/{trace_id}/failures", response=LabelsOut, auth=Key(Scope.READ))
def get_labels(request: HttpRequest, trace_id: str) -> dict[str, Any]:
    """Return a trajectory's proposals and decisions."""
    row = _trajectory(request, trace_id)
    return {"proposals": row.proposals.all(), "decisions": row.failures.select_related("trajectory", "labelled_by")}


@router.post("/trajectories/{trace_id}/failures", response={201: FailureOut}, auth=Key(Scope.REVIEW))
def label_trajectory(request: HttpRequest, trace_id: str, wanted: LabelIn) -> Status[Failure]:
    """Record a decision about a trajectory. It replaces the current decision; sending the same one twice records it
    once. 409 if the current decision is not the one in `seen`."""
    failure = decide(
        trajectory=_trajectory(request, trace_id),
        actor=keyed(request).actor,
        **wanted.dict(exclude={"seen"}),
        seen=LATEST if wanted.seen is None else wanted.seen,
    )
    return Status(201, failure)


@router.post("/trajectories/{trace_id}/failures/undo", response=LabelsOut, auth=Key(Scope.REVIEW))
def undo_label(request: HttpRequest, trace_id: str, wanted: UndoIn) -> dict[str, Any]:
    """Take back the current decision; the one before it counts again. 409 if the current decision is not the one in
    `seen`."""
    row = _trajectory(request, trace_id)
    undo(trajectory=row, actor=keyed(request).actor, seen=LATEST if wanted.seen is None else wanted.seen)
    return get_labels(request, trace_id)


def _trajectory(request: HttpRequest, trace_id: str) -> Trajectory:
    project = keyed(request).project
    return one(Trajectory.objects.filter(project=project), trace_id=home_of(project.pk, trace_id))
