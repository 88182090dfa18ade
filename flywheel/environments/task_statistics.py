"""How often versions solve what stands in this room. Results are read from the tasks' side; they belong to evals."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, Count, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Cast

from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate, proportion
from flywheel.environments.models import MEASURED, Environment, EnvironmentVersion, Split, Task, TaskSet
from flywheel.trajectories.annotations.project_buckets import name_of


@dataclass(frozen=True, slots=True)
class Solved:
    """One version's solve rate on one split, under the newest verifier."""

    agent: str
    number: int
    split: str
    rate: Estimate


def solve_rates(environment: Environment) -> list[Solved]:
    """Every version that was evaluated here, newest first: a task's samples averaged, tasks clustered by source. Not of
    sealed tasks: these numbers stand with the candidate that they were asked for."""
    return rates_of([environment])[environment.pk]


def rates_of(environments: Collection[Environment]) -> dict[int, list[Solved]]:
    """The same of each environment, by its key."""
    newest = EnvironmentVersion.objects.filter(environment=OuterRef("environment")).order_by("-number")
    rows = (
        Task.objects.filter(
            environment__in=environments,
            results__run__verifier_digest=Subquery(newest.values("verifier_digest")[:1]),
            results__run__split__in=[Split.TRAIN, Split.HELD_OUT],
        )
        .order_by()
        .values(
            "pk",
            "environment",
            "cluster",
            "results__run__split",
            "results__run__version__agent__name",
            "results__run__version__number",
        )
        .annotate(mean=Avg(Cast("results__success", IntegerField())))
    )
    groups: dict[int, dict[tuple[str, int, str], list[dict[str, Any]]]] = {}
    for row in rows:
        key = (
            row["results__run__version__agent__name"],
            row["results__run__version__number"],
            row["results__run__split"],
        )
        groups.setdefault(row["environment"], {}).setdefault(key, []).append(dict(row))
    return {environment.pk: _solved(groups.get(environment.pk, {})) for environment in environments}


def _solved(groups: Mapping[tuple[str, int, str], Sequence[dict[str, Any]]]) -> list[Solved]:
    return [
        Solved(agent, number, split, clustered_rate([row["mean"] for row in found], [row["cluster"] for row in found]))
        for (agent, number, split), found in sorted(
            groups.items(), key=lambda item: (item[0][0], -item[0][1], item[0][2])
        )
    ]


def solved_by_version(task: Task, version: EnvironmentVersion | None) -> list[dict[str, Any]]:
    """The same for one task: attempts and how many passed, with the interval of a proportion."""
    rows = (
        _of_verifier(task.results.exclude(run__split=Split.SEALED), version)
        .order_by()
        .values("run__version__agent__name", "run__version__number")
        .annotate(
            passed=Count("pk", filter=Q(success=True)),
            scored=Count("pk", filter=Q(success__isnull=False)),
            unscored=Count("pk", filter=Q(success=None)),
        )
        .order_by("run__version__agent__name", "-run__version__number")
    )
    return [{**row, "rate": proportion(row["passed"], row["scored"], unscored=row["unscored"])} for row in rows]


def counts(environments: QuerySet[Environment]) -> QuerySet[Environment]:
    """Environments with how many tasks they have, by split, and how many of those are proved."""
    active = Q(tasks__retired_at=None)
    return environments.annotate(
        train=Count("tasks", filter=active & Q(tasks__split=Split.TRAIN)),
        held_out=Count("tasks", filter=active & Q(tasks__split=Split.HELD_OUT)),
        sealed=Count("tasks", filter=active & Q(tasks__split=Split.SEALED)),
        set_aside=Count("tasks", filter=active & Q(tasks__split=Split.SET_ASIDE)),
        proved=Count("tasks", filter=active & Q(tasks__is_proved=True)),
        total=Count("tasks", filter=active),
        version_count=Subquery(
            EnvironmentVersion.objects.filter(environment=OuterRef("pk"))
            .order_by()
            .values("environment")
            .annotate(count=Count("pk"))
            .values("count")
        ),
    )


def sizes(task_sets: QuerySet[TaskSet]) -> QuerySet[TaskSet]:
    """Task sets with how many tasks they have, by split."""
    return task_sets.annotate(
        train=Count("members", filter=Q(members__split=Split.TRAIN)),
        held_out=Count("members", filter=Q(members__split=Split.HELD_OUT)),
        sealed=Count("members", filter=Q(members__split=Split.SEALED)),
    )


def shape(task_set: TaskSet) -> dict[str, Any]:
    """What a frozen set is made of: tasks and clusters by split, and that the splits share none."""
    members = task_set.members.order_by()
    by_split = {
        row["split"]: row
        for row in members.values("split").annotate(tasks=Count("pk"), clusters=Count("task__cluster", distinct=True))
    }
    train = members.filter(split=Split.TRAIN).values("task__cluster")
    shared = members.filter(split__in=MEASURED, task__cluster__in=train).count()
    nothing = {"tasks": 0, "clusters": 0}
    return {
        "train": by_split.get(Split.TRAIN, nothing),
        "held_out": by_split.get(Split.HELD_OUT, nothing),
        "sealed": by_split.get(Split.SEALED, nothing),
        "shared": shared,
        "buckets": [
            {**row, "name": name_of(task_set.project, row["task__bucket"]).capitalize()}
            for row in members.values("task__bucket")
            .annotate(
                train=Count("pk", filter=Q(split=Split.TRAIN)), held_out=Count("pk", filter=Q(split=Split.HELD_OUT))
            )
            .order_by("-held_out", "-train")
        ],
        "slices": list(
            members.exclude(task__slice="")
            .values("task__slice")
            .annotate(
                train=Count("pk", filter=Q(split=Split.TRAIN)), held_out=Count("pk", filter=Q(split=Split.HELD_OUT))
            )
            .order_by("task__slice")
        ),
    }


def _of_verifier(results: Any, version: EnvironmentVersion | None) -> Any:
    return results.filter(run__verifier_digest=version.verifier_digest) if version else results.none()
