"""Who opened the held-out and the sealed part of a task set, and how often: the one place that writes it.

Each measurement is a chance to choose by luck, and each look teaches a person what the tasks are. So both are kept, and
stand beside every verdict that rests on the set.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.environments.models import Environment, Opening, Split, Task, TaskSet, TaskSetMember

BUDGET = 20
"""Measurements of one held-out part after which its numbers are worth less, and fresh tasks more: with an error of 5%
at first, the twentieth may spend 0.008% when openings share it as 1/k², so hardly anything can be shown any more."""
MEASUREMENTS = (Opening.Kind.EVAL, Opening.Kind.TRAINING)


@transaction.atomic
def opened(
    *,
    task_set: TaskSet,
    kind: Opening.Kind,
    subject: object,
    actor: Actor | None = None,
    times: int | None = None,
    anew: bool = True,
) -> None:
    """Note that it was opened once more; `times` for what knows itself how often it did, as an eval that goes on.

    Not `anew`: by a page that is open and asks again by itself, which is no look more.
    """
    row, is_new = Opening.objects.get_or_create(
        task_set=task_set,
        kind=kind,
        subject=str(subject)[:100],
        actor=actor.user if actor and not actor.is_command else None,
        defaults={"times": times or 1},
    )
    if anew and not is_new:
        changes = {"times": F("times") + 1 if times is None else times, "last_at": timezone.now()}
        Opening.objects.filter(pk=row.pk).update(**changes)


def looked(tasks: Collection[Task], actor: Actor, kind: Opening.Kind = Opening.Kind.PAGE) -> None:
    """Note that somebody read these tasks: in every set where one of them is measured, in a row of their own."""
    for split, subject in ((Split.HELD_OUT, "its tasks"), (Split.SEALED, "its sealed tasks")):
        held = TaskSetMember.objects.filter(task__in=tasks, split=split).order_by()
        _looked(set(held.values_list("task_set", flat=True).distinct()), kind, subject, actor)


def _looked(sets: set[int], kind: Opening.Kind, subject: str, actor: Actor) -> None:
    row = {"kind": kind, "subject": subject, "actor": actor.user}
    with transaction.atomic():
        known = Opening.objects.filter(task_set__in=sets, **row)
        seen = set(known.values_list("task_set", flat=True))
        known.update(times=F("times") + 1, last_at=timezone.now())
        new = [Opening(task_set_id=task_set, **row) for task_set in sets - seen]
        Opening.objects.bulk_create(new, ignore_conflicts=True)


@dataclass(frozen=True, slots=True)
class Openings:
    """Measurements of a held-out part's tasks, in whatever set, and the number of people who saw them."""

    times: int
    """Measurements of a task, in the mean: those of another set count by the share of these tasks that it has."""
    evals: int
    runs: int
    """Of this very set."""
    people: int
    elsewhere: int = 0
    """Measurements of other sets that have some of these tasks, such as earlier versions."""
    shared: int = 0
    """How many of these tasks they have."""
    tasks: int = 0

    @property
    def is_spent(self) -> bool:
        return self.times >= BUDGET

    @property
    def budget(self) -> int:
        return BUDGET

    @property
    def words(self) -> str:
        """Where the count comes from."""
        told = [(self.evals, "eval"), (self.runs, "training run")]
        by = [f"{count} {word}{'s' if count != 1 else ''}" for count, word in told if count]
        looked = f"{self.people} {'person' if self.people == 1 else 'people'} looked into it" if self.people else ""
        before = f"{self.elsewhere} time{'s' if self.elsewhere != 1 else ''} in other sets" if self.elsewhere else ""
        before += f", which have {self.shared} of these {self.tasks} tasks" if before else ""
        first = "by " + " and ".join(by) if by else "" if before else "not measured yet"
        return "; ".join(filter(None, [first, before, looked]))


def openings(task_set: TaskSet) -> Openings:
    return openings_of([task_set])[task_set.pk]


