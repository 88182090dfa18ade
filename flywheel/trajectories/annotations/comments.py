"""Talking about a trajectory: comments on a step or on the whole, in which `@name` calls a member.

Where reviewers are blind to each other, they are blind to each other's comments too: while a trajectory is open in a
queue that wants several reviewers, who may review it there sees only their own.
"""

import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Prefetch, Q, QuerySet
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import NoticeEvent, Permission, Project, User
from flywheel.accounts.notices import inbox, notify
from flywheel.edge.refusals import Refused
from flywheel.trajectories.models import Comment, Mention, Trajectory

LIMIT = 10_000
"""Characters of one comment."""
SHOWN = 200
"""Comments of one trajectory that a page shows, the newest."""
CALLED_MAX = 50
"""People that one comment calls."""
_CALL = re.compile(r"(?<![\w@.+-])@([\w.@+-]{1,150})")


class NotYours(PermissionDenied):
    """Only its author edits a comment, and only its author or an admin deletes it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a comment's text."""

    text: str
    is_mention: bool = False


def seen_by(trajectory: Trajectory, user: User) -> QuerySet[Comment]:
    """Return the comments on a trajectory that the user may read, oldest first, deleted ones among them."""
    rows = Comment.objects.filter(trajectory=trajectory).select_related("author", "deleted_by")
    rows = rows.prefetch_related(Prefetch("mentions", Mention.objects.select_related("user"))).order_by("pk")
    return rows.filter(author=user) if hidden(trajectory.project, user, [trajectory.pk]) else rows


def hidden(project: Project, user: User, trajectories: Collection[int]) -> set[int]:
    """Those of these trajectories of which the user must not yet read what others say."""
    if Permission.REVIEW not in user.permissions(project):
        return set()
    named = Q(queue_items__queue__assignees=None) | Q(queue_items__queue__assignees=user)
    rows = Trajectory.objects.filter(
        named,
        project=project,
        pk__in=trajectories,
        queue_items__closed_at=None,
        queue_items__queue__needed__gt=1,
        queue_items__queue__archived_at=None,
    )
    return set(rows.values_list("pk", flat=True))


@transaction.atomic
def say(*, trajectory: Trajectory, actor: Actor, text: str, step: str = "", key: uuid.UUID | None = None) -> Comment:
    """Comment on the trajectory, or on one step of it. Raises Refused. The same key again is the same comment."""
    text = _checked(text)
    if step and not trajectory.steps.filter(span_id=step).exists():
        raise Refused(f"step: this trajectory has no step {step[:64]!r}")
    # Whoever deletes the trajectory waits for us, or we for them.
    row = Trajectory.objects.select_for_update(no_key=True).filter(pk=trajectory.pk).first()
    if row is None:
        raise Refused("trajectory: it was deleted meanwhile")
    said = Comment(project_id=row.project_id, trajectory=row, step=step, author=actor.user, text=text)
    if key is not None:
        if (known := Comment.objects.filter(author=actor.user, key=key).first()) is not None:
            return known
        said.key = key
    said.save()
    _call(said, actor)
    _record("comment", said, actor)
    return said


@transaction.atomic
def edit(*, comment: Comment, actor: Actor, text: str) -> Comment:
    """Write it anew; who is named now and was not before is called. Raises Refused and NotYours."""
    row = _locked(comment)
    if row.author_id != actor.user.pk:
        raise NotYours("only its author can edit a comment")
    if row.deleted_at is not None:
        raise Refused("text: this comment is deleted")
    if (text := _checked(text)) == row.text:
        return row
    row.text, row.edited_at = text, timezone.now()
    row.save(update_fields=["text", "edited_at"])
    _call(row, actor)
    _record("edit_comment", row, actor)
    return row


@transaction.atomic
def delete(*, comment: Comment, actor: Actor, is_admin: bool = False) -> Comment:
    """Take its words away; that something was said stays. Raises NotYours."""
    row = _locked(comment)
    if row.author_id != actor.user.pk and not is_admin:
        raise NotYours("only its author or an admin can delete a comment")
    if row.deleted_at is not None:
        return row
    row.text, row.deleted_at, row.deleted_by = "", timezone.now(), actor.user
    row.save(update_fields=["text", "deleted_at", "deleted_by"])
    row.mentions.all().delete()
    _record("delete_comment", row, actor)
    return row


