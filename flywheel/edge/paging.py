"""Lists by keyset: a page costs the same at any depth, and rows that arrive meanwhile shift nothing.

    page = keyset(queryset, cursor=request.GET.get("cursor", ""), limit=50, keys=("started_at", "id"))

Rows come in descending order of `keys`, the last of which is unique. A cursor holds the keys of the row where a page
ended, and the number of rows before it, for the words `51–100`.

Where the rows are wide and a filter may have to pass over many of them, the page is found by its keys alone, which an
index can answer that holds what is filtered by, and `read` then reads its rows.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, QueryDict

from flywheel.edge.refusals import Unreadable

M = TypeVar("M", bound=Model)

EXACT_UP_TO = 10_000
"""Longer lists are said to be about so long, as the planner thinks."""
CHEAP = 5_000.0
"""The planner's cost of rows that are counted at once: a few milliseconds."""
AHEAD = 250
"""Rows that are counted on the way where a page is found by its keys."""


class BadCursor(Unreadable):
    """The cursor is none of ours."""


@dataclass(slots=True)
class Page(Generic[M]):
    items: list[M]
    before: int = 0
    """How many rows came before this page."""
    next_cursor: str = ""
    previous_cursor: str = ""
    total: int | None = None
    about: bool = False
    query: QueryDict = field(default_factory=QueryDict)
    """The parameters that the links of the pager keep."""

    @property
    def first(self) -> int:
        return self.before + 1

    @property
    def last(self) -> int:
        return self.before + len(self.items)

    @property
    def next(self) -> str:
        return self._address(self.next_cursor)

    @property
    def previous(self) -> str:
        return self._address(self.previous_cursor)

    def _address(self, cursor: str) -> str:
        if not cursor:
            return ""
        parameters = self.query.copy()
        parameters["cursor"] = cursor
        return f"?{parameters.urlencode()}"


def keyset(
    rows: QuerySet[M],
    *,
    cursor: str = "",
    limit: int = 50,
    keys: tuple[str, ...] = ("id",),
    query: QueryDict | None = None,
    read: Callable[[list[Any]], Mapping[Any, Any]] | None = None,
) -> Page[M]:
    """The page at `cursor`, or the first one. Raises BadCursor.

    With `read`, `rows` only find the primary keys of the page, and how many there are; it answers what the page is to
    hold, by these keys: rows as `in_bulk` does, or anything else that has what `keys` names.
    """
    forward, before, values = _decode(rows, cursor, keys) if cursor else (True, 0, None)
    ordered = rows.order_by(*(f"-{key}" if forward else key for key in keys))
    if values is not None:
        ordered = ordered.filter(beyond(keys, values, "lt" if forward else "gt"))
    page: Page[M] = Page([], query=query or QueryDict())
    if read is None:
        items = list(ordered[: limit + 1])
        more = len(items) > limit
    else:
        # Those that follow are counted in the same walk, which is the whole cost where few are found.
        found = list(ordered.values_list("pk", flat=True)[: (max(limit, AHEAD) if forward else limit) + 1])
        more, by_key = len(found) > limit, read(found[:limit])
        items = [by_key[pk] for pk in found[:limit] if pk in by_key]
        if not forward:
            page.total, page.about = about(rows)
        elif len(found) <= max(limit, AHEAD):
            page.total = before + len(found)
        else:
            page.total, page.about = _count_or_guess(rows, before + len(found))
    items = items[:limit]
    if not forward:
        items.reverse()
        before = max(0, before - len(items))
    page.items, page.before = items, before if items else 0
    has_next, has_previous = (more, values is not None) if forward else (True, more)
    if items and has_next:
        page.next_cursor = _encode(True, page.last, items[-1], keys)
    if items and has_previous:
        page.previous_cursor = _encode(False, page.before, items[0], keys)
    return page


def page_at(
    request: HttpRequest,
    rows: QuerySet[M],
    *,
    limit: int = 50,
    keys: tuple[str, ...] = ("id",),
    read: Callable[[list[Any]], Mapping[Any, Any]] | None = None,
    is_counted: bool = False,
) -> Page[M]:
    """The page that the address asks for, as `keyset`, and where it is counted how many rows there are `about`; its
    links keep the other parameters of the address."""
    cursor = request.GET.get("cursor", "")
    page = keyset(rows, cursor=cursor, limit=limit, keys=keys, query=request.GET, read=read)
    if is_counted:
        page.total, page.about = about(rows)
    return page


def about(rows: QuerySet[Any]) -> tuple[int, bool]:
    """Return the number of rows, and whether that is a guess; never counts more than `EXACT_UP_TO` of them."""
    exact = rows.order_by()[: EXACT_UP_TO + 1].count()
    return (exact, False) if exact <= EXACT_UP_TO else (_rounded(_plan(rows), EXACT_UP_TO), True)


def _count_or_guess(rows: QuerySet[Any], at_least: int) -> tuple[int, bool]:
    """Return the number of rows, and whether that is a guess: they are counted where that costs next to nothing."""
    plan = _plan(rows)
    if plan["Plan Rows"] <= EXACT_UP_TO and plan["Total Cost"] <= CHEAP:
        return about(rows)
    return _rounded(plan, at_least), True


def _plan(rows: QuerySet[Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(rows.order_by().values("pk").explain(format="json"))[0]["Plan"]
    return found


def _rounded(plan: Mapping[str, Any], at_least: int) -> int:
    """Return the planner's row estimate, rounded down to two digits."""
    guess = max(at_least, int(plan["Plan Rows"]))
    magnitude = 10 ** (len(str(guess)) - 2)
    return int(guess // magnitude * magnitude)


def beyond(keys: tuple[str, ...], values: list[Any], side: str) -> Q:
    """Rows after the keyset. The bound on the first key stands alone too, so that the index is entered there."""
    if len(keys) == 1:
        return Q(**{f"{keys[0]}__{side}": values[0]})
    further = Q(**{f"{keys[0]}__{side}": values[0]}) | beyond(keys[1:], values[1:], side)
    return Q(**{f"{keys[0]}__{side}e": values[0]}) & further


def _encode(forward: bool, before: int, row: Any, keys: tuple[str, ...]) -> str:
    values = [getattr(row, key) for key in keys]
    text = json.dumps([int(forward), before, *values], default=lambda value: value.isoformat(), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(rows: QuerySet[Any], cursor: str, keys: tuple[str, ...]) -> tuple[bool, int, list[Any]]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        forward, before, *values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if len(values) != len(keys) or not isinstance(before, int):
            raise ValueError(cursor)
        own = rows.query.annotations
        fields = [own[key].output_field if key in own else rows.model._meta.get_field(key) for key in keys]
        return bool(forward), before, [item.to_python(value) for item, value in zip(fields, values, strict=True)]
    except (ValueError, TypeError, ValidationError) as error:
        raise BadCursor(f"cursor {cursor[:40]!r} is none of ours; leave it out to begin at the newest") from error
