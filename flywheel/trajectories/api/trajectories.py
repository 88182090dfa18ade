"""Trajectories for programs: list, one with its steps, import, and the ledger of what arrived."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from django.db.models import Prefetch
from django.http import HttpRequest
from ninja import Field, Query, Router
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Number, page_of, paginate
from flywheel.edge.refusals import Unreadable, one
from flywheel.edge.schemas import Schema
from flywheel.trajectories.api.schemas import FeedbackOut
from flywheel.trajectories.detail import transcript
from flywheel.trajectories.formats.files.file_limits import TooMuch
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.import_export import trajectory_export, trajectory_import
from flywheel.trajectories.import_export.trajectory_import import bounds_of_waiting, import_file, kept_aside
from flywheel.trajectories.ingest.admission import Busy
from flywheel.trajectories.models import Batch, Feedback, Step, Trajectory
from flywheel.trajectories.operations.deletion import delete
from flywheel.trajectories.search.query import parse
from flywheel.trajectories.search.walk_limit import limited
from flywheel.trajectories.store.rows.trajectory_rows import home_of
from flywheel.trajectories.store.stored_traces import complete, step_of

router = Router(tags=["trajectories"])

STEPS_MAX = 1000


class SearchQuery(ListQuery):
    q: str = ""
    """A filter, as in the filter bar."""


class ExportQuery(Schema):
    format: str = "atif"
    """`atif`, `otlp`, `openai`, `openai-bare` for messages and tools only, or `csv` for spreadsheets."""
    q: str = ""
    """A filter, as for `GET /trajectories`."""
    id: list[str] = []
    """Trace ids in place of `q`."""
    cols: list[str] = []
    """Attributes to include, for example `attr.app.release`: as columns of a CSV table, as `metadata.attributes`, or as
    ATIF's `extra.attributes`."""


class StepsQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    """Position of the first step, counted from 0."""
    limit: int = Field(STEPS_MAX, ge=1, le=STEPS_MAX)
    """Steps per page."""


class TrajectoryOut(Schema):
    trace_id: str
    source: str
    """`production`, `import` or `rollout`."""
    agent: str
    version: Number | None
    """Number of the version, if the trajectory belongs to a known version."""
    version_label: str
    """Version as the sender reports it."""
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
    """`success` or `failed`; null if nobody reported it."""
    feedback_count: int
    """Current feedback."""
    tags: list[str]
    proposed_bucket: str
    """Category of the strongest undecided proposal; empty if there is none."""
    proposed_score: float | None
    label: str
    """`failure` or `pass`; empty if nobody has decided."""
    label_bucket: str
    """Category that people chose; empty if there is none."""

    @staticmethod
    def resolve_agent(row: Trajectory) -> str:
        return row.agent.name if row.agent else row.agent_name


class AnsweredByOut(Schema):
    version: str
    """`agent@3`."""
    digest: str
    """SHA-256 of the version's content."""


class StepOut(Schema):
    span_id: str
    parent_id: str
    """Span id of the parent; empty for none."""
    position: int
    """Place in the trajectory, counted from 0."""
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
    priced_by: str
    """The price that the cost was derived from: `version:KEY`, `table:ID` or `list:MODEL@DATE`; empty if the cost was
    reported."""
    answered_by: AnsweredByOut | None
    """The version that answered a call through the gateway. Senders cannot report it."""
    sampling: dict[str, Any]
    """Data for training on exactly what was sampled: token ids, log-probabilities, masks, parameters."""
    raw: dict[str, Any]
    """The step as it was sent."""


class TrajectoryWithSteps(TrajectoryOut):
    tools: list[dict[str, Any]]
    interventions: list[dict[str, Any]]
    answered_by: list[AnsweredByOut]
    """Versions that answered its calls through the gateway; `version` is what the sender reports."""
    metadata: dict[str, Any]
    attributes: list[str]
    """Attributes that have no field of their own, as `key=value`; `attr.key:value` finds them."""
    feedback: list[FeedbackOut]
    """Current feedback, newest first, at most 100."""
    steps: list[StepOut]
    next_step: int | None
    """`start` of the next page of steps; null on the last page."""

    @staticmethod
    def resolve_attributes(row: Any) -> list[str]:
        return sent_attributes.sent(row.attributes)

    @staticmethod
    def resolve_feedback(row: Any) -> list[Feedback]:
        return transcript.feedback_of(row)

    @staticmethod
    def resolve_steps(row: Any) -> list[dict[str, Any]]:
        complete(row.window, [row])
        return [{"position": step.position, **_step(step)} for step in row.window]

    @staticmethod
    def resolve_next_step(row: Any) -> int | None:
        following = row.window[-1].position + 1 if row.window else row.step_count
        return following if following < row.step_count else None


class Problem(Schema):
    at: str
    """Place in the request or file."""
    reason: str


