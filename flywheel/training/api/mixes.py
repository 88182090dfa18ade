"""Mixing datasets, for programs."""

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.refusals import Refused
from flywheel.edge.schemas import Body, RefIn
from flywheel.training.api.datasets import DatasetOut
from flywheel.training.api.references import dataset_by_ref
from flywheel.training.datasets.dataset_mix import mix
from flywheel.training.models import Dataset

router = Router(tags=["training"])


class PartIn(Body):
    dataset: RefIn = Field(..., description="`name@version`, from a single environment.")
    weight: float = Field(1.0, gt=0, description="How often its rows occur, relative to the other weights.")


class MixIn(Body):
    name: str
    """An existing name makes the dataset's next version."""
    parts: list[PartIn] = Field(
        ..., description="Datasets of one kind; a run on the mix is compared on the first one's held-out tasks."
    )


@router.post("/datasets/mix", response={201: DatasetOut}, auth=Key(Scope.TRAIN))
def mix_datasets(request: HttpRequest, asked: MixIn) -> Status[Dataset]:
    """Mix datasets of several environments into one, by weight. The same parts and weights give the same dataset."""
    parts: list[tuple[Dataset, float]] = []
    for number, part in enumerate(asked.parts):
        found = dataset_by_ref(request, part.dataset)
        if found is None:
            raise Refused("name one, name@version", field=f"parts.{number}.dataset")
        parts.append((found, part.weight))
    return Status(201, mix(name=asked.name, parts=parts, actor=keyed(request).actor))
