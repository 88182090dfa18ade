"""Who is told of a change, and that it is in the change's transaction."""

import pytest
from django.db import transaction

from flywheel.accounts.models import (
    InboxEntry,
    Membership,
    Notice,
    NoticeDelivery,
    NoticeEvent,
    NoticeTarget,
    Permission,
    Role,
)
from flywheel.accounts.models.notices import TOLD_BY_DEFAULT
from flywheel.accounts.notices import notify
from tests.conftest import Cast

pytestmark = pytest.mark.django_db


def told(notice: Notice) -> set[str]:
    return set(notice.entries.values_list("user__username", flat=True))


def target(cast: Cast, name: str, *events: str) -> NoticeTarget:
    row = NoticeTarget(project=cast.project, name=name, kind="slack", host="h", events=events, created_by=cast.admin)
    row.seal("https://hooks.slack.com/services/T/B/x", "")
    row.save()
    return row


def test_every_event_says_whom_it_concerns() -> None:
    assert set(TOLD_BY_DEFAULT) == set(NoticeEvent)


def test_it_goes_to_those_whom_the_event_concerns(cast: Cast) -> None:
    notice = notify(project=cast.project, event="candidate.waits", subject="candidate 1", title="A candidate waits")
    assert told(notice) == {"approver"}


def test_it_goes_to_everyone_with_the_permission_once(cast: Cast) -> None:
    Membership.objects.create(user=cast.reviewer, project=cast.project, role=Role.TRAINER)
    notice = notify(project=cast.project, event="run.failed", subject="run 1", title="t", to=Permission.TRAIN)
    assert told(notice) == {"reviewer", "trainer", "admin"}


def test_it_goes_to_those_who_are_named_and_may_see_the_project(cast: Cast) -> None:
    cast.viewer.is_active = False
    cast.viewer.save()
    notice = notify(
        project=cast.project,
        event="comment.mention",
        subject="trajectory 1",
        title="t",
        to=[cast.reviewer, cast.stranger, cast.viewer],
    )
    assert told(notice) == {"reviewer"}


def test_an_event_that_concerns_the_named_alone_goes_to_nobody_else(cast: Cast) -> None:
    assert told(notify(project=cast.project, event="queue.assigned", subject="queue 1", title="t")) == set()


def test_an_event_that_is_unknown_is_refused(cast: Cast) -> None:
    with pytest.raises(ValueError, match="canary"):
        notify(project=cast.project, event="canary", subject="s", title="t")


def test_it_goes_to_the_targets_that_want_the_event(cast: Cast) -> None:
    wanting = target(cast, "a", "run.ended", "run.failed")
    target(cast, "b", "run.ended")
    notice = notify(project=cast.project, event="run.failed", subject="run 1", title="t")
    assert [row.target for row in notice.deliveries.all()] == [wanting]


def test_it_is_written_with_the_change_or_not_at_all(cast: Cast) -> None:
    target(cast, "a", "run.failed")
    with transaction.atomic():
        notify(project=cast.project, event="run.failed", subject="run 1", title="t")
        transaction.set_rollback(True)
    assert [model.objects.count() for model in (Notice, InboxEntry, NoticeDelivery)] == [0, 0, 0]


def test_what_is_too_long_is_cut(cast: Cast) -> None:
    notice = notify(project=cast.project, event="run.failed", subject="s" * 999, title="t" * 999, text="x" * 9_999)
    notice.refresh_from_db()
    assert (len(notice.subject), len(notice.title), len(notice.text)) == (200, 300, 4_000)
