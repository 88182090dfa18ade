"""Datasets for programs: build one, mix several, list them, read the rows."""

import json
from datetime import datetime
from itertools import islice
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import Refused
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.api.references import dataset_by_ref, dataset_of, eval_of
from flywheel.training.datasets import dataset_builder as datasets
from flywheel.training.datasets.dataset_mix import mix
from flywheel.training.models import Dataset

router = Router(tags=["training"])

ROWS_MAX = 1000


class RowsQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    """Position of the first row, counted from 0."""
    limit: int = Field(ROWS_MAX, ge=1, le=ROWS_MAX)
    """Rows per page."""


class DatasetIn(Body):
    name: str
    """An existing name makes the dataset's next version."""
    kind: Dataset.Kind
    """`sft` for demonstrations, `pairs` for preference pairs, `tasks` for prompts to practise, `thumbs` for answers
    that are each called good or bad, or `scored` for the attempts of `rollouts` with their scores."""
    task_set: RefIn
    """`name@version`; only its train split is used."""
    version: RefIn = ""
    """`agent@number` whose prompt, tools and call format the rows use; if empty, the live version of the environment's
    agent."""
    rollouts: int | None = None
    """Id of a finished eval on the set's train split, whose attempts are also used."""


class DatasetOut(Schema):
    name: str
    version: int
    kind: str
    origin: str
    """`task_set`, `trajectories` or `upload`."""
    task_set: Ref | None
    """Null if the rows come from elsewhere; any set can then measure a version trained on them."""
    card: dict[str, str]
    """Licence, source, language and description of an uploaded dataset."""
    digest: str
    """SHA-256 of the rows."""
    rows: int
    """Number of rows."""
    recipe: dict[str, Any]
    """Settings and inputs that the rows were built from."""
    created_by: Ref
    created_at: datetime


class Rows(Schema):
    items: list[dict[str, Any]]
    next: int | None
    """`start` of the next page; null on the last page."""


@router.get("/datasets", response=page_of(DatasetOut, "Datasets"), auth=Key(Scope.READ))
def list_datasets(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List datasets, newest first."""
    rows = Dataset.objects.filter(project=keyed(request).project)
    return paginate(rows.select_related("task_set", "created_by"), query)


@router.post("/datasets", response={201: DatasetOut}, auth=Key(Scope.TRAIN))
def build_dataset(request: HttpRequest, asked: DatasetIn) -> Status[Dataset]:
    """Build a dataset of one kind from a task set's train split. The same rows give the same dataset."""
    made = datasets.build(
        name=asked.name,
        kind=asked.kind,
        task_set=task_set_of(request, asked.task_set),
        actor=keyed(request).actor,
        version=version_of(request, asked.version) if asked.version else None,
        rollouts=eval_of(request, asked.rollouts),
    )
    return Status(201, made)


@router.get("/datasets/{name}/{version}", response=DatasetOut, auth=Key(Scope.READ))
def get_dataset(request: HttpRequest, name: str, version: int) -> Dataset:
    """Return one version of a dataset, without its rows."""
    return dataset_of(request, name, version)


@router.get("/datasets/{name}/{version}/rows", response=Rows, auth=Key(Scope.READ))
def list_dataset_rows(request: HttpRequest, name: str, version: int, asked: Query[RowsQuery]) -> dict[str, Any]:
    """Return the rows in order, from `start` on. 410 if the stored file of the rows is lost."""
    found = dataset_of(request, name, version)
    following = asked.start + asked.limit
    try:
        with datasets.open_rows(found) as file:
            items = [json.loads(line) for line in islice(file, asked.start, following)]
    except FileNotFoundError:
        raise HttpError(410, f"the storage has lost the rows of {found}; make it again from {found.place}") from None
    return {"items": items, "next": following if following < found.rows else None}


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
