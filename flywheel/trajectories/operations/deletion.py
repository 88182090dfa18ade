"""Deleting trajectories for good: every row and value that holds what they said, and nothing that is another's.

What a person has made of a trajectory (tasks, datasets, scores of evals) is theirs and stays; `held_by` says what that
is before anything is deleted. What arrives of a deleted trajectory later is a new one.
"""

import base64
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet, TextField
from django.db.models.functions import Cast

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Project
from flywheel.agents.models import Agent, ShadowCopy
from flywheel.agents.splits import met_units
from flywheel.system.sql import bound
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import (
    Batch,
    Blob,
    Body,
    Event,
    Feedback,
    ModelCall,
    Quarantined,
    Source,
    Step,
    Trajectory,
)
from flywheel.trajectories.search import known_values
from flywheel.trajectories.store.aggregates.agent_resolution import IS_SEEN
from flywheel.trajectories.store.arrivals.incoming_steps import Reader

REMOVED = "removed with its trajectory"
SHOWN = 20
_SKEW = timedelta(minutes=5)
"""Between the clock of the one who stored it and of the one who asks."""


@dataclass
class Made:
    """Tasks, datasets and the eval result that people made of a trajectory. They stay."""

    tasks: list[Any] = field(default_factory=list)
    datasets: list[Any] = field(default_factory=list)
    result: Any = None
    """Of the eval whose rollout it is."""


@dataclass
class Holdings(Made):
    """Where the content of a trajectory is, beside its own row."""

    steps: int = 0
    values: int = 0
    """Large values that its steps point at."""
    bodies: int = 0
    shared: int = 0
    """How many other trajectories the raw requests hold too."""
    quarantined: int = 0
    feedback: int = 0
    events: int = 0
    comments: int = 0
    decisions: int = 0
    proposals: int = 0


def held_by(row: Trajectory) -> Holdings:
    """Count the data that goes with the trajectory, and list what stays although it was made of it."""
    bodies = list(_bodies([row]).values_list("trace_ids", flat=True))
    beside = {"project": row.project_id, "trace_id": row.trace_id}
    return Holdings(
        steps=row.steps.count(),
        values=len(_digests([row.pk])),
        bodies=len(bodies),
        shared=len({name for names in bodies for name in names} - {row.trace_id}),
        quarantined=_quarantined([row]).count(),
        feedback=Feedback.objects.filter(**beside).count(),
        events=Event.objects.filter(**beside).count(),
        comments=row.comments.count(),
        decisions=row.failures.count(),
        proposals=row.proposals.count(),
        **vars(made_of(row)),
    )


def made_of(row: Trajectory) -> Made:
    """Return its tasks, and the datasets that hold one of them to train on, have it as a demonstration or, for a
    rollout, were made of its eval."""
    tasks, result = _tasks([row]).select_related("environment").distinct().order_by("pk"), getattr(row, "result", None)
    found = list(tasks[:SHOWN])
    learnt = Q(recipe__from_traces__contains=row.trace_id)
    if found:
        learnt |= Q(task_set__in=row.project.task_sets.filter(members__task__in=tasks, members__split="train"))
    if result is not None:
        learnt |= Q(recipe__eval_run=result.run_id)
    return Made(found, list(row.project.datasets.filter(learnt).order_by("pk")[:SHOWN]), result)


def _tasks(rows: Sequence[Trajectory]) -> QuerySet[Any]:
    """Made of them, or of another trajectory that asks the very same."""
    return rows[0].tasks.model._default_manager.filter(Q(source__in=rows) | Q(also__trajectory__in=rows))


def _results() -> QuerySet[Any]:
    """Return the results of evals, in a room to the right."""
    model: Any = Trajectory._meta.get_field("result").related_model
    results: QuerySet[Any] = model._default_manager.all()
    return results


def delete(*, trajectory: Trajectory, actor: Actor, reason: str = "") -> int:
    """Delete it and everything that holds what it said. Returns how many steps it had, 0 when it was gone already."""
    gone = delete_all(project=trajectory.project, keys=[trajectory.pk], actor=actor, reason=reason)
    return gone.get(trajectory.pk, 0)


