"""Train tasks that are kept out of training to validate on.

What is chosen on the way (the best weights, an early end) may not be chosen by held-out tasks, or their measurement of
the result would be too good. So a share of the train side's sources is kept aside: whole clusters, drawn by the run's
seed, of every task set of a mix. Sealed and set-aside tasks are in no train split and stay where they are.
"""

from collections.abc import Iterator
from dataclasses import replace

from flywheel.core import digests, envs
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.environments.tasks.task_rows import core_task
from flywheel.training.models import TrainingRun


def named_tasks(run: TrainingRun, split: Split) -> Iterator[envs.Task]:
    """Yield the tasks of a split of the run's sets; of a mix those of every set, named as its rows are."""
    for task_set in run.task_sets:
        members = task_set.members.filter(split=split).select_related("task").order_by("task__number")
        yield from (_named(member.task, task_set, run) for member in members)


def validation_tasks(run: TrainingRun) -> list[envs.Task]:
    """The tasks that the run is validated on; none where it keeps none, or for a reward model, which answers none."""
    share = run.settings.get("validation_share", 0.0) if run.makes_policy else 0.0
    found: list[envs.Task] = []
    for task_set in run.task_sets if share else ():
        kept = set(choose_tasks(task_set, share, run.seed))
        members = task_set.members.filter(task__in=kept).select_related("task").order_by("task__number")
        found += [_named(member.task, task_set, run) for member in members]
    return found


def choose_tasks(task_set: TaskSet, share: float, seed: int) -> list[int]:
    """Primary keys of the train tasks of a share of the sources, at least of one and never of all."""
    rows = list(task_set.members.filter(split=Split.TRAIN).values_list("task", "task__cluster"))
    sources = sorted({cluster for _, cluster in rows}, key=lambda cluster: digests.digest([seed, cluster]))
    kept = set(sources[: min(max(1, round(share * len(sources))), len(sources) - 1)]) if share and sources else set()
    return [task for task, cluster in rows if cluster in kept]


def _named(task: Task, task_set: TaskSet, run: TrainingRun) -> envs.Task:
    found = core_task(task)
    if not run.dataset.is_placed:
        return found
    name = task_set.environment_version.environment.name
    return replace(found, id=f"{name}/{found.id}", environment=name)
