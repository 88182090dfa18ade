"""An agent's turns for programs: what each is made of, and the draft with which the next one begins."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent
from flywheel.edge.answers import ListQuery, Ref, page_of
from flywheel.edge.paging import keyset
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.models import Task
from flywheel.promotions.api.lineage import PassportOut
from flywheel.promotions.api.promotions import WatchOut
from flywheel.promotions.lineage.passport_kinds import passport
from flywheel.promotions.models import Watch
from flywheel.promotions.turns import drafts, turn_bounds
from flywheel.promotions.turns.drafts import Draft
from flywheel.promotions.turns.stations import STATIONS, came_back, station_of
from flywheel.promotions.turns.turn_bounds import Turn

router = Router(tags=["promotions"])


class TurnOut(Schema):
    number: int
    """From 1 on; the highest one is open."""
    is_open: bool
    begun_by: int | None
    """Id of the promotion at which it begins; null for the first turn."""
    ended_by: int | None
    """Id of the promotion that ends it; null while it is open."""
    since: datetime | None
    until: datetime | None


class StationOut(Schema):
    key: str
    """Send it as `station` for the list."""
    title: str
    count: int
    """Number of objects, at most 10,000."""
    is_more: bool
    """Whether there are more than `count`."""


class TurnWithStations(TurnOut):
    is_rolled_back: bool
    """Whether the version that ended the turn was rolled back later."""
    watch: WatchOut | None
    """Of the version that ended the turn; null while the turn is open, and if its promotion is not watched."""
    stations: list[StationOut]
    """In the order of the wheel. Empty if you requested a list."""
    items: list[PassportOut]
    """A page of the list that you requested, newest first. `kind` and `ref` name the object for its lineage."""
    next: str | None
    """Cursor of the next page; null on the last page."""


class TurnQuery(ListQuery):
    station: str = ""
    """`key` of a station, for its list; empty for the counts of all stations."""


class StartIn(Body):
    environment: str = ""
    """Where the tasks are made; empty for the agent's environment with the newest task set."""


class FreezeIn(StartIn):
    name: str
    """The task set of which the draft becomes the next version."""


class DraftTaskOut(Schema):
    number: int
    split: str


class LeftOut(DraftTaskOut):
    reason: str
    """Why the task is not in the draft."""


class BackOut(Schema):
    bucket: str
    version: Ref
    """The fix that did not last."""
    is_confirmed: bool
    """Whether a person said that it is the same failure."""


class TurnDraftOut(Schema):
    turn: int
    since: Ref | None
    """The task set since which confirmed failures are taken; null in the first turn, which takes all."""
    environment: Ref
    tasks: list[DraftTaskOut]
    """What would be frozen."""
    left_out: list[LeftOut]
    frozen: int
    """Tasks of these failures that are in a task set already."""
    uncorrected: int
    """Confirmed failures without a task for want of a corrected action."""
    taskless: int
    """Other confirmed failures without a task."""
    back: list[BackOut]
    """Categories that came back in the turn. Their failures become tasks first."""


class StartedOut(Schema):
    made: int
    """New tasks."""
    refused: dict[str, int]
    """By reason the failures that cannot be a task."""
    left: int
    """Failures that this call did not come to. Call it again."""
    draft: TurnDraftOut


class FrozenOut(Schema):
    task_set: Ref
    """As `name@version`."""


@router.get("/agents/{name}/turns", response=page_of(TurnOut), auth=Key(Scope.READ))
def list_turns(request: HttpRequest, name: str, query: Query[ListQuery]) -> dict[str, Any]:
    """List an agent's turns, the open one first. A turn ends when a version is promoted."""
    agent = _agent(request, name)
    page = keyset(turn_bounds.promotions_of(agent), cursor=query.cursor, limit=query.limit)
    first = [] if query.cursor else [turn_bounds.present(agent)]
    turns = [*first, *turn_bounds.ended_by(agent, page.items)]
    return {"items": list(map(_facts, turns)), "next": page.next_cursor or None}


