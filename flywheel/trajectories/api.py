"""Trajectories for programs: list, one with its steps, import, and the ledger of what arrived."""

from datetime import datetime
from typing import Any, cast

from django.core.exceptions import RequestDataTooBig
from django.db.models import Prefetch
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import Key, KeyRequest
from flywheel.accounts.models import Scope
from flywheel.paging import BadCursor, keyset
from flywheel.trajectories import query
from flywheel.trajectories.formats import FormatError
from flywheel.trajectories.importing import import_lines
from flywheel.trajectories.models import Batch, Step, Trajectory

router = Router(tags=["trajectories"])

LIST_MAX = 200
STEPS_MAX = 1000


class ListQuery(Schema):
    limit: int = Field(50, ge=1, le=LIST_MAX)
    cursor: str = ""


class SearchQuery(ListQuery):
    q: str = ""
    """The filter bar's language."""


class StepsQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    limit: int = Field(STEPS_MAX, ge=1, le=STEPS_MAX)


class TrajectoryOut(Schema):
    trace_id: str
    source: str
    agent: str
    version: int | None
    """The version's number, when the trajectory is of a version that this project knows."""
    version_label: str
    session_id: str
    user_id: str
    environment: str
    title: str
    started_at: datetime
    ended_at: datetime | None
    received_at: datetime
    latency_ms: float | None
    step_count: int
    error_count: int
    tool_names: list[str]
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    outcome: str | None
    tags: list[str]
    proposed_bucket: str
    proposed_score: float | None
    label: str
    label_bucket: str

    @staticmethod
    def resolve_agent(row: Trajectory) -> str:
        return row.agent.name if row.agent else row.agent_name

    @staticmethod
    def resolve_version(row: Trajectory) -> int | None:
        return row.version.number if row.version else None


class TrajectoryPage(Schema):
    items: list[TrajectoryOut]
    next: str | None


class StepOut(Schema):
    span_id: str
    parent_id: str
    position: int
    kind: str
    name: str
    status: str
    error: str
    started_at: datetime | None
    ended_at: datetime | None
    model: str
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    tool_name: str
    tool_call_id: str
    arguments: Any
    result: Any
    finish_reason: str
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    cost_usd: float | None
    raw: dict[str, Any]


class TrajectoryWithSteps(TrajectoryOut):
    tools: list[dict[str, Any]]
    interventions: list[dict[str, Any]]
    metadata: dict[str, Any]
    steps: list[StepOut]
    next_step: int | None
    """`start` of the next page of steps, or null."""

    @staticmethod
    def resolve_steps(row: Any) -> list[Step]:
        return list(row.window)

    @staticmethod
    def resolve_next_step(row: Any) -> int | None:
        following = row.window[-1].position + 1 if row.window else row.step_count
        return following if following < row.step_count else None


class Problem(Schema):
    at: str
    reason: str


class ImportOut(Schema):
    trajectories: int
    formats: dict[str, int]
    received: int
    inserted: int
    updated: int
    duplicate: int
    rejected: int
    problems: list[Problem]


class BatchOut(Schema):
    id: int
    format: str
    sha256: str
    received_at: datetime
    trajectories: int
    received: int
    inserted: int
    updated: int
    duplicate: int
    rejected: int
    problems: list[Problem]


class BatchPage(Schema):
    items: list[BatchOut]
    next: str | None


@router.get("/trajectories", response=TrajectoryPage, auth=Key(Scope.READ), operation_id="list_trajectories")
def list_trajectories(request: HttpRequest, asked: Query[SearchQuery]) -> dict[str, Any]:
    """Newest first, filtered by `q`."""
    found = query.parse(asked.q)
    if found.problems:
        raise HttpError(400, " ".join(found.problems))
    rows = found.apply(Trajectory.objects.filter(project=_key(request).project)).select_related("agent", "version")
    return _page(rows.defer("said", "metadata", "tools", "interventions"), asked, ("started_at", "id"))


@router.get(
    "/trajectories/{trace_id}", response=TrajectoryWithSteps, auth=Key(Scope.READ), operation_id="get_trajectory"
)
def get_trajectory(request: HttpRequest, trace_id: str, asked: Query[StepsQuery]) -> Trajectory:
    """One trajectory with its steps in order, at most 1000 of them from position `start` on."""
    wanted = Step.objects.filter(position__gte=asked.start, position__lt=asked.start + asked.limit)
    rows = Trajectory.objects.select_related("agent", "version").prefetch_related(
        Prefetch("steps", queryset=wanted.order_by("position"), to_attr="window")
    )
    row = rows.filter(project=_key(request).project, trace_id=trace_id).first()
    if row is None:
        raise HttpError(404, f"there is no trajectory {trace_id[:64]!r}")
    return row


@router.post("/trajectories", response=ImportOut, auth=Key(Scope.INGEST), operation_id="import_trajectories")
def import_trajectories(request: HttpRequest, format: str = "auto") -> dict[str, Any]:
    """JSON Lines as the body. Good lines are kept; the answer names the others."""
    try:
        lines = request.body.splitlines(keepends=True)
    except RequestDataTooBig:
        raise HttpError(413, "the body is too large; send the file in parts") from None
    try:
        report = import_lines(_key(request).project, lines, format=format, key=_key(request).key)
    except FormatError as error:
        raise HttpError(400, str(error)) from None
    return {
        "trajectories": report.trajectories,
        "formats": report.formats,
        **report.steps,
        "problems": report.problems,
    }


@router.get("/batches", response=BatchPage, auth=Key(Scope.READ), operation_id="list_batches")
def list_batches(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """The ledger: what each request or import came to, newest first."""
    return _page(Batch.objects.filter(project=_key(request).project), asked, ("id",))


def _key(request: HttpRequest) -> KeyRequest:
    """The request as `Key` has left it."""
    return cast(KeyRequest, request)


def _page(rows: Any, asked: ListQuery, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit, keys=keys)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}
