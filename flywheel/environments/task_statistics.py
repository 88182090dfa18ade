"""Success rates of versions on what this room holds. Results are read from the tasks' side; they belong to evals."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Avg, Count, F, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Cast

from flywheel.accounts.models import Project
from flywheel.core.envs.worlds.stand_ins import simulator_of
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate, proportion
from flywheel.core.evidence.statistics.eval_scope import Part
from flywheel.environments.models import MEASURED, Environment, EnvironmentVersion, Split, Task, TaskSet, TaskSetMember
from flywheel.trajectories.annotations.project_buckets import name_of
from flywheel.trajectories.models import Label, Source


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
    rows = (
        Task.objects.filter(
            environment__in=environments,
            results__run__verifier_digest=_newest_verifier(),
            results__run__split__in=[Split.TRAIN, Split.HELD_OUT],
        )
        .order_by()
        .values_list(
            "results__run__version__agent__name",
            "results__run__version__number",
            "results__run__split",
            "environment",
            "pk",
            "cluster",
        )
        .annotate(mean=Avg(Cast("results__success", IntegerField())))
    )
    groups: dict[tuple[str, int, str, int], list[tuple[float | None, str]]] = {}
    for agent, number, split, environment, _, cluster, mean in rows:
        groups.setdefault((agent, number, split, environment), []).append((mean, cluster))
    rates: dict[int, list[Solved]] = {environment.pk: [] for environment in environments}
    for (agent, number, split, key), found in groups.items():
        means, clusters = zip(*found, strict=True)
        rates[key].append(Solved(agent, number, split, clustered_rate(means, clusters)))
    for solved in rates.values():
        solved.sort(key=lambda each: (each.agent, -each.number, each.split))
    return rates


def _newest_verifier() -> Subquery:
    """Return the digest of the newest verifier of a task's environment."""
    newest = EnvironmentVersion.objects.filter(environment=OuterRef("environment")).order_by("-number")
    return Subquery(newest.values("verifier_digest")[:1])


def funnel(project: Project) -> list[tuple[str, int]]:
    """Count how far the project's labelled failures came, each step a part of the one before: to a task, to a proved
    one, to a held-out one that its agent's live version was asked, to one that it solves in half of its attempts, under
    the newest verifier."""
    failures = project.trajectories.filter(label=Label.FAILURE).exclude(source__in=Source.ATTEMPTS)
    tasks = project.tasks.filter(retired_at=None, source__in=failures)
    proved = tasks.filter(is_proved=True)
    asked = (
        proved.filter(
            split=Split.HELD_OUT,
            results__run__version=F("environment__agent__live"),
            results__run__verifier_digest=_newest_verifier(),
        )
        .order_by()
        .values("source")
        .annotate(mean=Avg(Cast("results__success", IntegerField())))
        .exclude(mean=None)
    )
    solved = asked.filter(mean__gte=0.5)
    return [
        ("failures labelled", failures.count()),
        ("turned into a task", tasks.order_by().values("source").distinct().count()),
        ("proved", proved.order_by().values("source").distinct().count()),
        ("held out and run on the live version", asked.count()),
        ("solved by it", solved.count()),
    ]


