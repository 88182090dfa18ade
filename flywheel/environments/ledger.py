"""Who opened the held-out and the sealed part of a task set, and how often: the one place that writes it.

Each measurement is a chance to choose by luck, and each look teaches a person what the tasks are. So both are kept, and
stand beside every verdict that rests on the set.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Count, F, Q, Sum
from django.utils import timezone

from flywheel.accounts.models import User
from flywheel.environments.ledger_models import Opening
from flywheel.environments.models import MEASURED, Environment, Split, Task, TaskSet, TaskSetMember

BUDGET = 20
"""Measurements of one held-out part after which its numbers are worth less, and fresh tasks more: with an error of 5 %
at first, the twentieth may spend 0.008 % when openings share it as 1/k², so hardly anything can be shown any more."""
MEASUREMENTS = (Opening.Kind.EVAL, Opening.Kind.TRAINING)


@transaction.atomic
def opened(
    *,
    task_set: TaskSet,
    kind: Opening.Kind,
    subject: object,
    actor: User | None = None,
    times: int | None = None,
    anew: bool = True,
) -> None:
    """Note that it was opened once more; `times` for what knows itself how often it did, as an eval that goes on.

    Not `anew`: by a page that is open and asks again by itself, which is no look more.
    """
    row, is_new = Opening.objects.get_or_create(
        task_set=task_set, kind=kind, subject=str(subject)[:100], actor=actor, defaults={"times": times or 1}
    )
    if anew and not is_new:
        changes = {"times": F("times") + 1 if times is None else times, "last_at": timezone.now()}
        Opening.objects.filter(pk=row.pk).update(**changes)


def looked(tasks: Collection[Task], actor: User, kind: Opening.Kind = Opening.Kind.PAGE) -> None:
    """Note that somebody read these tasks: in every set where one of them is measured, in a row of their own."""
    held = TaskSetMember.objects.filter(task__in=tasks, split__in=MEASURED).order_by()
    sets = set(held.values_list("task_set", flat=True).distinct())
    row = {"kind": kind, "subject": "its tasks", "actor": actor}
    with transaction.atomic():
        known = Opening.objects.filter(task_set__in=sets, **row)
        seen = set(known.values_list("task_set", flat=True))
        known.update(times=F("times") + 1, last_at=timezone.now())
        new = [Opening(task_set_id=task_set, **row) for task_set in sets - seen]
        Opening.objects.bulk_create(new, ignore_conflicts=True)


@dataclass(frozen=True, slots=True)
class Openings:
    """How often a held-out part was measured, and how many people saw its tasks or rollouts."""

    times: int
    evals: int
    runs: int
    people: int

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
        return "; ".join(filter(None, ["by " + " and ".join(by) if by else "not measured yet", looked]))


def openings(task_set: TaskSet) -> Openings:
    return openings_of([task_set])[task_set.pk]


def openings_of(task_sets: Sequence[TaskSet]) -> dict[int, Openings]:
    """Of each set, by its key."""
    looked = Q(kind__in=[Opening.Kind.PAGE, Opening.Kind.EXPORT])
    rows = (
        Opening.objects.filter(task_set__in=task_sets)
        .order_by()
        .values("task_set")
        .annotate(
            measured=Sum("times", filter=Q(kind__in=MEASUREMENTS)),
            evals=Count("pk", filter=Q(kind=Opening.Kind.EVAL)),
            runs=Count("pk", filter=Q(kind=Opening.Kind.TRAINING)),
            people=Count("actor", filter=looked, distinct=True),
        )
    )
    found = {row["task_set"]: Openings(row["measured"] or 0, row["evals"], row["runs"], row["people"]) for row in rows}
    return {task_set.pk: found.get(task_set.pk, Openings(0, 0, 0, 0)) for task_set in task_sets}


def sealed_openings(task_set: TaskSet) -> list[Opening]:
    """Of its sealed part, the first one first; those of other sets too that have one of its sealed tasks."""
    sealed = TaskSetMember.objects.filter(split=Split.SEALED)
    shared = sealed.filter(task__in=sealed.filter(task_set=task_set).values("task")).values("task_set")
    return list(Opening.objects.filter(kind=Opening.Kind.SEALED, task_set__in=shared).order_by("pk"))


def opened_clusters(environment: Environment) -> set[str]:
    """The sources of its sealed tasks that a final comparison has asked: these can surprise nobody any more."""
    rows = TaskSetMember.objects.filter(
        split=Split.SEALED,
        task__environment=environment,
        task_set__openings__kind=Opening.Kind.SEALED,
    )
    return set(rows.order_by().values_list("task__cluster", flat=True).distinct())