@router.get("/agents/{name}/turns/{turn}", response=TurnWithStations, auth=Key(Scope.READ))
def get_turn(request: HttpRequest, name: str, turn: int, query: Query[TurnQuery]) -> dict[str, Any]:
    """Return what a turn is made of: the counts of its stations, or a page of one of them."""
    row = turn_bounds.turn_numbered(_agent(request, name), turn)
    answer: dict[str, Any] = {"stations": [], "items": [], "next": None}
    answer["watch"] = Watch.objects.filter(promotion=row.ended_by).first() if row.ended_by else None
    answer["is_rolled_back"] = bool(turn_bounds.rolled_back(row.agent, [row]))
    if query.station:
        station = station_of(query.station)
        page = keyset(station.rows(row), cursor=query.cursor, limit=query.limit, keys=station.kind.keys)
        answer["items"] = [passport(station.kind, each, keyed(request).project) for each in page.items]
        answer["next"] = page.next_cursor or None
    else:
        counts = [(station, station.counted(row)) for station in STATIONS.values()]
        answer["stations"] = [
            {"key": station.key, "title": station.title, "count": count.number, "is_more": count.is_more}
            for station, count in counts
        ]
    return answer | _facts(row)


@router.get("/agents/{name}/next-turn", response=TurnDraftOut, auth=Key(Scope.READ))
def get_draft(request: HttpRequest, name: str, environment: str = "") -> dict[str, Any]:
    """Return the draft of the next task set, from the failures confirmed since the last one was frozen."""
    agent = _agent(request, name)
    turn = turn_bounds.present(agent)
    return _draft(drafts.draft_of(turn, drafts.environment_of(agent, environment)))


@router.post("/agents/{name}/next-turn", response=StartedOut, auth=Key(Scope.BUILD))
def start_turn(request: HttpRequest, name: str, body: StartIn) -> dict[str, Any]:
    """Make a task of each failure confirmed since the last task set that can be one, at most 200 per call. Calling it
    again goes on, and makes nothing twice."""
    agent = _agent(request, name)
    environment = drafts.environment_of(agent, body.environment)
    made = drafts.start(agent=agent, environment=environment, actor=keyed(request).actor)
    draft = _draft(drafts.draft_of(turn_bounds.present(agent), environment))
    return {"made": len(made.made), "refused": dict(made.refused), "left": made.left, "draft": draft}


@router.post("/agents/{name}/next-turn/freeze", response={201: FrozenOut}, auth=Key(Scope.BUILD))
def freeze_draft(request: HttpRequest, name: str, body: FreezeIn) -> Status[dict[str, Any]]:
    """Freeze the draft as the next version of a task set, with the tasks in use of the version before. Older versions
    do not change. Returns the newest version if it has the same content."""
    agent = _agent(request, name)
    environment = drafts.environment_of(agent, body.environment)
    actor = keyed(request).actor
    made = drafts.freeze(agent=agent, environment=environment, name=body.name.strip(), actor=actor)
    return Status(201, {"task_set": made})


def _facts(turn: Turn) -> dict[str, Any]:
    return {
        "number": turn.number,
        "is_open": turn.is_open,
        "begun_by": turn.begun_by.pk if turn.begun_by else None,
        "ended_by": turn.ended_by.pk if turn.ended_by else None,
        "since": turn.since,
        "until": turn.until,
    }


def _draft(draft: Draft) -> dict[str, Any]:
    return {
        "turn": draft.turn.number,
        "since": drafts.last_set(draft.turn),
        "environment": draft.environment,
        "tasks": draft.tasks,
        "left_out": [_task(task) | {"reason": reason} for task, reason in draft.left.items()],
        "frozen": len(draft.frozen),
        "uncorrected": draft.shown("uncorrected").count(),
        "taskless": draft.shown("taskless").count(),
        "back": [
            {"bucket": row.bucket, "version": row.version, "is_confirmed": bool(row.answer)}
            for row in came_back(draft.turn).select_related("version__agent")
        ],
    }


def _task(task: Task) -> dict[str, Any]:
    return {"number": task.number, "split": task.split}


def _agent(request: HttpRequest, name: str) -> Agent:
    rows = Agent.objects.filter(project=keyed(request).project).select_related("project")
    return get_object_or_404(rows, name=name)
