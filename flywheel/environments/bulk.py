"""Tasks of all labelled failures at once."""

from collections import Counter
from dataclasses import dataclass, field

from django.db.models import Q, QuerySet

from flywheel.accounts.models import User
from flywheel.environments.make import CannotMake, task_from
from flywheel.environments.models import Environment, Task
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Source

AT_ONCE = 200
"""Tasks that one request makes; what is left waits for the next."""


@dataclass(slots=True)
class Made:
    """What a bulk request came to."""

    made: list[Task] = field(default_factory=list)
    existing: int = 0
    """Failures that ask the same as a task that is there."""
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → how many failures it kept out."""
    left: int = 0
    """Failures that this request did not come to."""

    @property
    def unproved(self) -> int:
        return sum(not task.is_proved for task in self.made)

    def __str__(self) -> str:
        parts = [f"{len(self.made)} task{'' if len(self.made) == 1 else 's'} made"]
        if self.unproved:
            parts.append(f"{self.unproved} of them not proved")
        if self.existing:
            parts.append(f"{self.existing} were there already")
        parts += [f"{count} refused: {reason}" for reason, count in self.refused.most_common(5)]
        if self.left:
            parts.append(f"{self.left} left for the next click")
        return "; ".join(parts) + "."


def without_task(environment: Environment) -> QuerySet[Failure]:
    """Failures with a corrected action, of the environment's agent, that no task of it was made of."""
    rows = (
        Failure.objects.filter(project=environment.project_id, current=True, corrected__isnull=False)
        .exclude(decision=Decision.REJECTED)
        .exclude(trajectory__source=Source.ROLLOUT)
        .exclude(pk__in=environment.tasks.filter(failure__isnull=False).values("failure"))
        .exclude(pk__in=environment.tasks.filter(also__isnull=False).values("also"))
    )
    if environment.agent_id:
        rows = rows.filter(Q(trajectory__agent=environment.agent_id) | Q(trajectory__agent=None))
    return rows.select_related("trajectory").order_by("pk")


def tasks_from_all(*, environment: Environment, actor: User, through: str = "", limit: int = AT_ONCE) -> Made:
    """A task of every labelled failure that can be one, at most `limit`. Each is made in a transaction of its own."""
    result = Made()
    waiting = list(without_task(environment))
    for place, failure in enumerate(waiting):
        if len(result.made) >= limit:
            result.left = len(waiting) - place
            break
        try:
            task, is_new = task_from(failure=failure, environment=environment, actor=actor, through=through)
        except CannotMake as error:
            result.refused[str(error)] += 1
            continue
        if is_new:
            result.made.append(task)
        else:
            result.existing += 1
    return result
