"""The inbox, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.accounts.notices.inbox import inbox, mark_read
from flywheel.edge.answers import ListQuery, page_of, paginate
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])


class NoticeQuery(ListQuery):
    unread: bool = False
    """Only notices that are not read yet."""


class NoticeOut(Schema):
    id: int
    at: datetime = Field(alias="notice.at")
    event: str = Field(alias="notice.event")
    """Such as `candidate.waits` or `run.failed`; the `type` that webhooks carry."""
    subject: str = Field(alias="notice.subject")
    """The object it is about, such as `candidate 12`."""
    title: str = Field(alias="notice.title")
    text: str = Field(alias="notice.text")
    url: str = Field(alias="notice.url")
    """The subject's page, from the first `/` on; empty if it has none."""
    read_at: datetime | None


class NoticesReadIn(Body):
    ids: list[int] | None = Field(default=None, max_length=200)
    """The notices to mark; null for all."""


class NoticesReadOut(Schema):
    read: int
    """Notices that were unread before."""


@router.get("/notices", auth=Key(Scope.READ), response=page_of(NoticeOut), summary="List your notices")
def list_notices(request: HttpRequest, query: Query[NoticeQuery]) -> dict[str, Any]:
    """List the notices of the key's creator, newest first. Reading them here does not mark them as read."""
    call = keyed(request)
    rows = inbox(call.project, call.actor.user)
    return paginate(rows.filter(read_at=None) if query.unread else rows, query)


@router.post("/notices/read", auth=Key(Scope.READ), response=NoticesReadOut, summary="Mark your notices as read")
def read_notices(request: HttpRequest, body: NoticesReadIn) -> dict[str, int]:
    """Mark notices of the key's creator as read. Ids that are not theirs are ignored."""
    call = keyed(request)
    return {"read": mark_read(project=call.project, user=call.actor.user, entries=body.ids)}