def openings_of(task_sets: Sequence[TaskSet]) -> dict[int, Openings]:
    """Return each set's openings, by its key; three statements, whatever the number of sets."""
    projects = {task_set.project_id for task_set in task_sets}
    rows = Opening.objects.filter(task_set__project__in=projects).exclude(kind=Opening.Kind.SEALED).order_by()
    opened: dict[int, Any] = {row["task_set"]: row for row in rows.values("task_set").annotate(**_COUNTS)}
    people: dict[int, set[int | None]] = {}
    for task_set, actor in rows.filter(kind__in=LOOKS).values_list("task_set", "actor").distinct():
        people.setdefault(task_set, set()).add(actor)
    patterns = _patterns([task_set.pk for task_set in task_sets], opened)
    return {task_set.pk: _summed(task_set.pk, patterns.get(task_set.pk, []), opened, people) for task_set in task_sets}


LOOKS = (Opening.Kind.PAGE, Opening.Kind.EXPORT)
_COUNTS = {
    "measured": Coalesce(Sum("times", filter=Q(kind__in=MEASUREMENTS)), 0),
    "evals": Count("pk", filter=Q(kind=Opening.Kind.EVAL)),
    "runs": Count("pk", filter=Q(kind=Opening.Kind.TRAINING)),
}
_PATTERNS = """
WITH page AS (
    SELECT task_set_id, task_id FROM environments_tasksetmember WHERE split = 'held_out' AND task_set_id = ANY(%s)
), told AS (
    SELECT task_id, array_agg(task_set_id ORDER BY task_set_id) AS sets FROM environments_tasksetmember
    WHERE split = 'held_out' AND task_set_id = ANY(%s) AND task_id IN (SELECT task_id FROM page) GROUP BY task_id
)
SELECT page.task_set_id, coalesce(told.sets, ARRAY[]::bigint[]), count(*) FROM page LEFT JOIN told USING (task_id)
GROUP BY 1, 2
"""
Pattern = tuple[list[int], int]
"""Opened sets, and how many tasks of one set stand in exactly these."""


def _patterns(task_sets: Sequence[int], opened: Collection[int]) -> dict[int, list[Pattern]]:
    """Count each set's tasks by sets they are in: versions share nearly all, so there are few, and time is linear."""
    found: dict[int, list[Pattern]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_PATTERNS, [list(task_sets), list(opened)])
        for task_set, sets, count in cursor.fetchall():
            found.setdefault(task_set, []).append((sets, count))
    return found


def _summed(
    own: int,
    patterns: Sequence[Pattern],
    opened: Mapping[int, Mapping[str, int]],
    people: Mapping[int, set[int | None]],
) -> Openings:
    tasks = sum(count for _, count in patterns)
    others = {key for sets, _ in patterns for key in sets if key != own}
    here = opened.get(own, {"measured": 0, "evals": 0, "runs": 0})
    measured = sum(count * opened[key]["measured"] for sets, count in patterns for key in sets if key != own)
    elsewhere = {key for key in others if opened[key]["measured"]}
    return Openings(
        times=here["measured"] + (ceil(measured / tasks) if tasks else 0),
        evals=here["evals"],
        runs=here["runs"],
        people=len(set().union(*(people.get(key, set()) for key in {own, *others}))),
        elsewhere=sum(opened[key]["measured"] for key in elsewhere),
        shared=sum(count for sets, count in patterns if elsewhere.intersection(sets)),
        tasks=tasks,
    )


def sealed_openings(task_set: TaskSet) -> list[Opening]:
    """List openings of its sealed part, and of other sets that have one of its sealed sources, the first one first."""
    environment = task_set.environment_version.environment_id
    sealed = TaskSetMember.objects.filter(split=Split.SEALED, task__environment=environment)
    sources = sealed.filter(task_set=task_set).values("task__cluster")
    shared = sealed.filter(task__cluster__in=sources).values("task_set")
    return list(Opening.objects.filter(kind=Opening.Kind.SEALED, task_set__in=shared).order_by("pk"))


def opened_clusters(environment: Environment) -> set[str]:
    """The sources of its sealed tasks that a final comparison has asked: these can surprise nobody any more."""
    rows = TaskSetMember.objects.filter(
        split=Split.SEALED, task__environment=environment, task_set__openings__kind=Opening.Kind.SEALED
    )
    return set(rows.order_by().values_list("task__cluster", flat=True).distinct())
