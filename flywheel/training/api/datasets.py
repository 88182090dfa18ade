"""Datasets for programs: build one, list them, read the rows."""

import json
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body
from flywheel.training.api.references import ListQuery, dataset_of, eval_of, page_of, task_set_of
from flywheel.training.datasets import dataset_builder as datasets
from flywheel.training.models import Dataset

router = Router(tags=["training"])

ROWS_MAX = 1000


class RowsQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    limit: int = Field(ROWS_MAX, ge=1, le=ROWS_MAX)


class DatasetIn(Body):
    name: str
    kind: Dataset.Kind
    task_set: str
    rollouts: int | None = None
    """A finished eval run on the set's train split, whose attempts are used too."""


class DatasetOut(Schema):
    name: str
    version: int
    kind: str
    task_set: str
    digest: str
    rows: int
    recipe: dict[str, Any]
    created_by: str
    created_at: datetime

    @staticmethod
    def resolve_task_set(row: Dataset) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_created_by(row: Dataset) -> str:
        return row.created_by.username


class Datasets(Schema):
    items: list[DatasetOut]
    next: str | None


class Rows(Schema):
    items: list[dict[str, Any]]
    next: int | None
    """`start` of the next page, or null."""


@router.get("/datasets", response=Datasets, auth=Key(Scope.READ), operation_id="list_datasets")
def list_datasets(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """Newest first."""
    rows = Dataset.objects.filter(project=keyed(request).project)
    return page_of(rows.select_related("task_set", "created_by"), asked)


@router.post("/datasets", response={201: DatasetOut}, auth=Key(Scope.TRAIN), operation_id="build_dataset")
def build_dataset(request: HttpRequest, asked: DatasetIn) -> Status[Dataset]:
    """Build the rows of a kind from a task set's train split; the same rows are the same dataset."""
    task_set = task_set_of(request, asked.task_set)
    try:
        made = datasets.build(
            name=asked.name,
            kind=asked.kind,
            task_set=task_set,
            actor=keyed(request).actor,
            rollouts=eval_of(request, asked.rollouts),
        )
    except datasets.CannotBuild as error:
        raise HttpError(422, str(error)) from None
    return Status(201, made)


@router.get("/datasets/{name}/{version}", response=DatasetOut, auth=Key(Scope.READ), operation_id="get_dataset")
def get_dataset(request: HttpRequest, name: str, version: int) -> Dataset:
    return dataset_of(request, name, version)


@router.get("/datasets/{name}/{version}/rows", response=Rows, auth=Key(Scope.READ), operation_id="list_dataset_rows")
def list_dataset_rows(request: HttpRequest, name: str, version: int, asked: Query[RowsQuery]) -> dict[str, Any]:
    """The rows in order from `start` on."""
    found = dataset_of(request, name, version)
    try:
        items = list(_rows(found, asked.start, asked.limit))
    except FileNotFoundError:
        raise HttpError(
            410, f"the storage has lost the rows of {found}; build it again from {found.task_set}"
        ) from None
    following = asked.start + asked.limit
    return {"items": items, "next": following if following < found.rows else None}


def _rows(found: Dataset, start: int, limit: int) -> Iterator[dict[str, Any]]:
    with datasets.open_rows(found) as file:
        for line in islice(file, start, start + limit):
            yield json.loads(line)
