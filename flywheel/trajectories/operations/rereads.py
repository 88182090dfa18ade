"""Reading stored spans again by what the dialects know today.

What a page shows of a step is read when it is shown. What lists, filters and sums use was read when the span arrived:
its kind, model, tool, tokens and cost, and what it said of the whole (agent, session, title, tags, …). After an upgrade
that reads more, this brings those columns up to date; after a change of prices, the costs that were derived from them.
It may stop anywhere, and be done again.

Of a trajectory's own columns, only what its spans said is taken back and read anew. What came with parts that are no
spans (imported steps, feedback) is kept as it was said.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from flywheel.accounts.models import Project
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Event, Feedback, Source, Step, Trajectory
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
_COMPARED = (*claims.COMPARED, "agent_id", "version_id")


@dataclass(slots=True)
class Progress:
    done: int = 0
    changed: int = 0
    at: int = 0
    """Key of the last trajectory that was read."""


def reread(project: Project, after: int = 0) -> Iterator[Progress]:
    """Read the trajectories of a project from that key on, a few at a time; yields between them, where it may stop."""
    progress = Progress(at=after)
    every = Trajectory.objects.filter(project=project)
    while True:
        further = every.filter(pk__gt=progress.at).order_by("pk")
        keys = list(further.values_list("pk", flat=True)[:TRAJECTORIES_AT_ONCE])
        if not keys:
            return
        for key in keys:
            progress.done += 1
            progress.changed += read_again(project, key)
            progress.at = key
        yield progress


def read_again(project: Project, key: int) -> bool:
    """Read one trajectory again. Returns whether anything reads differently now."""
    with transaction.atomic():
        row = Trajectory.objects.select_for_update(no_key=True).filter(project=project, pk=key).first()
        if row is None or not row.steps.filter(is_span=True).exists():
            return False
        said: list[Said] = []
        names: set[str] = set()
        moved = _steps(row, said, names)
        before = {name: getattr(row, name) for name in _COMPARED}
        beside_it = {"project": project, "trace_id": row.trace_id}
        said += attachments.said_of(list(Feedback.objects.filter(**beside_it)), {row.trace_id: row})
        said += [attachments.said_of_event(each) for each in Event.objects.filter(**beside_it)]
        _take_back(row, names)
        claims.merge(row, said)
        if moved:
            running_totals.add_again(row, [], [])
        agent_resolution.resolve(project, [row])
        changed = moved or any(getattr(row, name) != value for name, value in before.items())
        if changed:
            trajectory_rows.update_trajectories([row])
            # Detectors read what is new to them.
            Trajectory.objects.filter(pk=key).update(detected_at=None)
    return changed


def _steps(row: Trajectory, said: list[Said], names: set[str]) -> bool:
    """Read its spans, write those columns that differ, and collect what they say of the whole.

    A reader knows resources by their identity, so it lives no longer than the spans that it reads.
    """
    moved, at = False, -1
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
        derived_costs.derive(row.project, {row.trace_id: row}, {row.trace_id: arrivals})
        changed = [step for step, arrival in zip(found, arrivals, strict=True) if _differs(step, arrival)]
        Step.objects.bulk_update(changed, COLUMNS)
        moved = moved or bool(changed)
        at = found[-1].position
    return moved


def _differs(step: Step, arrival: Arrival) -> bool:
    """Whether the span reads differently from the step's columns, which are then set."""
    new = {name: getattr(arrival, name) for name in COLUMNS} | {"priced_by": arrival.priced_by or None}
    if all(getattr(step, name) == value for name, value in new.items()):
        return False
    for name, value in new.items():
        setattr(step, name, value)
    return True


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
