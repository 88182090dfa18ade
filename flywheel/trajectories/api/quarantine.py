"""The quarantine for programs: what was rejected, replayed or dismissed."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, page_of, paginate
from flywheel.edge.refusals import Missing
from flywheel.edge.schemas import Body, Schema
from flywheel.trajectories.models import Quarantined
from flywheel.trajectories.operations import quarantine

router = Router(tags=["trajectories"])


class QuarantineQuery(ListQuery):
    state: Quarantined.State = Quarantined.State.OPEN
    """`open`, `replayed` or `dismissed`."""


class QuarantinedOut(Schema):
    id: int
    batch: int = Field(alias="batch_id")
    at: str
    """Place in the request or file."""
    reason: str
    format: str
    media_type: str
    """Empty for a part of an imported file."""
    state: str
    trace_id: str
    """The trajectory that it was stored in when it was replayed."""
    received_at: datetime


class QuarantinedWithContent(QuarantinedOut):
    content: str
    """As JSON if it can be read; otherwise as text, or as a dump of its bytes."""
    is_editable: bool
    """Whether `content` is complete and can be replayed with changes."""


class ReplayIn(Body):
    content: str | None = None
    """JSON to store in its place; if omitted, the item is replayed as it was sent."""


@router.get("/quarantine", response=page_of(QuarantinedOut, "QuarantinePage"), auth=Key(Scope.BUILD))
def list_quarantined(request: HttpRequest, query: Query[QuarantineQuery]) -> dict[str, Any]:
    """List rejected items, newest first."""
    rows = Quarantined.objects.filter(project=keyed(request).project, state=query.state)
    return paginate(rows.defer("content"), query)


@router.get("/quarantine/{pk}", response=QuarantinedWithContent, auth=Key(Scope.BUILD))
def get_quarantined(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Return one rejected item with the content that was sent."""
    row = _find(request, pk)
    shown = quarantine.shown(row)
    return {**QuarantinedOut.from_orm(row).dict(by_alias=True), "content": shown.text, "is_editable": shown.is_editable}


@router.post("/quarantine/{pk}/replay", response=QuarantinedOut, auth=Key(Scope.BUILD))
def replay_quarantined(request: HttpRequest, pk: int, wanted: ReplayIn) -> Quarantined:
    """Store the item, either as it was sent or with `content` in its place. 422 with the reason if it is still
    rejected. 409 if it was replayed or dismissed before."""
    return quarantine.replay(item=_find(request, pk), actor=keyed(request).actor, text=wanted.content)


@router.post("/quarantine/{pk}/dismiss", response=QuarantinedOut, auth=Key(Scope.BUILD))
def dismiss_quarantined(request: HttpRequest, pk: int) -> Quarantined:
    """Dismiss the item: it needs no action. 409 if it was replayed or dismissed before."""
    return quarantine.dismiss(item=_find(request, pk), actor=keyed(request).actor)


def _find(request: HttpRequest, pk: int) -> Quarantined:
    row = Quarantined.objects.filter(project=keyed(request).project, pk=pk).first()
    if row is None:
        raise Missing(f"nothing in quarantine has the number {pk}")
    return row
