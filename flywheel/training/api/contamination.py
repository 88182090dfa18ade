"""Datasets beside held-out parts, for programs."""

from django.http import HttpRequest
from ninja import Field, Router

from flywheel.accounts.access import Key
from flywheel.accounts.models import Scope
from flywheel.edge.answers import Ref
from flywheel.edge.schemas import Schema
from flywheel.environments.task_sets import leaks
from flywheel.evals.api.references import task_set_of
from flywheel.training.api.references import dataset_of
from flywheel.training.datasets import contamination_checks

router = Router(tags=["training"])

CHECKED_SHOWN = 200


class FindingOut(Schema):
    level: str
    """`task`, `source`, `content`, `request`, `passage` or `near`."""
    held_out: str
    """The held-out task."""
    train: str
    """The training task."""
    times: int
    """Training tasks that match."""
    shared: str
    """Text that both contain."""
    asked: str
    """The held-out request."""
    trained: str
    """The request of the training task."""
    likeness: float | None
    """Similarity from 0 to 1; null for levels that need none."""


class ContaminationOut(Schema):
    dataset: Ref
    task_set: Ref
    verdict: str
    """`clean`, `warned` (nothing that was found blocks) or `contaminated`."""
    opened: int = Field(alias="openings.times")
    """How often the held-out split was measured."""
    counts: dict[str, int] = Field(alias="report.counts")
    """Held-out tasks by level; `task`, `source` and `content` block."""
    blocked: list[str] = Field(alias="report.blocked")
    """Held-out tasks whose scores would mean nothing."""
    flagged: list[str] = Field(alias="report.flagged")
    """Held-out tasks with any finding."""
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
