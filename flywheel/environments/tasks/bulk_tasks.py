"""Tasks of many labelled trajectories at once: of all that an environment has none of, or of those that were chosen."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Case, Count, Exists, IntegerField, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, Scope
from flywheel.core.envs.kinds import KINDS
from flywheel.edge.prepared_queries import PreparedQuery
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Task
from flywheel.environments.tasks.recorded_tasks import prove_made, task_from
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Bulk, Source, Trajectory
from flywheel.trajectories.operations.bulk_actions import Action, BadBulk, Done, register

AT_ONCE = 200
"""Tasks that one request makes; what is left waits for the next."""


@dataclass(slots=True)
class Made:
    """The outcome of a bulk request."""

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


def taking_failures(project: Project) -> QuerySet[Environment]:
    """Those whose tasks are made of labelled trajectories."""
    kinds = [name for name, kind in KINDS.items() if kind.takes_failures]
    return Environment.objects.filter(project=project, kind__in=kinds)


def without_task(environment: Environment) -> QuerySet[Failure]:
    """Failures with a corrected action, of the environment's agent, that no task of it was made of. Those of any agent
    are offered to a world of none one by one."""
    kind = KINDS[environment.kind]
    if not kind.from_failures and not (kind.is_world and environment.agent_id):
        return Failure.objects.none()
    rows = _untaken(environment.project_id, environment.pk)
    if environment.agent_id:
        rows = rows.filter(_of_agent(environment.agent_id))
    return rows.select_related("trajectory").order_by("pk")


def count_without_task(environments: QuerySet[Environment]) -> QuerySet[Environment]:
    """Environments with how many such failures there are of each, as `waiting`: one statement."""
    rows = _untaken(OuterRef("project"), OuterRef(OuterRef("pk"))).order_by().values("project")
    taking = [name for name, kind in KINDS.items() if kind.from_failures]
    worlds = [name for name, kind in KINDS.items() if kind.is_world]
    return environments.annotate(
        waiting=Case(
            When(~Q(kind__in=taking) & ~Q(kind__in=worlds, agent__isnull=False), then=0),
            When(agent=None, then=_counted(rows)),
            default=_counted(rows.filter(_of_agent(OuterRef("agent")))),
            output_field=IntegerField(),
        )
    )


def _untaken(project: Any, environment: Any) -> QuerySet[Failure]:
    """Failures with a corrected action that no task of the environment was made of."""
    tasks = Task.objects.filter(environment=environment)
    return (
        Failure.objects.filter(project=project, current=True, corrected__isnull=False)
        .exclude(decision=Decision.REJECTED)
        .exclude(trajectory__source__in=Source.ATTEMPTS)
        .exclude(Exists(tasks.filter(failure=OuterRef("pk"))))
        .exclude(Exists(tasks.filter(also=OuterRef("pk"))))
    )


def _of_agent(agent: Any) -> Q:
    return Q(trajectory__agent=agent) | Q(trajectory__agent=None)


def _counted(rows: Any) -> Coalesce:
    return Coalesce(Subquery(rows.annotate(count=Count("pk")).values("count")), 0)


def tasks_from_all(
    *, environment: Environment, actor: Actor, limit: int = AT_ONCE, failures: QuerySet[Failure] | None = None
) -> Made:
    """A task of every labelled failure that can be one, or of those of these `failures`, in their order; at most
    `limit`. Each is made in a transaction of its own."""
    result = Made()
    waiting = list(without_task(environment) if failures is None else failures)
    for place, failure in enumerate(waiting):
        if len(result.made) >= limit:
            result.left = len(waiting) - place
            break
        try:
            task, is_new = task_from(failure=failure, environment=environment, actor=actor, proves=False)
        except Refused as error:
            result.refused[str(error)] += 1
            continue
        if is_new:
            result.made.append(task)
        else:
            result.existing += 1
    prove_made(environment, result.made)
    return result


# An action of `trajectories.bulk`

_TAKING = PreparedQuery(lambda project: taking_failures(project).order_by("name").only("name"))


def _check(project: Project, options: dict[str, Any]) -> dict[str, Any]:
    name = str(options.get("environment", ""))
    if "\0" in name or not taking_failures(project).filter(name=name).exists():
        raise BadBulk(f"environment: there is no environment {name[:40]!r}")
    return {"environment": name}


def _make(job: Bulk, keys: list[int]) -> Done:
    """A task of each that is labelled, failure or pass. What keeps one from being a task is told of it by name."""
    environment = Environment.objects.get(project=job.project_id, name=job.options["environment"])
    decided = Failure.objects.filter(trajectory__in=keys, current=True).select_related("trajectory")
    decisions = {failure.trajectory_id: failure for failure in decided}
    done, made = Done(), []
    for key, source in Trajectory.objects.filter(pk__in=keys).order_by("pk").values_list("pk", "source"):
        if source in Source.ATTEMPTS:
            done.skipped["an attempt at a task already"] += 1
        elif key not in decisions:
            done.skipped["not labelled"] += 1
        else:
            failure = decisions[key]
            try:
                with transaction.atomic():
                    actor = Actor(job.created_by, job.through or f"bulk action {job.pk}")
                    task, is_new = task_from(failure=failure, environment=environment, actor=actor, proves=False)
            except Refused as error:
                done.failed.append((failure.trajectory.trace_id, str(error)))
                continue
            made += [task] if is_new else []
            done.skipped["a task already"] += not is_new
    prove_made(environment, made)
    done.changed = len(made)
    done.skipped["deleted meanwhile"] = len(keys) - done.changed - done.skipped.total() - len(done.failed)
    done.skipped = +done.skipped
    return done


register(
    Action(
        "make_tasks",
        "Make tasks",
        "tasks made",
        Permission.BUILD,
        Scope.BUILD,
        _make,
        _check,
        at_once=20,
        option="environment",
        choices=lambda project: [(environment.name, environment.name) for environment in _TAKING(project.pk)],
    )
)