@transaction.atomic
def delete_all(*, project: Project, keys: Collection[int], actor: Actor, reason: str = "") -> dict[int, int]:
    """Delete these of the project's trajectories, all or none. Returns how many steps each had, by its key; those that
    were gone already are left out."""
    # In the order in which ingest locks, so that neither waits for the other for ever.
    rows = list(Trajectory.objects.select_for_update().filter(project=project, pk__in=keys).order_by("trace_id"))
    if not rows:
        return {}
    steps, told = _audit_facts(rows)
    rejected = _quarantined(rows)
    _scrub_ledger(project, rows, rejected)
    # A request names only the trajectories of which it brought something that was stored.
    Body.objects.filter(project=project, sha256__in=list(rejected.values_list("batch__sha256", flat=True))).delete()
    rejected.delete()
    erase(project, rows)
    for agent in sorted({row.agent_id for row in rows if row.agent_id}):
        forget_agent(agent)
    common: dict[str, Any] = {"project": project, "actor": actor.user, "reason": reason, "through": actor.through}
    AuditEntry.objects.bulk_create(
        AuditEntry(
            action="trajectories.delete", subject=f"trajectory {row.trace_id}"[:200], data=told[row.pk], **common
        )
        for row in rows
    )
    transaction.on_commit(known_values.forget)
    return steps


def _audit_facts(rows: Sequence[Trajectory]) -> tuple[dict[int, int], dict[int, dict[str, Any]]]:
    """Return the number of steps of each, and the facts for the audit log."""
    keys = [row.pk for row in rows]
    counted = Step.objects.filter(trajectory__in=keys).order_by().values_list("trajectory").annotate(n=Count("pk"))
    steps = dict.fromkeys(keys, 0) | dict(counted)
    requests = Counter(name for names in _bodies(rows).values_list("trace_ids", flat=True) for name in set(names))
    used = {key for pair in _tasks(rows).values_list("source", "also__trajectory") for key in pair}
    used |= set(_results().filter(trajectory__in=keys).values_list("trajectory", flat=True))
    told = {}
    for row in rows:
        made = made_of(row) if row.pk in used else Made()
        told[row.pk] = {
            "steps": steps[row.pk],
            "requests": requests[row.trace_id],
            "tasks_kept": [str(task) for task in made.tasks],
            "datasets_kept": [str(found) for found in made.datasets],
        }
    return steps, told


def erase(project: Project, rows: Sequence[Trajectory], *, is_judged: bool = True) -> None:
    """Delete locked trajectories with their steps, values, raw requests, events and feedback, in a transaction. Not
    `is_judged`: no judge ever saw them."""
    keys, names = [row.pk for row in rows], _trace_ids(rows)
    copies = ShadowCopy.objects.filter(split__agent__project=project, trace_id__in=names)
    answers = Trajectory.objects.filter(
        project=project, source=Source.SHADOW, trace_id__in=list(copies.values_list("copy_trace_id", flat=True))
    )
    if found := list(answers.exclude(pk__in=keys).select_for_update(no_key=True)):  # they hold the same conversation
        erase(project, found, is_judged=False)
    digests = _digests(keys)
    _bodies(rows).delete()
    Quarantined.objects.filter(project=project, trace_id__in=names).delete()
    Feedback.objects.filter(project=project, trace_id__in=names).delete()
    Event.objects.filter(project=project, trace_id__in=names).delete()
    if is_judged:  # A memory of what judges said of attempts may hold their words; whoever needs it asks again.
        project.judge_memories.all().delete()
    # The score of an eval stands without its rollout.
    _results().filter(trajectory__in=keys).update(trajectory=None)
    Step.objects.filter(trajectory__in=keys)._raw_delete(connection.alias)
    Trajectory.objects.filter(pk__in=keys).delete()
    sessions = {row.session_id for row in rows} - {""}
    kept = Trajectory.objects.filter(project=project, session_id__in=sessions).values_list("session_id", flat=True)
    met_units.forget(project.pk, trace_ids=names, sessions=sorted(sessions - set(kept)))
    _sweep_values(project, digests)


def _digests(keys: Sequence[int]) -> list[str]:
    """Return the digests of the large values that these trajectories' steps point at."""
    held = "SELECT DISTINCT unnest(blobs) FROM trajectories_step WHERE trajectory_id = ANY(%s) AND blobs IS NOT NULL"
    return sorted(digest for (digest,) in bound(held, [list(keys)]))


