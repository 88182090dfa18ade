"""Reading stored spans again by what the dialects know today.

What a page shows of a step is read when it is shown. What lists, filters and sums use was read when the span arrived:
its kind, model, tool, tokens and cost, and what it said of the whole (agent, session, title, tags, …). After an upgrade
that reads more, this brings those columns up to date; after a change of prices, the costs that were derived from them.
It may stop anywhere, and be done again.

Of a trajectory's own columns, only what its spans said is taken back and read anew. What came with parts that are no
spans (imported steps, feedback) is kept as it was said.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.accounts.project_settings import model_prices
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Event, Feedback, Reread, Source, Step, Trajectory
from flywheel.trajectories.store import attachments
from flywheel.trajectories.store.aggregates import agent_resolution, claims, derived_costs, running_totals
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival, Reader, Said
from flywheel.trajectories.store.rows import trajectory_rows
from flywheel.trajectories.store.rows.blobs import restore

TRAJECTORIES_AT_ONCE = 50
STEPS_AT_ONCE = 500
COLUMNS = (
    "kind", "name", "status", "error", "model", "tool_name", "tool_call_id", "finish_reason", "tokens_in", "tokens_out",
    "tokens_cached", "cost_usd", "priced_by",
)  # fmt: skip
"""Of a step, what is read out of its span."""
_PRICED = {"cost_usd", "priced_by"}
"""What a change of prices changes: no detector reads it."""
_COMPARED = (*claims.COMPARED, "agent_id", "version_id")


Read = Callable[[Project, int, model_prices.Table], bool]
"""Reads one trajectory again. Returns whether anything reads differently now."""


@dataclass(slots=True)
class Progress:
    done: int = 0
    changed: int = 0
    at: int = 0
    """Key of the last trajectory that was read."""


def latest(project: Project, *, is_of_costs: bool = False) -> Reread | None:
    """The last time that somebody asked for it."""
    return Reread.objects.filter(project=project, is_of_costs=is_of_costs).order_by("-pk").first()


def start(project: Project, actor: Actor, key: uuid.UUID, *, is_of_costs: bool = False) -> Reread:
    """Let a worker read every stored span again, or derive every cost again, once for each key; the job that is under
    way, where there is one."""
    running = latest(project, is_of_costs=is_of_costs)
    if running is not None and not running.is_finished:
        return running
    entry = "trajectories.derive_costs" if is_of_costs else "trajectories.reread"
    about = {"subject": "every derived cost" if is_of_costs else "every stored span"}
    job, _ = Reread.submit(key=key, actor=actor, entry=entry, about=about, project=project, is_of_costs=is_of_costs)
    return job


def read_again(project: Project, key: int, table: model_prices.Table | None = None) -> bool:
    """Read one trajectory again, by these prices or the project's. Returns whether anything reads differently now."""
    with transaction.atomic():
        row = Trajectory.objects.select_for_update(no_key=True).filter(project=project, pk=key).first()
        if row is None or not row.steps.filter(is_span=True).exists():
            return False
        said: list[Said] = []
        names: set[str] = set()
        moved = _steps(row, said, names, table)
        before = {name: getattr(row, name) for name in _COMPARED}
        beside_it = {"project": project, "trace_id": row.trace_id}
        said += attachments.said_of(list(Feedback.objects.filter(**beside_it)), {row.trace_id: row})
        said += [attachments.said_of_event(each) for each in Event.objects.filter(**beside_it)]
        _take_back(row, names)
        claims.merge(row, said)
        if moved:
            running_totals.add_again(row, [], [])
        agent_resolution.resolve(project, [row])
        is_other = any(getattr(row, name) != value for name, value in before.items())
        if moved or is_other:
            trajectory_rows.update_trajectories([row])
        if moved:
            running_totals.settle_again(row)
        if is_other or moved - _PRICED:
            # Detectors read what is new to them.
            Trajectory.objects.filter(pk=key).update(detected_at=None)
    return is_other or bool(moved)


def reread(project: Project, after: int = 0, read: Read = read_again) -> Iterator[Progress]:
    """Read the trajectories of a project from that key on, a few at a time, by the prices of its beginning; yields
    between them, where it may stop."""
    progress = Progress(at=after)
    table = model_prices.table_of(project.pk)
    every = Trajectory.objects.filter(project=project)
    while True:
        further = every.filter(pk__gt=progress.at).order_by("pk")
        keys = list(further.values_list("pk", flat=True)[:TRAJECTORIES_AT_ONCE])
        if not keys:
            return
        for key in keys:
            progress.done += 1
            progress.changed += read(project, key, table)
            progress.at = key
        yield progress


def _steps(row: Trajectory, said: list[Said], names: set[str], table: model_prices.Table | None) -> set[str]:
    """Read its spans, write those columns that differ, and collect what they say of the whole. Returns those columns.

    A reader knows resources by their identity, so it lives no longer than the spans that it reads.
    """
    moved: set[str] = set()
    at = -1
    spans: QuerySet[Step] = row.steps.filter(is_span=True).select_related("trajectory").order_by("position")
    while found := list(spans.filter(position__gt=at)[:STEPS_AT_ONCE]):
        restore(found)
        reader = Reader()
        arrivals: list[Arrival] = []
        for step in found:
            ids = {"trace_id": row.trace_id, "span_id": step.span_id, "parent_id": step.parent_id}
            arrival, spoken = reader.span(otlp_traces.from_json(step.body, **ids))
            said.append(spoken)
            names.add(step.span_id)
            arrivals.append(arrival)
        derived_costs.derive(row.project, {row.trace_id: row}, {row.trace_id: arrivals}, table)
        differing = [(step, _differing(step, arrival)) for step, arrival in zip(found, arrivals, strict=True)]
        Step.objects.bulk_update([step for step, columns in differing if columns], COLUMNS)
        moved = moved.union(*(columns for _, columns in differing))
        at = found[-1].position
    return moved


def _differing(step: Step, arrival: Arrival) -> set[str]:
    """The columns of the step that read differently by the span, which are then set."""
    new = {name: getattr(arrival, name) for name in COLUMNS} | {"priced_by": arrival.priced_by or None}
    columns = {name for name, value in new.items() if getattr(step, name) != value}
    for name in columns:
        setattr(step, name, new[name])
    return columns


def _take_back(row: Trajectory, names: set[str]) -> None:
    """Forget what these spans said of the whole."""

    def is_theirs(key: Any) -> bool:
        return isinstance(key, list) and len(key) == 3 and key[2] in names

    said = dict(row.claims)
    for name in (*claims.FIRST, "title", "outcome", claims.JUDGED):
        if name in said and is_theirs(said[name][0]):
            del said[name]
    if "versions" in said:
        said["versions"] = {agent: each for agent, each in said["versions"].items() if not is_theirs(each[0])}
    keys: dict[str, Any] = said.get("metadata", {})
    theirs = {name for name, key in keys.items() if is_theirs(key)}
    if keys:
        said["metadata"] = {name: key for name, key in keys.items() if name not in theirs}
    row.metadata = {name: value for name, value in row.metadata.items() if name not in theirs}
    row.claims = said
    if row.source == Source.PRODUCTION and not row.steps.filter(is_span=False).exists():
        row.tags, row.attributes, row.tool_names, row.tools, row.interventions = [], [], [], [], []
