"""Where a trajectory came from, and all that was made of it, from room to room: each a link, the newest first.

One statement for each kind, each for a bounded number of rows; a kind of which nothing can be, because there is none of
what it is made of, is not asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q
from django.urls import reverse

from flywheel.agents.models import Version
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import QueueItem
from flywheel.promotions.models import Candidate
from flywheel.training.models import CheckpointVersion, Dataset, TrainingRun
from flywheel.trajectories.models import Trajectory

SHOWN = 20
"""Of one kind."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One thing in the chain."""

    kind: str
    label: str
    url: str
    detail: str


@dataclass(frozen=True, slots=True)
class Lineage:
    came_from: list[Origin]
    made_of_it: list[Origin]


def lineage_of(row: Trajectory) -> Lineage:
    result = Result.objects.filter(trajectory=row).select_related("run", "task__environment").first()
    return Lineage(list(_came_from(row, result)), list(_made_of_it(row, result)))


def _came_from(row: Trajectory, result: Result | None) -> Iterator[Origin]:
    if row.version is not None:
        yield _version(row, row.version)
    if result is not None:
        yield _task(row, result.task, "attempted")
        yield _origin(row, "eval run", result.run, "", "evals:run", result.run_id)


def _made_of_it(row: Trajectory, result: Result | None) -> Iterator[Origin]:
    for item in QueueItem.objects.filter(trajectory=row).select_related("queue").order_by("-pk")[:SHOWN]:
        yield _origin(row, "queue", item.queue, item.get_state_display(), "failures:item", item.queue_id, item.pk)
    decided = row.failures.filter(current=True).select_related("labelled_by").first()
    if decided is not None:
        by = f"by {decided.labelled_by}"
        yield _origin(row, "decision", describe(row.project, decided), by, "failures:review", row.trace_id)
    made = Task.objects.filter(Q(source=row) | Q(also__trajectory=row)).select_related("environment").distinct()
    tasks = list(made.order_by("-pk")[:SHOWN])
    yield from (_task(row, task, "retired" if task.retired_at else task.split) for task in tasks)
    if tasks:
        for one in TaskSet.objects.filter(tasks__in=tasks).distinct().order_by("-pk")[:SHOWN]:
            yield _origin(row, "task set", one, "", "environments:task_set", one.name, one.version)
        yield from _evaluated(row, tasks)
    yield from _trained(row, tasks, result)


def _evaluated(row: Trajectory, tasks: list[Task]) -> Iterator[Origin]:
    """Runs that attempted these tasks, with how often."""
    rollouts = Count("results", filter=Q(results__task__in=tasks))
    runs = EvalRun.objects.filter(results__task__in=tasks).exclude(split=Split.SEALED).annotate(rollouts=rollouts)
    runs = runs.select_related("version__agent")
    for run in runs.order_by("-pk")[:SHOWN]:
        times = f"{run.rollouts} rollout{'' if run.rollouts == 1 else 's'} of its tasks by {run.version}"
        yield _origin(row, "eval run", run, times, "evals:run", run.pk)


def _trained(row: Trajectory, tasks: list[Task], result: Result | None) -> Iterator[Origin]:
    """Yield the datasets that learn from the tasks, of which only those to train on are in one, or from the trajectory
    as a demonstration, then their training runs, versions and candidates."""
    sets = TaskSet.objects.filter(members__task__in=tasks, members__split=Split.TRAIN)
    learnt = Q(recipe__from_traces__contains=row.trace_id) | Q(task_set__in=sets)
    if result is not None:
        learnt |= Q(recipe__eval_run=result.run_id)
    datasets = list(Dataset.objects.filter(learnt, project=row.project)[:SHOWN])
    for dataset in datasets:
        kind = dataset.get_kind_display()
        yield _origin(row, "dataset", dataset, kind, "training:dataset", dataset.name, dataset.version)
    if not datasets:
        return
    learnt_by = Q(dataset__in=datasets) | Q(replay__in=datasets)
    trained = TrainingRun.objects.filter(learnt_by).select_related("produced__agent").order_by("-pk")
    runs = list(trained[:SHOWN])
    for run in runs:
        yield _origin(row, "training run", run, run.state, "training:run", run.pk)
        if run.produced is not None:
            yield _version(row, run.produced, f"of {run}")
    for each in CheckpointVersion.objects.filter(run__in=runs).select_related("run", "version__agent")[:SHOWN]:
        if each.version is not None and each.version_id != each.run.produced_id:
            yield _version(row, each.version, f"of {each}")
    if runs:
        candidates = Candidate.objects.filter(run__in=runs).select_related("version__agent").order_by("-pk")
        for one in candidates[:SHOWN]:
            state = one.get_state_display().lower()
            yield _origin(row, "candidate", one.version, state, "promotions:candidate", one.pk)


def _version(row: Trajectory, version: Version, detail: str = "") -> Origin:
    return _origin(row, "version", version, detail, "agents:version", version.agent.name, version.number)


def _task(row: Trajectory, task: Task, detail: str) -> Origin:
    return _origin(row, "task", task, detail, "environments:task", task.environment.name, task.number)


def _origin(row: Trajectory, kind: str, thing: object, detail: str, page: str, *args: Any) -> Origin:
    return Origin(kind, str(thing), reverse(page, args=[row.project.slug, *args]), detail)
