"""Steps from objects of one kind to those of another: the queries of which `relations.py` makes the registry.

Each takes any number of objects, so that steps can be put one after the other, and stays in their project, because what
is stored does.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import (
    BigIntegerField,
    Exists,
    Expression,
    F,
    Func,
    Model,
    OuterRef,
    Q,
    QuerySet,
    TextField,
    Value,
)
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast, Concat

from flywheel.accounts.models import Project
from flywheel.agents.models import SplitUnit, Version
from flywheel.environments.models import Split, Suite, Task, TaskSet, TaskSetMember
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.models import Failure, QueueItem, Recurrence
from flywheel.promotions.models import Ramp, Watch
from flywheel.training.models import CheckpointVersion, Dataset, TrainingRun
from flywheel.trajectories.models import Source, Trajectory

Rows = QuerySet[Any]


class Keys(Func):
    """Keys to look up with `in`, as one array: thousands of values apart take longer to write than to look up."""

    template = "(SELECT unnest(%(expressions)s))"

    def __init__(self, keys: Iterable[int]) -> None:
        super().__init__(Value(list(keys), output_field=ArrayField(BigIntegerField())), output_field=BigIntegerField())


@dataclass(frozen=True, slots=True)
class Those:
    """Objects of one kind in a project, for a relation to begin at."""

    project: Project
    rows: Rows
    few: list[int] | None = None
    """Their keys where they are few, which the planner makes more of than of a subquery."""
    row: Any = None
    """The object itself where it is one, as a bucket that is no row."""
    kept: dict[str, Any] = field(default_factory=dict, compare=False)
    """What steps from them have read."""

    @classmethod
    def alone(cls, project: Project, row: Model) -> "Those":
        return cls(project, type(row)._default_manager.filter(pk=row.pk), [row.pk], row)

    @classmethod
    def of(cls, project: Project, model: type[Model], keys: Iterable[int]) -> "Those":
        known = list(keys)
        return cls(project, model._default_manager.filter(pk__in=Keys(known)), known)

    def by(self, name: str) -> Q:
        """Rows that name one of them so."""
        return Q(**{f"{name}__in": self.rows.values("pk") if self.few is None else Keys(self.few)})

    def values(self, name: str) -> Rows:
        return self.rows.values(name)

    def listed(self) -> list[int]:
        return list(self.rows.values_list("pk", flat=True)) if self.few is None else self.few


Step = Callable[[Those], Rows]


def either(model: type[Model], *several: Rows) -> Rows:
    """Those whose keys one of the queries has; each of these is answered by its own index."""
    first, *rest = (each.order_by() for each in several)
    return model._default_manager.filter(pk__in=first.union(*rest))


def _elements(array: Expression) -> Func:
    """The texts in a JSON array, a row each."""
    return Func(array, function="jsonb_array_elements_text", output_field=TextField(), set_returning=True)


def having(model: type[Model], *names: str) -> Step:
    """Those of which one of the foreign keys names what is given."""

    def step(those: Those) -> Rows:
        several = [model._default_manager.filter(those.by(name)) for name in names]
        return several[0] if len(several) == 1 else either(model, *(each.values("pk") for each in several))

    return step


def named_by(model: type[Model], *names: str) -> Step:
    """Those that one of the foreign keys of what is given names."""

    def step(those: Those) -> Rows:
        return either(model, *(those.values(name) for name in names))

    return step


def linked(model: type[Model], link: type[Model], name: str, by: str) -> Step:
    """Those that rows of `link` name which name what is given by `by`."""
    return lambda those: model._default_manager.filter(pk__in=link._default_manager.filter(those.by(by)).values(name))


# Versions and what they gave

APART = 10**9
"""More rows than there are."""
_TRAFFIC = Q(source__in=Source.TRAFFIC)
_IS_ANSWERED = Q(claims__has_key=Trajectory.ANSWERED_BY)
_AMONG_OTHERS = Q(claims__answered_by__1__isnull=False)


def _names(those: Those) -> list[str]:
    """The versions as `Step.answered_by` has them."""
    rows = Version.objects.filter(those.by("pk")).select_related("agent").only("number", "digest", "agent__name")
    return [f"{row}:{row.digest}" for row in rows]


def answered(those: Those) -> Rows:
    alone = [[name] for name in _names(those)]
    rows = Trajectory.objects.filter(_IS_ANSWERED, _TRAFFIC, project=those.project)
    return rows.filter(claims__answered_by__1__isnull=True, claims__answered_by__in=alone)


def answered_in_part(those: Those) -> Rows:
    """The limit keeps two queries apart: found by their index first and then ordered. As one, PostgreSQL would walk all
    traffic in its order to find the few."""
    rows = Trajectory.objects.filter(_AMONG_OTHERS, _TRAFFIC, _any_of(_names(those)), project=those.project)
    return Trajectory.objects.filter(pk__in=rows.values("pk")[:APART])


def _any_of(names: Collection[str]) -> Q:
    found = Q(pk__in=[])
    for name in names:
        found |= Q(claims__answered_by__contains=[name])
    return found


def reported(those: Those) -> Rows:
    return Trajectory.objects.filter(_TRAFFIC, ~_IS_ANSWERED, version__in=those.listed())


def gave(those: Those) -> Rows:
    """Traffic that they answered, or where nobody knows who did, that is reported as theirs."""
    reported = ~_IS_ANSWERED & Q(version__in=those.listed())
    return Trajectory.objects.filter(_TRAFFIC, _any_of(_names(those)) | reported, project=those.project)


def answerers(those: Those) -> Rows:
    elements = _elements(KeyTransform(Trajectory.ANSWERED_BY, "claims"))
    names = those.rows.filter(_IS_ANSWERED).annotate(answerer=elements).values("answerer")
    name = Concat(
        "agent__name", Value("@"), Cast("number", TextField()), Value(":"), F("digest"), output_field=TextField()
    )
    return Version.objects.alias(name=name).filter(agent__project=those.project, name__in=names)


def reported_versions(those: Those) -> Rows:
    return Version.objects.filter(pk__in=those.rows.filter(_TRAFFIC, ~_IS_ANSWERED).values("version"))


def run_versions(those: Those) -> Rows:
    return Version.objects.filter(pk__in=those.rows.exclude(_TRAFFIC).values("version"))


def givers(those: Those) -> Rows:
    given = those.rows.filter(~_IS_ANSWERED).values("version")
    return either(Version, answerers(those).values("pk"), given)


# Ramps


def met(*, is_candidate: bool) -> Step:
    """Traffic of the sessions that met an arm of one ramp."""

    def step(those: Those) -> Rows:
        ramp: Ramp = those.row
        units = SplitUnit.objects.filter(split=ramp.split_id, is_candidate=is_candidate)
        traced = units.exclude(kind=SplitUnit.Kind.SESSION).exclude(trace_id="")
        rows = Trajectory.objects.filter(project=those.project, agent=ramp.agent_id, source=Source.PRODUCTION)
        by_session = rows.filter(session_id__in=units.filter(kind=SplitUnit.Kind.SESSION).values("name"))
        if not traced.exists():
            return by_session  # read no further than the page or the count wants
        by_trace = rows.filter(trace_id__in=traced.values("trace_id"))
        return either(Trajectory, by_session.values("pk"), by_trace.values("pk"))

    return step


def ramps_met(*, is_candidate: bool) -> Step:
    """Ramps in which the sessions of these few trajectories met an arm."""

    def step(those: Those) -> Rows:
        rows = those.rows.filter(source=Source.PRODUCTION)
        units = SplitUnit.objects.filter(split__agent__in=rows.values("agent"), is_candidate=is_candidate)
        sessions = units.filter(kind=SplitUnit.Kind.SESSION, name__in=rows.values("session_id"))
        others = units.exclude(kind=SplitUnit.Kind.SESSION).filter(trace_id__in=rows.values("trace_id"))
        return Ramp.objects.filter(split__in=sessions.values("split").union(others.values("split")))

    return step


# Failures and tasks

_ALSO = Task.also.through


def decisions(those: Those) -> Rows:
    return Failure.objects.filter(those.by("trajectory"), current=True)


def decisions_of_items(those: Those) -> Rows:
    """Without those of items that reviewers still decide on, blind to each other."""
    return Failure.objects.filter(pk__in=those.rows.exclude(closed_at=None).values("outcome"))


def items_of_decisions(those: Those) -> Rows:
    return QueueItem.objects.filter(those.by("outcome")).exclude(closed_at=None)


def tasks_of_failures(those: Those) -> Rows:
    also = _ALSO.objects.filter(those.by("failure"))
    return either(Task, Task.objects.filter(those.by("failure")).values("pk"), also.values("task"))


def failures_of_tasks(those: Those) -> Rows:
    also = _ALSO.objects.filter(those.by("task"))
    return either(Failure, those.values("failure"), also.values("failure"))


def tasks_of_trajectories(those: Those) -> Rows:
    """Looked up from the tasks where the trajectories are many: a version's traffic has far more of them."""
    if those.few is not None:
        also = _ALSO.objects.filter(those.by("failure__trajectory"))
        return either(Task, Task.objects.filter(those.by("source")).values("pk"), also.values("task"))
    also = _ALSO.objects.filter(task=OuterRef("pk"), failure__trajectory__in=those.rows)
    return Task.objects.filter(Exists(those.rows.filter(pk=OuterRef("source"))) | Exists(also))