def _sweep_values(project: Project, digests: Sequence[str]) -> None:
    """Delete those of the values that no step points at any more.

    Whoever stores a step with such a value at this moment has its row locked: we wait, and then see the step.
    """
    if digests:
        locked = Blob.objects.select_for_update().filter(project=project, sha256__in=digests).order_by("sha256")
        keys = list(locked.values_list("pk", flat=True))
        bound(
            "DELETE FROM trajectories_blob AS blob WHERE blob.id = ANY(%s) AND NOT EXISTS ("
            " SELECT 1 FROM trajectories_step AS step JOIN trajectories_trajectory AS row"
            " ON row.id = step.trajectory_id WHERE row.project_id = blob.project_id"
            " AND step.blobs IS NOT NULL AND step.blobs @> ARRAY[blob.sha256])",
            [keys],
        )


def _trace_ids(rows: Sequence[Trajectory]) -> list[str]:
    """Their ids, and those of the traces that have become part of them."""
    parts = ModelCall.objects.filter(trajectory__in=[row.pk for row in rows]).values_list("trace_id", flat=True)
    return sorted({*(row.trace_id for row in rows), *parts})


def _bodies(rows: Sequence[Trajectory]) -> QuerySet[Body]:
    """The raw requests that hold spans of these trajectories."""
    since = min(row.received_at for row in rows) - _SKEW
    names = _trace_ids(rows)
    return Body.objects.filter(project=rows[0].project_id, received_at__gte=since, trace_ids__overlap=names)


def _quarantined(rows: Sequence[Trajectory]) -> QuerySet[Quarantined]:
    """Return the rejected items that name one of these trajectories, in whatever way an id is written."""
    names = _trace_ids(rows)
    found = bound(
        "SELECT item.id FROM trajectories_quarantined AS item WHERE item.project_id = %s"
        " AND (item.trace_id = ANY(%s) OR EXISTS ("
        " SELECT 1 FROM unnest(%s::bytea[]) AS form WHERE position(form IN item.content) > 0))",
        [rows[0].project_id, names, [form for name in names for form in _forms(name)]],
    )
    return Quarantined.objects.filter(pk__in=[key for (key,) in found])


def _forms(trace_id: str) -> list[bytes]:
    forms = [trace_id.encode()]
    with suppress(ValueError):
        if len(trace_id) == 32:
            number = bytes.fromhex(trace_id)
            forms += [trace_id.upper().encode(), number, base64.b64encode(number)]
    return forms


def _scrub_ledger(project: Project, rows: Sequence[Trajectory], rejected: QuerySet[Quarantined]) -> None:
    """Take out of the ledger what its reasons and warnings quote of these trajectories. Its counts stay."""
    places: dict[int, set[str]] = {}
    for key, at in rejected.values_list("batch", "at"):
        places.setdefault(key, set()).add(at)
    for batch in Batch.objects.filter(pk__in=places):
        for problem in batch.problems:
            if problem["at"] in places[batch.pk]:
                problem["reason"] = REMOVED
        batch.save(update_fields=["problems"])
    if not (sentences := _warnings(rows)):
        return
    since = min(row.received_at for row in rows) - _SKEW
    for batch in Batch.objects.filter(project=project, received_at__gte=since, warnings__has_any_keys=list(sentences)):
        batch.warnings = [REMOVED if text in sentences else text for text in batch.warnings]
        batch.save(update_fields=["warnings"])


def _warnings(rows: Sequence[Trajectory]) -> set[str]:
    """The sentences that their spans were warned of."""
    found: list[str] = []
    names = {row.pk: row.trace_id for row in rows}
    judging = Q(said__contains="outcome") | Q(said__contains="evaluation") | Q(said__contains="annotation")
    spans = Step.objects.filter(trajectory__in=list(names), is_span=True).order_by("trajectory", "position")
    for step in spans.alias(said=Cast("body", TextField())).filter(judging).iterator(chunk_size=500):
        reader = Reader()
        ids = {"trace_id": names[step.trajectory_id], "span_id": step.span_id, "parent_id": step.parent_id}
        reader.span(otlp_traces.from_json(step.body, **ids))
        found += reader.warnings
    return set(found)


def forget_agent(pk: int) -> bool:
    """Delete an agent that was only ever named by what is gone now. Returns whether it is gone."""
    agent = Agent.objects.select_for_update().filter(IS_SEEN, pk=pk, live=None).first()
    if agent is None:
        return False
    for relation in Agent._meta.related_objects:
        model: Any = relation.related_model
        if model._default_manager.filter(**{relation.field.name: agent}).exists():
            return False
    agent.delete()
    return True
