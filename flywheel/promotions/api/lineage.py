"""The lineage of every object for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery
from flywheel.edge.paging import keyset
from flywheel.edge.schemas import Schema
from flywheel.promotions.lineage.levels import counted, level_of, levels_of
from flywheel.promotions.lineage.passport_kinds import find, passport

router = Router(tags=["promotions"])


class PassportOut(Schema):
    kind: str
    ref: str
    """With `kind`, the address of its own lineage."""
    title: str
    note: str
    """Its state, its outcome, or who made it."""
    url: str
    """Address of its page."""
    digest: str | None
    """SHA-256 of its content; null for what still grows, such as a trajectory, and for moves of the live version."""
    made_at: datetime


class LevelOut(Schema):
    key: str
    """Send it back as `level` for the list."""
    kind: str
    """Kind of the objects in the list."""
    title: str
    distance: int
    """Number of relations between the object and these."""
    count: int
    """Number of objects, at most 10,000; of a ramp's traffic at most 2,000."""
    is_more: bool
    """Whether there are more than `count`."""


class LineageOut(PassportOut):
    up: list[LevelOut]
    """What it came from, nearest first. Empty if you requested a list."""
    down: list[LevelOut]
    """What was made from it, nearest first. Empty if you requested a list."""
    items: list[PassportOut]
    """A page of the list that you requested, newest first."""
    next: str | None
    """Cursor of the next page; null on the last page."""


class LineageQuery(ListQuery):
    level: str = ""
    """`key` of a level, for its list; empty for the counts of all levels."""


@router.get("/lineage/{kind}/{ref}", response=LineageOut, auth=Key(Scope.READ))
def get_lineage(request: HttpRequest, kind: str, ref: str, query: Query[LineageQuery]) -> dict[str, Any]:
    """Return what an object came from and what was made from it, with digests: the counts of each level, or a page of
    one of them. `kind` is one of `trajectory` (by trace id), `bucket` (by key), `environment` (by name), `task`
    (`environment:number`), `task_set`, `dataset`, `reward_model`, `version` (`name@number`), and by id `failure`,
    `queue_item`, `suite`, `eval_run`, `fix_trial`, `training_run`, `candidate`, `ramp`, `promotion` or `recurrence`."""
    project = keyed(request).project
    known, row = find(kind, ref, project)
    answer: dict[str, Any] = {"up": [], "down": [], "items": [], "next": None}
    if query.level:
        level = level_of(known, row, project, query.level)
        page = keyset(level.rows, cursor=query.cursor, limit=query.limit, keys=level.kind.keys)
        answer["items"] = [passport(level.kind, each, project) for each in page.items]
        answer["next"] = page.next_cursor or None
    else:
        levels = levels_of(known, row, project)
        for level, count in zip(levels, counted(levels), strict=True):
            facts = {name: getattr(level, name) for name in ("key", "title", "distance")}
            answer[level.direction].append(
                facts | {"kind": level.kind.name, "count": count.number, "is_more": count.is_more}
            )
    return answer | {name: getattr(passport(known, row, project), name) for name in PassportOut.model_fields}
