"""Comments and mentions for programs; what is said is said in the name of the key's maker."""

import uuid
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Query, Router, Schema
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Permission, Scope
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body
from flywheel.trajectories.annotations import comments
from flywheel.trajectories.api.schemas import ListQuery
from flywheel.trajectories.models import Comment, Mention, Trajectory

router = Router(tags=["trajectories"])


class CommentIn(Body):
    text: str
    """`@name` calls a member of the project."""
    step: str = ""
    """Span id; empty for the trajectory as a whole."""
    key: uuid.UUID | None = None
    """Of your own making: the same key again is the same comment."""


class CommentEdit(Body):
    text: str


class CommentOut(Schema):
    id: int
    step: str
    author: str
    text: str
    """Empty when it is deleted."""
    mentions: list[str]
    at: datetime
    edited_at: datetime | None
    deleted_at: datetime | None

    @staticmethod
    def resolve_author(row: Comment) -> str:
        return str(row.author)

    @staticmethod
    def resolve_mentions(row: Comment) -> list[str]:
        return sorted(mention.user.username for mention in row.mentions.all())


class CommentPage(Schema):
    items: list[CommentOut]
    next: str | None
    is_blind: bool
    """Only your own are here: others' are hidden until the reviewers of a queue have decided."""


@router.get(
    "/trajectories/{trace_id}/comments", response=CommentPage, auth=Key(Scope.READ), operation_id="list_comments"
)
def list_comments(request: HttpRequest, trace_id: str, asked: Query[ListQuery]) -> dict[str, Any]:
    """What was said of a trajectory and its steps, newest first, deleted ones without their words."""
    row, call = _find(request, trace_id), keyed(request)
    try:
        page = keyset(comments.seen_by(row, call.actor.user), cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    is_blind = bool(comments.hidden(call.project, call.actor.user, [row.pk]))
    return {"items": page.items, "next": page.next_cursor or None, "is_blind": is_blind}


@router.post("/trajectories/{trace_id}/comments", response=CommentOut, auth=Key(Scope.REVIEW), operation_id="comment")
def comment(request: HttpRequest, trace_id: str, body: CommentIn) -> Comment:
    """Say something about the trajectory, or about one of its steps."""
    try:
        return comments.say(
            trajectory=_find(request, trace_id),
            actor=keyed(request).actor,
            text=body.text,
            step=body.step,
            key=body.key,
        )
    except comments.BadComment as error:
        raise HttpError(422, str(error)) from None


@router.put(
    "/trajectories/{trace_id}/comments/{comment_id}",
    response=CommentOut,
    auth=Key(Scope.REVIEW),
    operation_id="edit_comment",
)
def edit_comment(request: HttpRequest, trace_id: str, comment_id: int, body: CommentEdit) -> Comment:
    """Write one's own comment anew."""
    found, actor = _comment(request, trace_id, comment_id), keyed(request).actor
    try:
        return comments.edit(comment=found, actor=actor, text=body.text)
    except comments.BadComment as error:
        raise HttpError(422, str(error)) from None
    except comments.NotYours as error:
        raise HttpError(403, str(error)) from None


@router.delete(
    "/trajectories/{trace_id}/comments/{comment_id}",
    response=CommentOut,
    auth=Key(Scope.REVIEW),
    operation_id="delete_comment",
)
def delete_comment(request: HttpRequest, trace_id: str, comment_id: int) -> Comment:
    """Take the words of one's own comment away; an admin's key with the scope `admin` takes any."""
    found, call = _comment(request, trace_id, comment_id), keyed(request)
    is_admin = Permission.ADMIN in call.permissions and Scope.ADMIN in call.key.scopes
    try:
        return comments.delete(comment=found, actor=call.actor, is_admin=is_admin)
    except comments.NotYours as error:
        raise HttpError(403, str(error)) from None


class MentionOut(Schema):
    trace_id: str
    comment: int
    step: str
    author: str
    text: str | None
    """Null while it is hidden: the reviewers of a queue have not decided yet."""
    at: datetime
    read_at: datetime | None


class MentionPage(Schema):
    items: list[MentionOut]
    next: str | None


@router.get("/mentions", response=MentionPage, auth=Key(Scope.READ), operation_id="list_mentions")
def list_mentions(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """Comments that call the maker of the key, newest first. Reading them here does not mark them read."""
    call = keyed(request)
    rows = Mention.objects.filter(project=call.project, user=call.actor.user)
    try:
        page = keyset(
            rows.select_related("comment__author", "comment__trajectory"), cursor=asked.cursor, limit=asked.limit
        )
    except BadCursor as error:
        raise HttpError(400, str(error)) from None
    blind = comments.hidden(call.project, call.actor.user, {row.comment.trajectory_id for row in page.items})
    items = [
        {
            "trace_id": row.comment.trajectory.trace_id,
            "comment": row.comment_id,
            "step": row.comment.step,
            "author": str(row.comment.author),
            "text": None if row.comment.trajectory_id in blind else row.comment.text,
            "at": row.comment.at,
            "read_at": row.read_at,
        }
        for row in page.items
    ]
    return {"items": items, "next": page.next_cursor or None}


class ReadIn(Body):
    trace_id: str = ""
    """Of the trajectory that was looked at; empty for all."""


class ReadOut(Schema):
    read: int
    """Mentions that were not read before."""


@router.post("/mentions/read", response=ReadOut, auth=Key(Scope.REVIEW), operation_id="read_mentions")
def read_mentions(request: HttpRequest, wanted: ReadIn) -> dict[str, int]:
    """Mark read what calls the maker of the key. What is hidden from them still stays unread."""
    call = keyed(request)
    row = _find(request, wanted.trace_id) if wanted.trace_id else None
    return {"read": comments.mark_read(project=call.project, user=call.actor.user, trajectory=row)}


def _find(request: HttpRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.filter(project=keyed(request).project).select_related("project")
    row = rows.filter(trace_id=trace_id).first()
    if row is None:
        raise HttpError(404, f"there is no trajectory {trace_id[:64]!r}")
    return row


def _comment(request: HttpRequest, trace_id: str, pk: int) -> Comment:
    actor = keyed(request).actor.user
    found = comments.seen_by(_find(request, trace_id), actor).filter(pk=pk).first()
    if found is None:
        raise Http404("there is no such comment")
    return found
