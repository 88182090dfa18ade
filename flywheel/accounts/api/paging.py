"""Lists, page by page."""

from typing import Any

from ninja import Field, Schema
from ninja.errors import HttpError

from flywheel.edge.paging import BadCursor, keyset


class Paged(Schema):
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str = ""


def page_of(rows: Any, asked: Paged) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}