def trajectories_of_tasks(those: Those) -> Rows:
    also = _ALSO.objects.filter(those.by("task"))
    return either(Trajectory, those.values("source"), also.values("failure__trajectory"))


def tasks_of_sets(those: Those) -> Rows:
    """Without the sealed ones, which nobody lists."""
    members = TaskSetMember.objects.filter(those.by("task_set")).exclude(split=Split.SEALED)
    return Task.objects.filter(pk__in=members.values("task"))


def _memberships(those: Those) -> set[tuple[int, str]]:
    """The sets that tasks are in, and in which split."""
    if "memberships" not in those.kept:
        rows = TaskSetMember.objects.filter(those.by("task")).values_list("task_set", "split")
        those.kept["memberships"] = set(rows.distinct())
    found: set[tuple[int, str]] = those.kept["memberships"]
    return found


def sets_of_tasks(those: Those) -> Rows:
    return TaskSet.objects.filter(pk__in={task_set for task_set, _ in _memberships(those)})


def runs_of_tasks(those: Those) -> Rows:
    """Without the sealed ones: they are shown with the candidate that they were made for."""
    found = Q(pk__in=[])
    for split in set(Split) - {Split.SEALED}:
        found |= Q(
            split=split, task_set__in=[task_set for task_set, in_split in _memberships(those) if in_split == split]
        )
    return EvalRun.objects.filter(found)