class ImportOut(Schema):
    trajectories: int
    formats: dict[str, int]
    """Number of trajectories by detected format."""
    notes: int
    """Scores and comments, which became feedback."""
    received: int
    """Steps that were read: `inserted`, `updated`, `duplicate` and `rejected` together."""
    inserted: int
    updated: int
    duplicate: int
    rejected: int
    problems: list[Problem]


class DeletedOut(Schema):
    steps: int
    """Number of deleted steps."""


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


@router.get("/trajectories", response=page_of(TrajectoryOut), auth=Key(Scope.READ))
def list_trajectories(request: HttpRequest, query: Query[SearchQuery]) -> dict[str, Any]:
    """List trajectories, newest first, filtered by `q`. A filter that would have to read too many trajectories to
    find its matches is refused with 400."""
    wanted = parse(query.q)
    if wanted.problems:
        raise Unreadable(" ".join(wanted.problems))
    project = keyed(request).project
    every = Trajectory.objects.filter(project=project)
    rows = every.select_related("agent", "version").defer("claims", "metadata", "attributes", "tools", "interventions")
    with limited(wanted):
        return paginate(wanted.apply(every, project.pk), query, keys=("started_at", "id"), read=rows.in_bulk)


@router.get("/trajectories/export", auth=Key(Scope.READ), response={200: Any})
def export_trajectories(request: HttpRequest, asked: Query[ExportQuery]) -> Any:
    """Export the trajectories that match `q`, or those with the given ids, as JSON Lines in ATIF, OTLP JSON or
    OpenAI chat format, or as CSV. Importing the JSON Lines gives the same trajectories. 400 if the selection cannot
    be read."""
    return trajectory_export.answer(keyed(request), format=asked.format, q=asked.q, ids=asked.id, columns=asked.cols)


@router.get("/trajectories/{trace_id}", response=TrajectoryWithSteps, auth=Key(Scope.READ))
def get_trajectory(request: HttpRequest, trace_id: str, asked: Query[StepsQuery]) -> Trajectory:
    """Return one trajectory with its steps in order: at most 1000, from position `start` on."""
    wanted = Step.objects.filter(position__gte=asked.start, position__lt=asked.start + asked.limit)
    rows = Trajectory.objects.select_related("agent", "version").prefetch_related(
        Prefetch("steps", queryset=wanted.order_by("position"), to_attr="window")
    )
    project = keyed(request).project
    return one(rows.filter(project=project), trace_id=home_of(project.pk, trace_id))


@router.delete("/trajectories/{trace_id}", response=DeletedOut, auth=Key(Scope.ADMIN))
def delete_trajectory(request: HttpRequest, trace_id: str, reason: str = "") -> dict[str, int]:
    """Delete the trajectory permanently, including every copy of its content. Tasks, datasets and scores made from
    it are kept."""
    asked = keyed(request)
    row = one(Trajectory.objects.filter(project=asked.project), trace_id=home_of(asked.project.pk, trace_id))
    return {"steps": delete(trajectory=row, actor=asked.actor, reason=reason[:1000])}


@router.post("/trajectories", response=ImportOut, auth=Key(Scope.INGEST))
def import_trajectories(request: HttpRequest, format: str = "auto", mapping: str = "") -> dict[str, Any]:
    """Import the file in the request body: JSON Lines, JSON, an Inspect archive, Parquet or CSV. Valid parts are
    stored; the response lists the others. For a table, `mapping` assigns the columns, as JSON: `{"input": "question",
    "output": "answer"}`.

    One request reads up to 50,000 lines, rows or samples and runs for up to 30 s. A file with more returns 413 with
    what was stored. 503 means that too many imports are running: send it again."""
    asked = keyed(request)
    try:
        with kept_aside(request) as file, trajectory_import.door.admit():
            report = import_file(
                asked.project, file, format=format, mapping=mapping or None, key=asked.key, bounds=bounds_of_waiting()
            )
    except TooMuch as error:
        raise HttpError(413, f"{error}. {_ELSEWHERE}") from None
    except Busy:
        raise HttpError(503, "too many files are being imported; send it again") from None
    except FormatError as error:
        raise HttpError(400, str(error)) from None
    told = {name: getattr(report, name) for name in ("trajectories", "formats", "notes", "problems")}
    return {**told, **report.steps}


_ELSEWHERE = (
    "Send the rest in parts; or the whole file on the page Import a file, where a worker reads it, or with "
    "manage.py import_trajectories: what is in is not stored twice."
)


@router.get("/batches", response=page_of(BatchOut), auth=Key(Scope.READ))
def list_batches(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List what became of each request and import (the ledger), newest first."""
    return paginate(Batch.objects.filter(project=keyed(request).project), query)


def _step(row: Step) -> dict[str, Any]:
    step = step_of(row)
    said = {name: [message.to_json() for message in getattr(step, name)] for name in ("input", "output")}
    return {item.name: getattr(step, item.name) for item in fields(step)} | said | {"answered_by": row.answerer}
