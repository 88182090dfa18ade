"""Datasets beside held-out parts, for programs."""

from django.http import HttpRequest
from ninja import Field, Router, Schema

from flywheel.accounts.access import Key
from flywheel.accounts.models import Scope
from flywheel.edge.answers import Ref
from flywheel.environments.task_sets import leaks
from flywheel.evals.api.references import task_set_of
from flywheel.training.api.references import dataset_of
from flywheel.training.datasets import contamination_checks

router = Router(tags=["training"])

CHECKED_SHOWN = 200


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
    dataset: Ref
    task_set: Ref
    verdict: str
    """`clean`, `warned` (what was found does not block) or `contaminated`."""
    opened: int = Field(alias="openings.times")
    """How often the held-out part was measured."""
    counts: dict[str, int] = Field(alias="report.counts")
    """Held-out tasks by level; `task`, `source` and `content` block."""
    blocked: list[str] = Field(alias="report.blocked")
    flagged: list[str] = Field(alias="report.flagged")
    findings: list[FindingOut]
    """The first 50 of each level."""


@router.get("/datasets/{name}/{version}/contamination", response=list[ContaminationOut], auth=Key(Scope.READ))
def list_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """Compare the dataset with every held-out part of the project. Comparisons too large to make now are left out."""
    return leaks.beside(contamination_checks.at_hand(dataset_of(request, name, version)))


@router.post("/datasets/{name}/{version}/contamination", response=list[ContaminationOut], auth=Key(Scope.TRAIN))
def check_dataset_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """Compare the dataset with every held-out part of the project, including those not checked yet, however long it
    takes."""
    return leaks.beside(contamination_checks.check_all(dataset_of(request, name, version)))


@router.get("/task-sets/{name}/{int:version}/contamination", response=list[ContaminationOut], auth=Key(Scope.READ))
def list_task_set_contamination(request: HttpRequest, name: str, version: int) -> list[leaks.Beside]:
    """List the newest datasets that were checked against this set's held-out part."""
    return leaks.of_task_set(task_set_of(request, f"{name}@{version}"), CHECKED_SHOWN)
