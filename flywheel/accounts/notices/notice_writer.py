"""Notices are written here, with everything that is to become of them."""

import unicodedata
from collections.abc import Collection
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from flywheel.accounts.models import (
    GRANTS,
    InboxEntry,
    Notice,
    NoticeDelivery,
    NoticeEvent,
    NoticeTarget,
    Permission,
    Project,
    User,
)
from flywheel.accounts.models.notices import TOLD_BY_DEFAULT

TRIED_FOR = timedelta(days=1)
"""A delivery that has not succeeded after so long waits for a person."""


@transaction.atomic
def notify(
    *,
    project: Project,
    event: str,
    subject: str,
    title: str,
    text: str = "",
    url: str = "",
    to: Collection[User] | Permission | None = None,
) -> Notice:
    """Tell people and targets of a change; call it in the transaction of the change.

    It goes to the inboxes of those in `to`, of those with that permission, or of those whom the event concerns by
    default; whoever may no longer see the project is left out. It goes to every target of the project that wants the
    event. `event` is a value of `NoticeEvent`; `url` is the subject's page, from the first `/` on. `title` and `text`
    outlive what they tell of and go to other people's servers: they quote nothing that an agent or a customer wrote.
    """
    kind = NoticeEvent(event)
    notice = Notice.objects.create(
        project=project,
        event=kind,
        subject=_line(subject)[:200],
        title=_line(title)[:300],
        text=_visible(text)[:4_000],
        url=url[:500],
    )
    people = list(_members(project, TOLD_BY_DEFAULT[kind] if to is None else to))
    InboxEntry.objects.bulk_create([InboxEntry(notice=notice, project=project, user=user) for user in people])
    mailed = [user for user in people if user.is_mailed_notices and user.email] if settings.EMAIL_HOST else []
    targets = NoticeTarget.objects.filter(project=project, events__contains=[kind.value])
    NoticeDelivery.objects.bulk_create(
        [
            *(_delivery(notice, target=target) for target in targets.order_by("pk")),
            *(_delivery(notice, user=user) for user in mailed),
        ]
    )
    return notice


def _visible(text: str) -> str:
    """Without characters that hide, turn or end what is around them; names are chosen by people."""
    return "".join(char for char in text if char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs"))


def _line(text: str) -> str:
    return " ".join(_visible(" ".join(text.split())).split())


def _members(project: Project, to: Collection[User] | Permission | None) -> QuerySet[User]:
    """The members with the permission, or those among the named who may see the project."""
    members = User.objects.filter(memberships__project=project, is_active=True).distinct().order_by("pk")
    if to is None:
        return members.none()
    if isinstance(to, Permission):
        return members.filter(
            memberships__project=project, memberships__role__in=[role for role, may in GRANTS.items() if to in may]
        )
    return members.filter(pk__in=[user.pk for user in to])


def _delivery(notice: Notice, *, target: NoticeTarget | None = None, user: User | None = None) -> NoticeDelivery:
    return NoticeDelivery(
        notice=notice,
        target=target,
        user=user,
        project_id=notice.project_id,
        subject=notice.subject,
        give_up_at=timezone.now() + TRIED_FOR,
    )
