"""A task's row: how one is made, the number that it gets, and what environments and trainers see of it."""

from typing import Any

from django.db.models import Max

from flywheel.core import envs
from flywheel.core.digests import digest
from flywheel.environments.models import Environment, Split, Task
from flywheel.environments.tasks.task_splits import split_in


def next_number(environment: Environment) -> int:
    """Return the number of its next task; hold the environment's row."""
    return int(environment.tasks.aggregate(last=Max("number"))["last"] or 0) + 1


def unsaved_task(environment: Environment, pure: envs.Task, *, split: Split | None = None, **fields: Any) -> Task:
    """The row of a task that came from elsewhere, without its number; in the split that is drawn for its cluster."""
    state, target = dict(pure.state), dict(pure.target)
    return Task(
        project=environment.project,
        environment=environment,
        prompt=pure.prompt,
        state=state,
        target=target,
        cluster=pure.cluster,
        slice=pure.slice,
        split=split or split_in(environment, cluster=pure.cluster, slice=pure.slice),
        digest=digest({"prompt": pure.prompt, "state": state, "target": target}),
        **fields,
    )


def core_task(task: Task) -> envs.Task:
    """The task as environments and trainers see it."""
    return envs.Task(
        id=str(task),
        prompt=task.prompt,
        target=task.target,
        state=task.state,
        cluster=task.cluster,
        slice=task.slice,
        synthetic=task.is_synthetic,
    )
