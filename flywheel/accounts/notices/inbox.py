"""A person's inbox in a project: the notices in it, newest first, and which of them are read."""

from collections.abc import Collection

from django.db.models import QuerySet
from django.utils import timezone

from flywheel.accounts.models import InboxEntry, Project, User


def inbox(project: Project, user: User) -> QuerySet[InboxEntry]:
    return InboxEntry.objects.filter(project=project, user=user).select_related("notice")


def mark_read(
    *, project: Project, user: User, entries: Collection[int] | None = None, subject: str = "", event: str = ""
) -> int:
    """The user has seen all of it, these entries, or what tells of this subject or event. Theirs alone: not
    audited."""
    rows = InboxEntry.objects.filter(project=project, user=user, read_at=None)
    if entries is not None:
        rows = rows.filter(pk__in=entries)
    if subject:
        rows = rows.filter(notice__subject=subject)
    if event:
        rows = rows.filter(notice__event=event)
    return rows.update(read_at=timezone.now())