# Mentions


def people(project: Project) -> QuerySet[User]:
    """Who can be called: the members whose account is open."""
    return User.objects.filter(memberships__project=project, is_active=True).distinct().order_by("username")


def pieces(comment: Comment) -> list[Piece]:
    """The text, with the names of those whom it calls apart."""
    names = {mention.user.username.casefold() for mention in comment.mentions.all()}
    found, at = [], 0
    for start, name in _calls(comment.text, names):
        found += [Piece(comment.text[at:start]), Piece(f"@{name}", is_mention=True)]
        at = start + 1 + len(name)
    return [piece for piece in (*found, Piece(comment.text[at:])) if piece.text]


def unread(project: Project, user: User) -> QuerySet[Mention]:
    return Mention.objects.filter(project=project, user=user, read_at=None)


def mark_read(*, project: Project, user: User, trajectory: Trajectory | None = None) -> int:
    """The user has seen what calls them, all of it or what is said about one trajectory. Theirs alone: not audited."""
    rows = unread(project, user)
    if trajectory is not None:
        if hidden(project, user, [trajectory.pk]):
            return 0
        rows = rows.filter(comment__trajectory=trajectory)
    subject = _subject(trajectory) if trajectory else ""
    inbox.mark_read(project=project, user=user, event=NoticeEvent.MENTION, subject=subject)
    return rows.update(read_at=timezone.now())


def _calls(text: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Where in the text a name of these (folded) is called, as it is written there: `@ada.` calls ada."""
    for found in _CALL.finditer(text):
        name = found[1]
        while name and name.casefold() not in names:
            name = name[:-1] if name[-1] in ".+-@" else ""
        if name:
            yield found.start(), name


def _call(comment: Comment, actor: Actor) -> None:
    """Keep one mention for each member whom the text names, but for its author."""
    everyone = people(comment.project) if "@" in comment.text else ()
    members = {person.username.casefold(): person for person in everyone}
    names = {name.casefold() for _, name in _calls(comment.text, members)}
    called = [members[name] for name in sorted(names) if members[name].pk != actor.user.pk][:CALLED_MAX]
    comment.mentions.exclude(user__in=called).delete()
    before = set(comment.mentions.values_list("user_id", flat=True))
    Mention.objects.bulk_create(
        [Mention(comment=comment, project_id=comment.project_id, user=person) for person in called],
        ignore_conflicts=True,
    )
    if new := [person for person in called if person.pk not in before]:
        _tell(comment, new, actor)


def _tell(comment: Comment, people: Collection[User], actor: Actor) -> None:
    """Tell those who are called where, and not what: some may not read it yet."""
    trace_id = quote(comment.trajectory.trace_id, safe="")
    step = f"?step={quote(comment.step, safe='')}" if comment.step else ""
    notify(
        project=comment.project,
        event=NoticeEvent.MENTION,
        subject=_subject(comment.trajectory),
        title=f"{actor.user} mentioned {', '.join(person.username for person in people)} in a comment",
        url=f"/p/{comment.project.slug}/trajectories/{trace_id}/{step}#comment-{comment.pk}",
        to=people,
    )


def _checked(text: str) -> str:
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise Refused("text: write something")
    if "\0" in text:
        raise Refused("text: remove the null character")
    if len(text) > LIMIT:
        raise Refused(f"text: {len(text)} characters; at most {LIMIT} are allowed")
    return text


def _locked(comment: Comment) -> Comment:
    return Comment.objects.select_for_update(of=("self",)).select_related("project", "trajectory").get(pk=comment.pk)


def _record(verb: str, comment: Comment, actor: Actor) -> None:
    """The audit log says that it was done, never what was said: the log outlives a trajectory that is deleted."""
    about: dict[str, Any] = {"comment": comment.pk, "step": comment.step}
    subject = _subject(comment.trajectory)
    actor.record(project=comment.project, action=f"trajectories.{verb}", subject=subject, **about)


def _subject(trajectory: Trajectory) -> str:
    return f"trajectory {trajectory.trace_id}"