def tasks_of_runs(those: Those) -> Rows:
    run = those.rows.filter(task_set=OuterRef("task_set"), split=OuterRef("split"))
    members = TaskSetMember.objects.filter(Exists(run)).exclude(split=Split.SEALED)
    return Task.objects.filter(pk__in=members.values("task"))


# Buckets, which are no rows: a walk only begins at one


def decisions_of_bucket(those: Those) -> Rows:
    return Failure.objects.filter(project=those.project, bucket=those.row.key, current=True)


def trajectories_of_bucket(those: Those) -> Rows:
    return Trajectory.objects.filter(pk__in=decisions_of_bucket(those).values("trajectory"))


def tasks_of_bucket(those: Those) -> Rows:
    """Without the sealed ones, which nobody lists."""
    return Task.objects.filter(project=those.project, bucket=those.row.key).exclude(split=Split.SEALED)


def recurrences_of_bucket(those: Those) -> Rows:
    return Recurrence.objects.filter(project=those.project, bucket=those.row.key)


def claimants_of_bucket(those: Those) -> Rows:
    """Versions whose promotion claims that the bucket is rare with them."""
    watches = Watch.objects.filter(agent__project=those.project, claims__has_key=f"bucket:{those.row.key}")
    return Version.objects.filter(pk__in=watches.values("promotion__after"))


def recurrences_of_trajectories(those: Those) -> Rows:
    return Recurrence.objects.filter(project=those.project, trajectories__overlap=those.listed())


def trajectories_of_recurrences(those: Those) -> Rows:
    shown = those.rows.annotate(trajectory=Func(F("trajectories"), function="unnest", set_returning=True))
    return Trajectory.objects.filter(project=those.project, pk__in=shown.values("trajectory"))


# Environments and suites


def tasks_of_environments(those: Those) -> Rows:
    """Without the sealed ones, which nobody lists."""
    return Task.objects.filter(those.by("environment")).exclude(split=Split.SEALED)


