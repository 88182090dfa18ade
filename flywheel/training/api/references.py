"""What a request names, found in its project, and pages of what is listed."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import keyed
from flywheel.agents.models import Version
from flywheel.agents.references import UnknownReference, find_version
from flywheel.edge.numbers import number
from flywheel.edge.paging import BadCursor, keyset
from flywheel.environments.models import TaskSet
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.evals.models import EvalRun
from flywheel.training.models import Dataset

LIST_MAX = 200


class ListQuery(Schema):
    limit: int = Field(50, ge=1, le=LIST_MAX)
    cursor: str = ""


def page_of(rows: Any, asked: ListQuery) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


def version_of(request: HttpRequest, ref: str, name: str) -> Version:
    try:
        return find_version(keyed(request).project, ref)
    except UnknownReference as error:
        raise HttpError(422, f"{name}: {error}") from None


def task_set_of(request: HttpRequest, ref: str) -> TaskSet:
    try:
        return find_task_set(keyed(request).project, ref)
    except UnknownReference as error:
        raise HttpError(422, f"task_set: {error}") from None


def eval_of(request: HttpRequest, number: int | None) -> EvalRun | None:
    if number is None:
        return None
    found = EvalRun.objects.filter(project=keyed(request).project, pk=number).first()
    if found is None:
        raise HttpError(422, f"rollouts: there is no eval {number}")
    return found


def dataset_of(request: HttpRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.filter(project=keyed(request).project).select_related("task_set", "created_by")
    found = rows.filter(name=name, version=version).first()
    if found is None:
        raise HttpError(404, f"there is no dataset {name[:100]}@{version}")
    return found


def dataset_by_ref(request: HttpRequest, ref: str) -> Dataset | None:
    if not ref:
        return None
    name, _, text = ref.partition("@")
    version = number(text)
    if version is None:
        raise HttpError(422, f"dataset: {ref[:100]!r} is not of the form name@version")
    try:
        return dataset_of(request, name, version)
    except HttpError as error:
        raise HttpError(422, f"dataset: {error}") from None
