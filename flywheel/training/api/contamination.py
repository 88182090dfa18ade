"""Datasets beside held-out parts, for programs."""

from django.http import HttpRequest
from ninja import Router, Schema

from flywheel.accounts.access import Key
from flywheel.accounts.models import Scope
from flywheel.environments.task_sets import leaks
from flywheel.training.api.references import LIST_MAX, dataset_of, task_set_of
from flywheel.training.datasets import contamination_checks

router = Router(tags=["training"])


class FindingOut(Schema):
    level: str
    held_out: str
    train: str
    times: int
    """Training tasks that show it."""
    shared: str
    asked: str
    trained: str
    likeness: float | None


class ContaminationOut(Schema):
    dataset: str
    task_set: str
    verdict: str
    """`clean`, `warned` (what was found does not block) or `contaminated`."""
    opened: int
    """How often the held-out part was measured."""
    counts: dict[str, int]
    """Held-out tasks by level; `task`, `source` and `content` block."""
    blocked: list[str]
    flagged: list[str]
    findings: list[FindingOut]
    """The first 50 of each level."""

    @staticmethod
    def resolve_dataset(row: leaks.Beside) -> str:
        return str(row.dataset)

    @staticmethod
    def resolve_task_set(row: leaks.Beside) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_opened(row: leaks.Beside) -> int:
        return row.openings.times

    @staticmethod
    def resolve_counts(row: leaks.Beside) -> dict[str, int]:
        return dict(row.report["counts"])

    @staticmethod
    def resolve_blocked(row: leaks.Beside) -> list[str]:
        return list(row.report["blocked"])

    @staticmethod
    def resolve_flagged(row: leaks.Beside) -> list[str]:
        return list(row.report["flagged"])


@router.get(
    "/datasets/{name}/{version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.READ),
    operation_id="list_dataset_contamination",
)
def list_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The dataset beside every held-out part of the project; those that are too large to check now are left out."""
    return leaks.beside(contamination_checks.shown(dataset_of(request, name, version)))


@router.post(
    "/datasets/{name}/{version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.TRAIN),
    operation_id="check_dataset_contamination",
)
def check_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The same, with all that was not checked yet, however long it takes."""
    return leaks.beside(contamination_checks.check_all(dataset_of(request, name, version)))


@router.get(
    "/task-sets/{name}/{int:version}/contamination",
    response=list[ContaminationOut],
    auth=Key(Scope.READ),
    operation_id="list_task_set_contamination",
)
def list_task_set_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """The newest datasets that were checked beside the held-out part of this set."""
    return leaks.of_task_set(task_set_of(request, f"{name}@{version}"), LIST_MAX)