def runs_of_suites(those: Those) -> Rows:
    """The evals that say how a version of the suite's agent did in it."""
    suite = those.rows.filter(task_set=OuterRef("task_set"), agent=OuterRef("version__agent"))
    return EvalRun.objects.filter(Exists(suite), split=Split.HELD_OUT)


def suites_of_runs(those: Those) -> Rows:
    run = those.rows.filter(task_set=OuterRef("task_set"), version__agent=OuterRef("agent"), split=Split.HELD_OUT)
    return Suite.objects.filter(Exists(run))


# Datasets


def _mixes(those: Those) -> dict[int, list[int]]:
    """The mixed datasets of the project, each with its parts, none of which is a mix."""
    if "mixes" not in those.kept:
        rows = Dataset.objects.filter(project=those.project, recipe__has_key="mix").values_list("pk", "recipe__mix")
        those.kept["mixes"] = {pk: [part["dataset"] for part in parts] for pk, parts in rows}
    found: dict[int, list[int]] = those.kept["mixes"]
    return found


def _containing(those: Those, parts: Collection[int]) -> set[int]:
    """The mixes that have one of these datasets."""
    return {pk for pk, own in _mixes(those).items() if not set(parts).isdisjoint(own)}


def _contained(those: Those) -> set[int]:
    mixes = _mixes(those)
    return {part for pk in those.listed() for part in mixes.get(pk, ())}


def _with_mixes(those: Those, rows: Rows) -> Rows:
    """The datasets, and the mixes of them."""
    parts = set(rows.values_list("pk", flat=True))
    return Dataset.objects.filter(pk__in=parts | _containing(those, parts))


def _with_parts(those: Those) -> Rows:
    """The datasets, and those that they are mixed of."""
    return Dataset.objects.filter(pk__in={*those.listed(), *_contained(those)})


def parts_of(those: Those) -> Rows:
    return Dataset.objects.filter(pk__in=_contained(those))


def mixes_of(those: Those) -> Rows:
    return Dataset.objects.filter(pk__in=_containing(those, those.listed()))


def datasets_of_tasks(those: Those) -> Rows:
    """Only a task to train on is in one."""
    sets = [task_set for task_set, split in _memberships(those) if split == Split.TRAIN]
    return _with_mixes(those, Dataset.objects.filter(task_set__in=sets))


def tasks_of_datasets(those: Those) -> Rows:
    sets = _with_parts(those).values("task_set")
    members = TaskSetMember.objects.filter(task_set__in=sets, split=Split.TRAIN)
    return Task.objects.filter(pk__in=members.values("task"))


def datasets_of_sets(those: Those) -> Rows:
    return _with_mixes(those, Dataset.objects.filter(those.by("task_set")))


def sets_of_datasets(those: Those) -> Rows:
    return TaskSet.objects.filter(pk__in=_with_parts(those).values("task_set"))


def datasets_of_runs(those: Those) -> Rows:
    return Dataset.objects.filter(project=those.project, recipe__eval_run__in=those.listed())


def runs_of_datasets(those: Those) -> Rows:
    keys = those.rows.order_by().values_list("recipe__eval_run", flat=True)
    return EvalRun.objects.filter(project=those.project, pk__in=[key for key in keys if isinstance(key, int)])


def datasets_of_trajectories(those: Those) -> Rows:
    """Those that show one of these few, or were collected from the eval that it is a rollout of."""
    runs = list(Result.objects.filter(those.by("trajectory")).values_list("run", flat=True))
    named = Q(recipe__eval_run__in=runs)
    for trace_id in those.rows.values_list("trace_id", flat=True):
        named |= Q(recipe__from_traces__contains=[trace_id])
    return Dataset.objects.filter(named, project=those.project)


def trajectories_of_datasets(those: Those) -> Rows:
    elements = _elements(KeyTransform("from_traces", "recipe"))
    shown = those.rows.filter(recipe__has_key="from_traces").annotate(trace=elements).values("trace")
    return Trajectory.objects.filter(project=those.project, trace_id__in=shown)


# Runs


def versions_of_runs(those: Those) -> Rows:
    kept = CheckpointVersion.objects.filter(those.by("run")).values("version")
    return either(Version, those.values("produced"), kept)


def runs_of_versions(those: Those) -> Rows:
    return TrainingRun.that_made(those.listed()).order_by()
