"""The inbox, and where else notices are sent, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import NoticeEvent, NoticeTarget, Scope
from flywheel.accounts.notices import notice_targets
from flywheel.accounts.notices.inbox import inbox, mark_read
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


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


class NoticeTargetOut(Schema):
    name: str
    kind: str
    """`slack` or `webhook`."""
    host: str
    """The part of the address that is no secret."""
    events: list[str]
    waiting: int
    """Notices on their way."""
    dead: int
    """Notices that could not be sent within a day."""


class NoticeTargetIn(Body):
    kind: NoticeTarget.Kind
    """`slack` or `webhook`; it cannot be changed later."""
    url: str = ""
    """The address, which is stored encrypted and cannot be read again; empty to keep that of an existing target."""
    events: list[NoticeEvent]
    """What is sent there; at least one."""


class NoticeTargetPut(Schema):
    name: str
    host: str
    secret: str
    """What a webhook's messages are signed with, after Standard Webhooks. It is shown only once; empty if unchanged."""


class TriedTargetOut(Schema):
    works: bool
    words: str
    """Why the message was not taken; empty if it was."""


class DeadNoticeOut(Schema):
    id: int
    at: datetime = Field(alias="notice.at")
    title: str = Field(alias="notice.title")
    target: Ref | None
    """The target's name; null for an e-mail."""
    user: Ref | None
    """Whom the e-mail is for; null for a target."""
    error: str
    """Why the last attempt failed."""


class SendAgainIn(Body):
    ids: list[int] | None = Field(default=None, max_length=200)
    """Deliveries from `GET /undelivered-notices`; null for all."""


class SendAgainOut(Schema):
    again: int
    """Notices that will be sent again."""


@router.get("/notice-targets", auth=admin, response=page_of(NoticeTargetOut), summary="List where notices are sent")
def list_notice_targets(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the project's Slack channels and webhooks, newest first, without addresses and secrets."""
    return paginate(notice_targets.targets(keyed(request).project), query)


@router.put("/notice-targets/{name}", auth=admin, response=NoticeTargetPut, summary="Set where notices are sent")
def put_notice_target(request: HttpRequest, name: str, body: NoticeTargetIn) -> dict[str, str]:
    """Create the target, or change the one of this name. A new address makes a new secret."""
    asked = keyed(request)
    events = [event.value for event in body.events]
    done = notice_targets.put(
        project=asked.project, actor=asked.actor, name=name, kind=body.kind.value, url=body.url, events=events
    )
    return {"name": done.target.name, "host": done.target.host, "secret": done.secret}


@router.post("/notice-targets/{name}/try", auth=admin, response=TriedTargetOut, summary="Send a test message")
def try_notice_target(request: HttpRequest, name: str) -> dict[str, Any]:
    """Send a message of `type` `test` to the target and return whether it was taken. A failed test answers 200 with
    `works` false."""
    words = notice_targets.try_target(one(NoticeTarget.objects.filter(project=keyed(request).project), name=name))
    return {"works": not words, "words": words}


@router.delete("/notice-targets/{name}", auth=admin, response={204: None}, summary="Remove where notices are sent")
def remove_notice_target(request: HttpRequest, name: str) -> Status[None]:
    """Remove the target. Notices that still wait for it are dropped."""
    asked = keyed(request)
    target = one(NoticeTarget.objects.filter(project=asked.project), name=name)
    notice_targets.remove(target=target, actor=asked.actor)
    return Status(204, None)


@router.get("/undelivered-notices", auth=admin, response=page_of(DeadNoticeOut), summary="List notices not delivered")
def list_dead_notices(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the notices that could not be sent within a day, newest first."""
    return paginate(notice_targets.dead_letters(keyed(request).project), query)


@router.post("/undelivered-notices/again", auth=admin, response=SendAgainOut, summary="Send notices again")
def send_notices_again(request: HttpRequest, body: SendAgainIn) -> dict[str, int]:
    """Try undelivered notices for another day. They may arrive after later ones of the same subject."""
    asked = keyed(request)
    return {"again": notice_targets.send_again(project=asked.project, actor=asked.actor, letters=body.ids)}
