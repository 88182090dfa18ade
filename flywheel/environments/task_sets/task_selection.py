"""Which of an environment's tasks a page shows, and which of them would be frozen as they are chosen there."""

from collections.abc import Mapping

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from flywheel.environments import ledger
from flywheel.environments.models import Environment, Split, Task, TaskSetMember
from flywheel.environments.task_sets.frozen_sets import SEALED_SOURCES

FILTERS = ("split", "bucket", "synthetic", "proved", "fresh", "retired")


def chosen_of(asked: Mapping[str, str]) -> dict[str, str]:
    """The filters of an address or of a form; empty where there is none."""
    return {name: asked.get(name, "") for name in FILTERS}


def chosen_tasks(row: Environment, chosen: Mapping[str, str]) -> QuerySet[Task]:
    """The environment's tasks under these filters; sealed ones too where no split is chosen."""
    tasks = row.tasks.filter(retired_at__isnull=not chosen["retired"])
    if chosen["split"] in Split.values:
        tasks = tasks.filter(split=chosen["split"])
    if chosen["bucket"]:
        tasks = tasks.filter(bucket="" if chosen["bucket"] == "none" else chosen["bucket"])
    if chosen["proved"] in ("yes", "no"):
        tasks = tasks.filter(is_proved=chosen["proved"] == "yes")
    if chosen["synthetic"] in ("no", "only"):
        tasks = tasks.filter(is_synthetic=chosen["synthetic"] == "only")
    return fresh(tasks) if chosen["fresh"] else tasks


def fresh(tasks: QuerySet[Task]) -> QuerySet[Task]:
    """Those that stand in no set yet."""
    return tasks.exclude(Exists(TaskSetMember.objects.filter(task=OuterRef("pk"))))


def to_freeze(row: Environment, tasks: QuerySet[Task]) -> QuerySet[Task]:
    """Select those fit for a set: proved and in use; sealed ones of enough sources to show a gain, or opened."""
    usable = tasks.filter(is_proved=True, retired_at=None).exclude(split=Split.SET_ASIDE)
    is_sealed = Q(split=Split.SEALED) & ~Q(cluster__in=ledger.opened_clusters(row))
    if usable.filter(is_sealed).order_by().values("cluster").distinct().count() < SEALED_SOURCES:
        usable = usable.exclude(is_sealed)
    return usable.order_by("number")


def splits_of(tasks: QuerySet[Task]) -> list[tuple[str, int]]:
    """Count the tasks of each split that has any, in the order of splits."""
    counts = dict(tasks.order_by().values_list("split").annotate(count=Count("pk")))
    return [(str(split.label).lower(), counts[split]) for split in Split if counts.get(split)]
