"""Answers of the API: one page of a list, references in place of rows.

class CandidateOut(Schema):
    version: Ref  # str(row.version), "agent@3"

@router.get("/candidates", response=page_of(CandidateOut), auth=Key(Scope.READ))
def list_candidates(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    return paginate(rows, query)
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from django.db.models import QuerySet
from ninja import Field
from pydantic import BeforeValidator

from flywheel.edge.paging import keyset
from flywheel.edge.schemas import Schema, made

Ref = Annotated[str, BeforeValidator(lambda row: row if row is None else str(row))]
"""A row by its name: `agent@3`, `set@2`, a user's name. None stays None in `Ref | None`."""

TraceId = Annotated[str, BeforeValidator(lambda row: getattr(row, "trace_id", row))]
"""A trajectory by its trace id."""
Number = Annotated[int, BeforeValidator(lambda row: getattr(row, "number", row))]
"""A version or a task by its number, where the answer says beside it whose it is."""


class JobOut(Schema):
    """Fields that every job's answer has."""

    id: int
    state: str
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    done: int
    total: int | None
    """How much there is to do, in the unit of `done`; null while unknown."""
    error: str
    """Why the job failed; empty otherwise."""
    created_at: datetime


class EstimateOut(Schema):
    mean: float | None
    """Null if nothing was scored, never 0."""
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    n: int
    """How many observations it is estimated from."""
    reason: str
    """Why there is no interval; empty if there is one."""


class ListQuery(Schema):
    """The parameters that every list takes."""

    limit: int = Field(50, ge=1, le=200)
    """Items per page."""
    cursor: str = ""
    """`next` of the previous page; empty for the first page."""


@cache
def page_of(item: type[Schema], name: str = "") -> type[Schema]:
    """The schema of one page of a list of `item`: `CandidatePage` of `CandidateOut`, unless `name` says otherwise.

    `next` is the cursor of the following page, null at the end.
    """
    name = name or f"{item.__name__.removesuffix('Out')}Page"
    following = Field(description="Cursor of the next page; null on the last page.")
    return made(name, Schema, items=(list[item], ...), next=(str | None, following))  # type: ignore[valid-type]


def cut_page(rows: QuerySet[Any], limit: int, key: str) -> dict[str, Any]:
    """The first `limit` of ordered `rows`, and the `key` of the last of them where there are more."""
    items = list(rows[: limit + 1])
    return {"items": items[:limit], "next": getattr(items[limit - 1], key) if len(items) > limit else None}


def paginate(
    rows: QuerySet[Any],
    query: ListQuery,
    *,
    keys: tuple[str, ...] = ("id",),
    read: Callable[[list[Any]], Mapping[Any, Any]] | None = None,
) -> dict[str, Any]:
    """The page of `rows` that `query` names, newest first by `keys`; `read` as in `keyset`. Raises BadCursor (400)."""
    page = keyset(rows, cursor=query.cursor, limit=query.limit, keys=keys, read=read)
    return {"items": page.items, "next": page.next_cursor or None}
