"""The inbox: its pages, the count in the header, and the same for programs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import InboxEntry, Notice, User
from flywheel.accounts.notices import notify
from flywheel.accounts.notices.inbox import mark_read
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
INBOX = "/p/acme/notices/"


def waits(cast: Cast, number: int = 1, **more: Any) -> Notice:
    given = {"title": f"Candidate {number} waits", "url": f"/p/acme/promotions/?n={number}", **more}
    return notify(project=cast.project, event="candidate.waits", subject=f"candidate {number}", **given)


def test_the_header_counts_what_is_unread(cast: Cast, sign_in: SignIn) -> None:
    overview = reverse("overview:index", args=["acme"])
    assert "unread notices" not in sign_in(cast.approver).get(overview).content.decode()
    waits(cast)
    waits(cast, 2)
    page = sign_in(cast.approver).get(overview).content.decode()
    assert '<b class="num">2</b><span\n        class="sr-only"> unread notices' in page
    assert "unread notices" not in sign_in(cast.viewer).get(overview).content.decode()


def test_a_notice_leads_to_its_subject_and_is_read_by_that(cast: Cast, sign_in: SignIn) -> None:
    waits(cast)
    client = sign_in(cast.approver)
    assert "Candidate 1 waits" in client.get(INBOX).content.decode()
    entry = InboxEntry.objects.get()
    assert entry.read_at is None
    answer = client.post(f"{INBOX}{entry.pk}/read/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/p/acme/promotions/?n=1")
    entry.refresh_from_db()
    assert entry.read_at is not None


@pytest.mark.parametrize("url", ["", "https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"])
def test_a_notice_leads_nowhere_else(cast: Cast, sign_in: SignIn, url: str) -> None:
    waits(cast, url=url)
    answer = sign_in(cast.approver).post(f"{INBOX}{InboxEntry.objects.get().pk}/read/")
    assert answer.headers["Location"] == INBOX


def test_one_can_be_marked_read_without_going_there(cast: Cast, sign_in: SignIn) -> None:
    waits(cast)
    answer = sign_in(cast.approver).post(f"{INBOX}{InboxEntry.objects.get().pk}/read/", {"stay": "1"})
    assert answer.headers["Location"] == INBOX
    assert InboxEntry.objects.filter(read_at=None).count() == 0


def test_nobody_reads_for_another(cast: Cast, sign_in: SignIn) -> None:
    waits(cast)
    entry = InboxEntry.objects.get()
    assert sign_in(cast.viewer).post(f"{INBOX}{entry.pk}/read/").status_code == 404
    sign_in(cast.viewer).post(f"{INBOX}read/")
    entry.refresh_from_db()
    assert entry.read_at is None


def test_all_are_marked_read_in_this_project_alone(cast: Cast, sign_in: SignIn) -> None:
    cast.approver.memberships.create(project=cast.elsewhere, role="approver")
    other = notify(project=cast.elsewhere, event="candidate.waits", subject="candidate 9", title="elsewhere")
    waits(cast)
    waits(cast, 2)
    sign_in(cast.approver).post(f"{INBOX}read/")
    assert [row.notice for row in InboxEntry.objects.filter(user=cast.approver, read_at=None)] == [other]


def test_reading_about_a_subject_marks_its_notices(cast: Cast) -> None:
    waits(cast)
    two = waits(cast, 2)
    assert mark_read(project=cast.project, user=cast.approver, subject="candidate 1") == 1
    assert [row.notice for row in InboxEntry.objects.filter(read_at=None)] == [two]


def test_the_list_goes_on_by_pages_and_shows_the_unread_alone(cast: Cast, sign_in: SignIn) -> None:
    for number in range(60):
        waits(cast, number)
    mark_read(project=cast.project, user=cast.approver, subject="candidate 59")
    client = sign_in(cast.approver)
    first = client.get(INBOX)
    assert "Candidate 59 waits" in first.content.decode()
    assert len(first.context["page"].items) == 50
    second = client.get(INBOX + first.context["page"].next)
    assert [row.notice.subject for row in second.context["page"].items][-1] == "candidate 0"
    unread = client.get(INBOX, {"unread": "1"})
    assert "Candidate 59 waits" not in unread.content.decode()
    assert "unread=1" in unread.context["page"].next


def test_the_list_costs_the_same_for_any_number(
    cast: Cast, sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        waits(cast, number)
    client = sign_in(cast.approver)
    with django_assert_max_num_queries(8):
        client.get(INBOX)


def test_programs_read_the_inbox_of_their_maker(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    waits(cast, text="against v3")
    two = waits(cast, 2)
    headers = key("read", by=cast.approver)
    items = client.get("/api/v1/notices", headers=headers).json()["items"]
    assert [item["subject"] for item in items] == ["candidate 2", "candidate 1"]
    assert items[1] == {
        "id": items[1]["id"],
        "at": items[1]["at"],
        "event": "candidate.waits",
        "subject": "candidate 1",
        "title": "Candidate 1 waits",
        "text": "against v3",
        "url": "/p/acme/promotions/?n=1",
        "read_at": None,
    }
    wanted = {"ids": [items[0]["id"], 10**9]}
    read = client.post("/api/v1/notices/read", wanted, content_type="application/json", headers=headers)
    assert read.json() == {"read": 1}
    assert two.entries.get().read_at is not None
    unread = client.get("/api/v1/notices?unread=true", headers=headers).json()["items"]
    assert [item["subject"] for item in unread] == ["candidate 1"]
    rest = client.post("/api/v1/notices/read", {}, content_type="application/json", headers=headers)
    assert rest.json() == {"read": 1}
    assert client.get("/api/v1/notices", headers=key("read", by=cast.viewer)).json()["items"] == []
