"""The quarantine for programs: what was rejected, replayed or dismissed."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body
from flywheel.trajectories.models import Quarantined
from flywheel.trajectories.operations import quarantine

router = Router(tags=["trajectories"])


class QuarantineQuery(Schema):
    state: Quarantined.State = Quarantined.State.OPEN
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class QuarantinedOut(Schema):
    id: int
    batch: int = Field(alias="batch_id")
    at: str
    reason: str
    format: str
    media_type: str
    """Empty for a part of an imported file."""
    state: str
    trace_id: str
    """The trajectory that it went into when it was replayed."""
    received_at: datetime


class QuarantinePage(Schema):
    items: list[QuarantinedOut]
    next: str | None


class QuarantinedWithContent(QuarantinedOut):
    content: str
    """As JSON where it can be read, else as text, or as a dump of its bytes."""
    is_editable: bool


class ReplayIn(Body):
    content: str | None = None
    """JSON to be stored in its place; what came is replayed without it."""


@router.get("/quarantine", response=QuarantinePage, auth=Key(Scope.BUILD), operation_id="list_quarantined")
def list_quarantined(request: HttpRequest, asked: Query[QuarantineQuery]) -> dict[str, Any]:
    """What was rejected, newest first."""
    rows = Quarantined.objects.filter(project=keyed(request).project, state=asked.state).defer("content")
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    return {"items": page.items, "next": page.next_cursor or None}


@router.get("/quarantine/{pk}", response=QuarantinedWithContent, auth=Key(Scope.BUILD), operation_id="get_quarantined")
def get_quarantined(request: HttpRequest, pk: int) -> dict[str, Any]:
    """One of them, with what came."""
    row = _find(request, pk)
    shown = quarantine.shown(row)
    return {**QuarantinedOut.from_orm(row).dict(by_alias=True), "content": shown.text, "is_editable": shown.is_editable}


@router.post(
    "/quarantine/{pk}/replay", response=QuarantinedOut, auth=Key(Scope.BUILD), operation_id="replay_quarantined"
)
def replay_quarantined(request: HttpRequest, pk: int, wanted: ReplayIn) -> Quarantined:
    """Store it, as it came or as `content`: 422 with the reason when it is still rejected."""
    asked = keyed(request)
    try:
        return quarantine.replay(item=_find(request, pk), actor=asked.actor, text=wanted.content)
    except quarantine.StillWrong as error:
        raise HttpError(422, str(error)) from None
    except quarantine.Decided as error:
        raise HttpError(409, str(error)) from None


@router.post(
    "/quarantine/{pk}/dismiss", response=QuarantinedOut, auth=Key(Scope.BUILD), operation_id="dismiss_quarantined"
)
def dismiss_quarantined(request: HttpRequest, pk: int) -> Quarantined:
    """Say that nothing is to be done about it."""
    asked = keyed(request)
    try:
        return quarantine.dismiss(item=_find(request, pk), actor=asked.actor)
    except quarantine.Decided as error:
        raise HttpError(409, str(error)) from None


def _find(request: HttpRequest, pk: int) -> Quarantined:
    row = Quarantined.objects.filter(project=keyed(request).project, pk=pk).first()
    if row is None:
        raise HttpError(404, f"nothing in quarantine has the number {pk}")
    return row
