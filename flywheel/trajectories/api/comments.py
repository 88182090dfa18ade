"""Comments and mentions for programs; what is said is said in the name of the key's maker."""

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Permission, Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.trajectories.annotations import comments
from flywheel.trajectories.models import Comment, Mention, Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import home_of

router = Router(tags=["trajectories"])


class CommentIn(Body):
    text: str
    """`@name` mentions a member of the project."""
    step: str = ""
    """Span id; empty for the whole trajectory."""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same comment."""


class CommentEdit(Body):
    text: str


class CommentOut(Schema):
    id: int
    step: str
    """Span id; empty for the whole trajectory."""
    author: Ref
    text: str
    """Empty if it was deleted."""
    mentions: list[str]
    """Usernames."""
    at: datetime
    edited_at: datetime | None
    deleted_at: datetime | None

    @staticmethod
    def resolve_mentions(row: Comment) -> list[str]:
        return sorted(mention.user.username for mention in row.mentions.all())


class CommentPage(Schema):
    items: list[CommentOut]
    next: str | None
    """Cursor of the next page; null on the last page."""
    is_blind: bool
    """Only your own comments are listed; others are hidden until the reviewers of a queue have decided."""


@router.get("/trajectories/{trace_id}/comments", response=CommentPage, auth=Key(Scope.READ))
def list_comments(request: HttpRequest, trace_id: str, query: Query[ListQuery]) -> dict[str, Any]:
    """List the comments on a trajectory and its steps, newest first. Deleted comments have no text."""
    row, call = _find(request, trace_id), keyed(request)
    is_blind = bool(comments.hidden(call.project, call.actor.user, [row.pk]))
    return paginate(comments.seen_by(row, call.actor.user), query) | {"is_blind": is_blind}


@router.post("/trajectories/{trace_id}/comments", response=CommentOut, auth=Key(Scope.REVIEW))
def comment(request: HttpRequest, trace_id: str, body: CommentIn) -> Comment:
    """Add a comment to the trajectory or to one of its steps."""
    row, actor = _find(request, trace_id), keyed(request).actor
    return comments.say(trajectory=row, actor=actor, text=body.text, step=body.step, key=body.key)


@router.put("/trajectories/{trace_id}/comments/{comment_id}", response=CommentOut, auth=Key(Scope.REVIEW))
def edit_comment(request: HttpRequest, trace_id: str, comment_id: int, body: CommentEdit) -> Comment:
    """Replace the text of your own comment. 403 if it is someone else's."""
    row = _comment(request, trace_id, comment_id)
    return comments.edit(comment=row, actor=keyed(request).actor, text=body.text)


@router.delete("/trajectories/{trace_id}/comments/{comment_id}", response=CommentOut, auth=Key(Scope.REVIEW))
def delete_comment(request: HttpRequest, trace_id: str, comment_id: int) -> Comment:
    """Delete the text of your own comment. An admin's key with the scope `admin` can delete any comment's text. 403 for
    any other."""
    row, call = _comment(request, trace_id, comment_id), keyed(request)
    is_admin = Permission.ADMIN in call.permissions and Scope.ADMIN in call.key.scopes
    return comments.delete(comment=row, actor=call.actor, is_admin=is_admin)


class MentionOut(Schema):
    trace_id: str = Field(alias="comment.trajectory.trace_id")
    comment: int = Field(alias="comment_id")
    step: str = Field(alias="comment.step")
    """Span id; empty for the whole trajectory."""
    author: Ref = Field(alias="comment.author")
    text: str | None
    """Null while it is hidden: the reviewers of a queue have not decided yet."""
    at: datetime = Field(alias="comment.at")
    read_at: datetime | None


@router.get("/mentions", response=page_of(MentionOut), auth=Key(Scope.READ))
def list_mentions(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List comments that mention the key's creator, newest first. Reading them here does not mark them as read."""
    call = keyed(request)
    rows = Mention.objects.filter(project=call.project, user=call.actor.user)
    page = paginate(rows.select_related("comment__author", "comment__trajectory"), query)
    blind = comments.hidden(call.project, call.actor.user, {row.comment.trajectory_id for row in page["items"]})
    for row in page["items"]:
        row.text = None if row.comment.trajectory_id in blind else row.comment.text
    return page


class ReadIn(Body):
    trace_id: str = ""
    """The trajectory whose mentions to mark; empty for all."""


class ReadOut(Schema):
    read: int
    """Mentions that were unread before."""


@router.post("/mentions/read", response=ReadOut, auth=Key(Scope.REVIEW))
def read_mentions(request: HttpRequest, wanted: ReadIn) -> dict[str, int]:
    """Mark the mentions of the key's creator as read. Those still hidden from them stay unread."""
    call = keyed(request)
    row = _find(request, wanted.trace_id) if wanted.trace_id else None
    return {"read": comments.mark_read(project=call.project, user=call.actor.user, trajectory=row)}


def _find(request: HttpRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.filter(project=keyed(request).project)
    return one(rows.select_related("project"), trace_id=home_of(keyed(request).project.pk, trace_id))


def _comment(request: HttpRequest, trace_id: str, pk: int) -> Comment:
    return one(comments.seen_by(_find(request, trace_id), keyed(request).actor.user), pk=pk)
