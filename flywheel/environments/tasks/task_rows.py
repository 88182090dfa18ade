"""A task's row: the number that it gets, and what environments and trainers see of it."""

from django.db.models import Max

from flywheel.core import envs
from flywheel.environments.models import Environment, Task


def next_number(environment: Environment) -> int:
    """Of its next task; hold the environment's row."""
    return int(environment.tasks.aggregate(last=Max("number"))["last"] or 0) + 1


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
