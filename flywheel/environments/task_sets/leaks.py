"""Leaks of a held-out part into training data, as pages and the API show them. The checks belong to the training room;
here they are read from the task set's side."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from django.db.models import F

from flywheel.agents.models import Version
from flywheel.core.evidence.compared_items import Item
from flywheel.core.evidence.contamination import BLOCKING, LEVELS, METHOD, alike
from flywheel.environments.ledger import Openings, openings_of
from flywheel.environments.models import Split, TaskSet


@dataclass(frozen=True, slots=True)
class Beside:
    """A dataset beside a held-out part: the verdict, what was found, and how often the part was opened."""

    task_set: TaskSet
    dataset: Any
    verdict: str
    report: dict[str, Any]
    openings: Openings

    @property
    def levels(self) -> list[dict[str, Any]]:
        """The number of held-out tasks at each level, for levels that any shows."""
        counts = self.report["counts"]
        return [
            {"label": label, "tasks": counts[level], "blocks": level in BLOCKING}
            for level, label in LEVELS.items()
            if counts[level]
        ]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [
            {**each, "label": LEVELS[each["level"]], "blocks": each["level"] in BLOCKING}
            for each in self.report["findings"]
        ]


def beside(checks: Iterable[Any]) -> list[Beside]:
    """The checks in the order in which they came."""
    checks = list(checks)
    opened = openings_of([check.task_set for check in checks])
    return [
        Beside(check.task_set, check.dataset, check.verdict, check.report, opened[check.task_set_id])
        for check in checks
    ]


def of_task_set(task_set: TaskSet, most: int) -> list[Beside]:
    """The newest datasets of the project beside this set."""
    rows = task_set.contamination_checks.filter(method=METHOD)
    return beside(rows.select_related("dataset", "task_set").order_by("-dataset_id")[:most])


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The training data of a version and of those that it comes from, beside what a set measures."""

    version: Version
    verdict: str
    """The worst of its datasets; `unchecked` where one was not compared yet, `none` where it learnt from none here."""
    blocked: list[str]
    """Measured tasks that stand in it: a score on them means nothing."""
    checks: list[Any]

    @property
    def is_invalid(self) -> bool:
        return bool(self.blocked)

    @property
    def datasets(self) -> list[str]:
        """Those that hold them."""
        return [str(check.dataset) for check in self.checks if check.blocked]

    @property
    def words(self) -> str:
        """Why its score says nothing; empty where it does."""
        count = len(self.blocked)
        tasks = f"{count} of these tasks" if count > 1 else "one of these tasks"
        return f"{self.version} was trained on {tasks} ({', '.join(self.datasets)})" if count else ""


def trained_on(versions: Iterable[Version], task_set: TaskSet) -> dict[int, TrainedOn]:
    """Return a TrainedOn per version key. Checks are made when datasets are built and versions evaluated, not here."""
    versions = list(versions)
    lines = learnt_from(versions)
    learnt: dict[int, set[int]] = {}
    every = Version.objects.filter(pk__in=set().union(*lines.values()))
    for made_by, rows in product(("produced_by", "checkpoint_versions__run"), ("dataset", "replay")):
        dataset_of = f"{made_by}__{rows}"
        for version, dataset in every.exclude(**{dataset_of: None}).values_list("pk", dataset_of):
            learnt.setdefault(version, set()).add(dataset)
    kept = task_set.contamination_checks.filter(method=METHOD, dataset__in=set().union(*learnt.values()))
    kept = kept.annotate(blocked=F("report__blocked")).select_related("dataset").defer("report")
    checks = {check.dataset_id: check for check in kept.order_by("dataset_id")}
    return {
        version.pk: _trained_on(version, set().union(*(learnt.get(key, set()) for key in lines[version.pk])), checks)
        for version in versions
    }


def _trained_on(version: Version, datasets: set[int], checks: Mapping[int, Any]) -> TrainedOn:
    own = [check for key, check in checks.items() if key in datasets]
    verdicts = {check.verdict for check in own} | ({"unchecked"} if len(own) < len(datasets) else set())
    verdict = next((each for each in ("contaminated", "unchecked", "warned", "clean") if each in verdicts), "none")
    return TrainedOn(version, verdict, sorted({task for check in own for task in check.blocked}), own)


ALIKE_AT_ONCE = 2_000
"""Members that a page compares with each other while somebody waits."""
ALIKE_SHOWN = 20


def inside(task_set: TaskSet) -> dict[str, Any]:
    """Requests of a set that repeat or nearly do: how many tasks were left out when it was frozen, how many are nearly
    another's (None where it is too large to look), and the pairs that are most alike."""
    frozen = task_set.project.audit.filter(action="environments.freeze", subject=str(task_set)).first()
    found: dict[str, Any] = {
        "left_out": frozen.data.get("duplicates", 0) if frozen else 0,
        "requests": None,
        "pairs": [],
    }
    if task_set.members.count() <= ALIKE_AT_ONCE:
        tasks = task_set.tasks.exclude(split=Split.SEALED).order_by("number").only("number", "prompt")
        pairs = alike([Item(str(task), task.prompt) for task in tasks])
        found |= {"requests": len(pairs), "pairs": pairs[:ALIKE_SHOWN]}
    return found


def learnt_from(versions: Iterable[Version]) -> dict[int, set[int]]:
    """By the key of each version: its own, and those of all that it comes from or that taught one of these."""
    found = {version.pk: set(line_of(version)) for version in versions}
    taught: dict[int, set[int]] = {}
    every = Version.objects.filter(pk__in=set().union(*found.values()))
    for teacher_of in ("produced_by__teacher", "checkpoint_versions__run__teacher"):
        for version, teacher in every.filter(**{f"{teacher_of}__isnull": False}).values_list("pk", teacher_of):
            taught.setdefault(version, set()).add(teacher)
    if taught:  # each is older than what it taught, so this comes to an end
        before = learnt_from(Version.objects.filter(pk__in=set().union(*taught.values())))
        for keys in found.values():
            for teacher in set().union(*(taught.get(key, set()) for key in keys)):
                keys |= before[teacher]
    return found


def line_of(version: Version) -> list[int]:
    """The keys of the version and of all that it comes from."""
    line: list[int] = []
    each: Version | None = version
    while each is not None:
        line.append(each.pk)
        each = each.parent
    return line
