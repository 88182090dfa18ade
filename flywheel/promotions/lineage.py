"""Where a trajectory came from, and all that was made of it, from room to room: each a link, the newest first.

One statement for each kind, each for a bounded number of rows; a kind of which nothing can be, because there is none of
what it is made of, is not asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q
from django.urls import reverse

from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.labels.decisions import describe
from flywheel.failures.models import QueueItem
from flywheel.promotions.models import Candidate
from flywheel.training.models import Dataset, TrainingRun
from flywheel.trajectories.models import Trajectory

SHOWN = 20
"""Of one kind."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One thing in the chain."""

    kind: str
    label: str
    url: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lineage:
    came_from: list[Origin]
    made_of_it: list[Origin]


def lineage_of(row: Trajectory) -> Lineage:
    result = Result.objects.filter(trajectory=row).select_related("run", "task__environment").first()
    return Lineage(list(_came_from(row, result)), list(_made_of_it(row, result)))


def _came_from(row: Trajectory, result: Result | None) -> Iterator[Origin]:
    if row.version is not None:
        agent, number = row.version.agent.name, row.version.number
        yield Origin("version", str(row.version), _url(row, "agents:version", agent, number))
    if result is not None:
        yield _task(row, result.task, "attempted")
        yield Origin("eval run", str(result.run), _url(row, "evals:run", result.run_id))


def _made_of_it(row: Trajectory, result: Result | None) -> Iterator[Origin]:
    for item in QueueItem.objects.filter(trajectory=row).select_related("queue").order_by("-pk")[:SHOWN]:
        url = _url(row, "failures:item", item.queue_id, item.pk)
        yield Origin("queue", str(item.queue), url, item.get_state_display())
    decided = row.failures.filter(current=True).select_related("labelled_by").first()
    if decided is not None:
        url = _url(row, "failures:review", row.trace_id)
        yield Origin("decision", describe(row.project, decided), url, f"by {decided.labelled_by}")
    made = Task.objects.filter(Q(source=row) | Q(also__trajectory=row)).select_related("environment").distinct()
    tasks = list(made.order_by("-pk")[:SHOWN])
    yield from (_task(row, task, "retired" if task.retired_at else task.split) for task in tasks)
    if tasks:
        for one in TaskSet.objects.filter(tasks__in=tasks).distinct().order_by("-pk")[:SHOWN]:
            url = _url(row, "environments:task_set", one.name, one.version)
            yield Origin("task set", str(one), url)
        yield from _evaluated(row, tasks)
    yield from _trained(row, tasks, result)


def _evaluated(row: Trajectory, tasks: list[Task]) -> Iterator[Origin]:
    """Runs that attempted these tasks, with how often."""
    rollouts = Count("results", filter=Q(results__task__in=tasks))
    runs = EvalRun.objects.filter(results__task__in=tasks).exclude(split=Split.SEALED).annotate(rollouts=rollouts)
    runs = runs.select_related("version__agent")
    for run in runs.order_by("-pk")[:SHOWN]:
        times = f"{run.rollouts} rollout{'' if run.rollouts == 1 else 's'} of its tasks by {run.version}"
        yield Origin("eval run", str(run), _url(row, "evals:run", run.pk), times)


def _trained(row: Trajectory, tasks: list[Task], result: Result | None) -> Iterator[Origin]:
    """What learns from the tasks, of which only those to train on are in a dataset, or from the rollout as a
    demonstration, and what that led to."""
    if not tasks and result is None:
        return
    learnt = Q(task_set__in=TaskSet.objects.filter(members__task__in=tasks, members__split=Split.TRAIN))
    if result is not None:
        learnt |= Q(recipe__eval_run=result.run_id)
    datasets = list(Dataset.objects.filter(learnt, project=row.project)[:SHOWN])
    for dataset in datasets:
        url = _url(row, "training:dataset", dataset.name, dataset.version)
        yield Origin("dataset", str(dataset), url, dataset.get_kind_display())
    if not datasets:
        return
    trained = TrainingRun.objects.filter(dataset__in=datasets).select_related("produced__agent").order_by("-pk")
    runs = list(trained[:SHOWN])
    for run in runs:
        yield Origin("training run", str(run), _url(row, "training:run", run.pk), run.state)
        if run.produced is not None:
            url = _url(row, "agents:version", run.produced.agent.name, run.produced.number)
            yield Origin("version", str(run.produced), url, f"of {run}")
    if runs:
        for candidate in (
            Candidate.objects.filter(run__in=runs).select_related("version__agent").order_by("-pk")[:SHOWN]
        ):
            url = _url(row, "promotions:candidate", candidate.pk)
            yield Origin("candidate", str(candidate.version), url, candidate.get_state_display().lower())


def _task(row: Trajectory, task: Task, detail: str) -> Origin:
    return Origin("task", str(task), _url(row, "environments:task", task.environment.name, task.number), detail)


def _url(row: Trajectory, name: str, *args: Any) -> str:
    return reverse(name, args=[row.project.slug, *args])