def solved_by_version(task: Task, version: EnvironmentVersion | None) -> list[dict[str, Any]]:
    """The same for one task: attempts and how many passed, with the interval of a proportion."""
    if version is None:
        return []
    rows = (
        task.results.filter(run__verifier_digest=version.verifier_digest)
        .exclude(run__split=Split.SEALED)
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


def simulator_agreement(environment: Environment, version: EnvironmentVersion | None) -> Estimate | None:
    """The share of recorded results, held back, that the model which stands in for tools gives, by the newest proofs
    of this version's tasks; None where no model stands in."""
    if version is None or not simulator_of(version.config):
        return None
    rows = environment.tasks.filter(
        retired_at=None, proof__environment_version=str(version), proof__simulated__has_key="calls"
    )
    values: list[float] = []
    clusters: list[str] = []
    for cluster, found in rows.order_by("pk").values_list("cluster", "proof__simulated"):
        values += [1.0] * found["same"] + [0.0] * (found["calls"] - found["same"])
        clusters += [cluster] * found["calls"]
    return clustered_rate(values, clusters)


def counts(environments: QuerySet[Environment]) -> QuerySet[Environment]:
    """Environments with how many tasks they have, by split, and how many of those are proved."""
    active = Q(tasks__retired_at=None)
    return environments.annotate(
        **{split.value: Count("tasks", filter=active & Q(tasks__split=split)) for split in Split},
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
        **{split.value: Count("members", filter=Q(members__split=split)) for split in (Split.TRAIN, *MEASURED)}
    )


def shape(task_set: TaskSet) -> dict[str, Any]:
    """Return the make-up of a frozen set: tasks and clusters by split, and the check that splits share none."""
    members = task_set.members.order_by()
    by_split = {
        row["split"]: row
        for row in members.values("split").annotate(tasks=Count("pk"), clusters=Count("task__cluster", distinct=True))
    }
    train = members.filter(split=Split.TRAIN).values("task__cluster")
    shared = members.filter(split__in=MEASURED, task__cluster__in=train).count()
    nothing = {"tasks": 0, "clusters": 0}
    sources = source_shares([task_set])[task_set.pk]
    in_train, in_held_out = Count("pk", filter=Q(split=Split.TRAIN)), Count("pk", filter=Q(split=Split.HELD_OUT))
    buckets = members.values("task__bucket").annotate(train=in_train, held_out=in_held_out)
    worded = members.exclude(task__slice="")
    slices = worded.values("task__slice").annotate(train=in_train, held_out=in_held_out)
    return {
        **{split.value: by_split.get(split, nothing) for split in (Split.TRAIN, *MEASURED)},
        "lopsided": [found for found in sources if found.is_lopsided],
        "effective": next((found.effective for found in sources if found.split == Split.HELD_OUT), None),
        "shared": shared,
        "buckets": [
            {**row, "name": name_of(task_set.project, row["task__bucket"]).capitalize()}
            for row in buckets.order_by("-held_out", "-train")
        ],
        "slices": slices.order_by("task__slice"),
    }


LOPSIDED = 1 / 3
"""Share of a measured part's tasks from which on one source alone decides what can be shown by it."""


@dataclass(frozen=True, slots=True)
class SourceShares:
    """The spread of a measured part's tasks over their sources."""

    split: str
    tasks: int
    sources: int
    effective: float
    """How many sources of equal size would tell as much (Kish 1965)."""
    largest: float
    """The share of the largest one."""

    @property
    def is_lopsided(self) -> bool:
        return self.largest > LOPSIDED

    @property
    def words(self) -> str:
        share = f"{100 * self.largest:.0f}% of its {self.tasks} {Split(self.split).label.lower()} tasks"
        return (
            f"{share} come from one source: its {self.sources} sources tell as much as {self.effective:.1f} equal ones"
        )


def source_shares(task_sets: Sequence[TaskSet]) -> dict[int, list[SourceShares]]:
    """Return the spread of each set's measured parts over their sources, by its key; one statement."""
    rows = TaskSetMember.objects.filter(task_set__in=task_sets, split__in=MEASURED).order_by()
    sizes: dict[tuple[int, str], list[int]] = {}
    counted = rows.values("task_set", "split", "task__cluster").annotate(count=Count("pk"))
    for row in counted:
        sizes.setdefault((row["task_set"], row["split"]), []).append(row["count"])
    found: dict[int, list[SourceShares]] = {task_set.pk: [] for task_set in task_sets}
    for (key, split), each in sorted(sizes.items()):
        tasks = sum(each)
        found[key].append(SourceShares(split, tasks, len(each), Part.of(each).effective, max(each) / tasks))
    return found
