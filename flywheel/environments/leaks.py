"""What training data has of a held-out part, as pages and the API show it. The checks belong to the training room; from
here they are read from the task set's side."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flywheel.agents.models import Version
from flywheel.core.contamination import BLOCKING, LEVELS, METHOD, Item, alike
from flywheel.environments.ledger import Openings, openings_of
from flywheel.environments.models import TaskSet


@dataclass(frozen=True, slots=True)
class Found:
    """How many held-out tasks show one level."""

    label: str
    tasks: int
    blocks: bool


@dataclass(frozen=True, slots=True)
class Beside:
    """A dataset beside a held-out part: the verdict, what was found, and how often the part was opened."""

    task_set: TaskSet
    dataset: Any
    verdict: str
    report: dict[str, Any]
    openings: Openings

    @property
    def found(self) -> list[Found]:
        counts = self.report["counts"]
        return [Found(LEVELS[level], counts[level], level in BLOCKING) for level in LEVELS if counts[level]]

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


def of_version(version: Version, task_set: TaskSet) -> list[Beside]:
    """What the version and those that it comes from learnt from, beside this set, as far as it was checked."""
    rows = task_set.contamination_checks.filter(method=METHOD, dataset__training_runs__produced__in=line_of(version))
    return beside(rows.select_related("dataset", "task_set").order_by("dataset_id").distinct())


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
        tasks = task_set.tasks.order_by("number").only("number", "prompt")
        pairs = alike([Item(str(task), task.prompt) for task in tasks])
        found |= {"requests": len(pairs), "pairs": pairs[:ALIKE_SHOWN]}
    return found


def line_of(version: Version) -> list[int]:
    """The keys of the version and of all that it comes from."""
    line: list[int] = []
    each: Version | None = version
    while each is not None:
        line.append(each.pk)
        each = each.parent
    return line
