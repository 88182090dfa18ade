"""The pages of queues: making one, what its desk shows and hides, what is told, and undoing."""

import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.failures.models import Failure, Queue, QueueItem, Review
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, archive, make
from flywheel.failures.queues.reservations import hold, take
from flywheel.failures.queues.reviews import give
from flywheel.trajectories.models import Bulk, Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of
from workers.jobs.detection import detect_waiting

BROKEN = '{"tool": "email.send", "arguments": {"to": '
HTMX = {"HX-Request": "true"}
State = QueueItem.State

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
Make = Callable[..., Queue]


@pytest.fixture
def queue(cast: Cast, build: Build) -> Make:
    def go(count: int = 3, **fields: Any) -> Queue:
        wanted = Wanted(**{"name": f"queue {Queue.objects.count()}", **fields})
        made = make(project=cast.project, actor=Actor(cast.builder), wanted=wanted)
        rows = [build.trajectory(answer=BROKEN, prompt=f"Write to person {n}") for n in range(count)]
        detect_waiting()
        intake.add(queue=made, keys=[row.pk for row in rows], actor=Actor(cast.builder))
        return made

    return go


def at(name: str, queue: Queue | None = None, item: QueueItem | None = None) -> str:
    return reverse(f"failures:{name}", args=["acme", *([queue.pk] if queue else []), *([item.pk] if item else [])])


def items(queue: Queue) -> list[QueueItem]:
    return list(queue.items.select_related("queue", "trajectory").order_by("queued_at", "pk"))


def test_a_queue_is_made_edited_and_archived(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    client = sign_in(cast.builder)
    sent = {"name": "format", "rule": "detected", "bucket": "format_error", "needed": "2", "minutes": "5"}
    made = client.post(at("new_queue"), {**sent, "assignees": ["reviewer", "trainer"], "instructions": "Look twice."})
    found = Queue.objects.get()
    assert made["Location"] == at("queue_detail", found)
    assert sorted(person.username for person in found.assignees.all()) == ["reviewer", "trainer"]
    assert (found.rule, found.bucket, found.needed, found.minutes) == ("detected", "format_error", 2, 5)
    refused = client.post(at("new_queue"), {**sent, "needed": "3", "assignees": ["reviewer"]})
    assert refused.status_code == 422
    assert "a queue &#x27;format&#x27; already exists" in page_of(refused)
    page = page_of(client.get(at("edit_queue", found)))
    assert "Look twice." in page
    client.post(at("edit_queue", found), {**sent, "name": "renamed"})
    found.refresh_from_db()
    assert (found.name, found.assignees.count()) == ("renamed", 0)
    client.post(at("archive_queue", found))
    assert "renamed" not in page_of(client.get(at("queues")))
    assert "renamed" in page_of(client.get(at("queues") + "?archived=1"))


def test_a_queue_begins_with_what_was_chosen_in_the_list(cast: Cast, sign_in: SignIn, build: Build) -> None:
    wanted = [build.trajectory(prompt=f"A refund {n}", tags=["vip"]) for n in range(3)]
    build.trajectory()
    client, sent = sign_in(cast.builder), {"key": str(uuid.uuid4()), "q": "tag:vip"}
    assert "New queue…" in page_of(client.get("/p/acme/trajectories/"))
    assert "New queue…" not in page_of(sign_in(cast.reviewer).get("/p/acme/trajectories/"))
    page = page_of(client.post(at("new_queue"), {**sent, "all": "1", "id": wanted[0].trace_id, "begin": "1"}))
    assert "Starts with 3 trajectories" in re.sub("<[^>]*>", "", page)
    assert "tag:vip" in page
    assert wanted[0].trace_id not in page
    filled = {**sent, "rule": "hand", "needed": "2", "minutes": "5"}
    assert "This field is required" in page_of(client.post(at("new_queue"), {**filled, "name": ""}))
    told = page_of(client.post(at("new_queue"), {**filled, "name": "refunds"}, follow=True))
    assert "being added in the background" in told
    job, made = Bulk.objects.get(), Queue.objects.get()
    assert (job.action, job.q, job.ids, job.options["queue"]) == ("queue", "tag:vip", [], made.pk)
    client.post(at("new_queue"), {**filled, "name": "refunds again"})
    assert Bulk.objects.get() == job, "the same key is the same request"
    one = {**filled, "key": str(uuid.uuid4()), "id": wanted[1].trace_id, "name": "one"}
    assert "Starts with 1 trajectory" in re.sub(
        "<[^>]*>", "", page_of(client.post(at("new_queue"), {**one, "begin": "1"}))
    )
    client.post(at("new_queue"), one)
    assert Bulk.objects.latest("pk").ids == [wanted[1].trace_id]
    assert client.post(at("new_queue"), {**sent, "q": "moon:1", "begin": "1"}).status_code == 400
    assert sign_in(cast.reviewer).post(at("new_queue"), {**sent, "begin": "1"}).status_code == 403


def test_trajectories_are_added_by_hand_and_what_was_not_found_is_said(
    cast: Cast, sign_in: SignIn, queue: Make, build: Build
) -> None:
    made, row, other = queue(0), build.trajectory(), build.trajectory(project=cast.elsewhere)
    client = sign_in(cast.reviewer)
    sent = {"queue": str(made.pk), "trace_ids": f"{row.trace_id},\n{other.trace_id}"}
    page = page_of(client.post(at("add_to_queue"), sent, follow=True))
    assert "1 added" in page
    assert f"1 not found: {other.trace_id}" in page
    page = page_of(client.post(at("add_to_queue"), sent, follow=True))
    assert "0 added" in page
    assert "1 was already in it" in page
    archive(queue=made, actor=Actor(cast.builder))
    assert "is archived" in page_of(client.post(at("add_to_queue"), sent, follow=True))
    assert client.post(at("add_to_queue"), {"queue": "0", "trace_ids": "x"}).status_code == 404


def test_taking_leads_from_item_to_item_until_nothing_is_left(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(2)
    a, b = items(made)
    client = sign_in(cast.reviewer)
    assert client.post(at("take", made))["Location"] == at("item", made, a)
    assert client.get(at("desk", made))["Location"] == at("item", made, a)
    page = page_of(client.get(at("item", made, a)))
    assert "Write to person 0" in page
    assert re.search(r'<span class="chip accent">yours</span>', page)
    answer = client.post(at("decide", made, a), {"quick": "confirm", "seen": "0"}, headers=HTMX)
    assert answer["HX-Push-Url"] == at("item", made, b)
    answer = client.post(at("decline", made, b), {"reason": "a test run"}, headers=HTMX)
    assert answer["HX-Push-Url"] == at("desk", made)
    assert "All caught up" in page_of(answer)
    assert [item.state for item in items(made)] == [State.DONE, State.DECLINED]


def test_looking_reserves_nothing_and_the_open_page_does(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    client = sign_in(cast.reviewer)
    page = page_of(client.get(at("item", made, item)))
    assert not items(made)[0].is_reserved
    assert re.search(rf'hx-post="{at("hold", made, item)}" hx-trigger="load, every 60s,', page)
    fragment = page_of(client.post(at("hold", made, item), headers=HTMX))
    assert items(made)[0].reserved_by == cast.reviewer
    assert 'hx-trigger="every 60s,' in fragment
    told = page_of(sign_in(cast.builder).post(at("hold", made, item), headers=HTMX))
    assert "Reviewer has this item, for 15 more minutes at least" in told
    page = page_of(sign_in(cast.builder).get(at("item", made, item)))
    assert "reviewer has this item" in page
    assert 'id="decision"' not in page
    viewer = page_of(sign_in(cast.viewer).get(at("item", made, item)))
    assert 'id="hold"' not in viewer


def test_who_comes_too_late_is_told_and_keeps_what_was_written(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    client = sign_in(cast.reviewer)
    client.post(at("take", made))
    QueueItem.objects.update(reserved_until=timezone.now() - timedelta(seconds=1))
    hold(item=item, actor=Actor(cast.builder))
    sent = {"bucket": "wrong_tool", "note": "my words", "seen": "0", "correct": "1", "tool": "email.send"}
    sent |= {"was": "form", "arg.to": "Bako", "arg.subject": "hello"}
    answer = client.post(at("decide", made, item), sent, headers=HTMX)
    page = page_of(answer)
    assert (answer.status_code, answer["HX-Retarget"]) == (422, "#decision-pane")
    assert "Your reservation has run out, and builder has this item" in page
    assert ">my words</textarea>" in page
    assert 'value="hello"' in page
    assert not Review.objects.exists()
    give(item=item, actor=Actor(cast.builder), bucket="format_error")
    page = page_of(client.post(at("decide", made, item), sent, headers=HTMX))
    assert "builder decided broken format since you opened this. Yours is not saved; save again to replace it" in page
    failure = Failure.objects.get()
    client.post(at("decide", made, item), {**sent, "seen": str(failure.pk)}, headers=HTMX)
    current = Failure.objects.get(current=True)
    assert (current.bucket, current.note, current.labelled_by) == ("wrong_tool", "my words", cast.reviewer)


def test_reviewers_are_blind_until_enough_have_decided(cast: Cast, sign_in: SignIn, queue: Make, build: Build) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    first, second = sign_in(cast.reviewer), sign_in(cast.builder)
    first.post(at("decide", made, item), {"bucket": "bad_planning", "note": "secret of the first", "seen": "0"})
    pages = [at("item", made, item), at("queue_detail", made), at("queues"), at("queue_agreement", made)]
    trace = item.trajectory.trace_id
    pages += [reverse(f"failures:{name}", args=["acme", trace]) for name in ("review", "panel")]
    for page in pages:
        text = page_of(second.get(page))
        assert "secret of the first" not in text, page
        assert not re.search(r"[Bb]ad planning</b>", text), page
    text = page_of(second.get(at("item", made, item)))
    assert 'hx-get="/p/acme/environments/make' not in text, "no task before there is an outcome"
    own = page_of(first.get(at("item", made, item)))
    assert "<b>Bad planning</b>, you said" in own
    assert "secret of the first</textarea>" in own
    second.post(at("decide", made, item), {"bucket": "bad_planning", "seen": "0"})
    text = page_of(second.get(at("item", made, item)))
    assert "secret of the first" in text
    assert "<b>bad planning</b> by reviewer" in text
    third = page_of(sign_in(cast.trainer).get(at("item", made, item)))
    assert "Enough reviewers have decided." in third
    assert "Reopen for another reviewer" in third


def test_a_builder_settles_what_reviewers_disagree_on(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", note="first words")
    give(item=item, actor=Actor(cast.trainer), bucket="bad_planning")
    client = sign_in(cast.builder)
    page = page_of(client.get(at("item", made, item)))
    assert "Its reviewers disagree" in page
    assert "first words" not in page
    page = page_of(client.get(at("item", made, item) + "?settle=1"))
    assert "first words" in page
    sent = {"bucket": "wrong_tool", "seen": "0", "settle": "1"}
    assert sign_in(cast.approver).post(at("decide", made, item), sent).status_code == 403
    aside = reverse("failures:label", args=["acme", item.trajectory.trace_id])
    assert sign_in(cast.approver).post(aside, {**sent, "item": item.pk}).status_code == 403, "nor by the open queue"
    assert "first words" not in page_of(sign_in(cast.approver).get(at("item", made, item) + "?settle=1"))
    client.post(at("decide", made, item), sent)
    assert Failure.objects.get().bucket == "wrong_tool"
    assert items(made)[0].state == State.DONE


def test_a_builder_who_is_no_reviewer_settles_also_what_somebody_has_in_hand(
    cast: Cast, sign_in: SignIn, queue: Make
) -> None:
    made = queue(1, needed=2, assignees=["reviewer", "trainer", "approver"])
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.trainer), bucket="bad_planning")
    assert take(queue=made, actor=Actor(cast.approver)) == item
    client = sign_in(cast.builder)
    address = at("item", made, item)
    assert "not a reviewer of the queue" in page_of(client.get(address))
    page = page_of(client.get(f"{address}?settle=1"))
    assert "Settle & next" in page
    assert 'id="hold"' not in page, "nothing is reserved by who settles"
    sent = {"bucket": "wrong_tool", "seen": "0", "settle": "1"}
    page = page_of(client.post(at("decide", made, item), sent, headers=HTMX))
    assert "Settled." in page
    assert items(made)[0].state == State.DONE
    answer = client.post(at("skip", made, item), headers=HTMX)
    assert answer["HX-Redirect"] == f"/p/acme/failures/queues/{made.pk}/", "instead of the whole page in a pane"


def test_undo_takes_back_the_decisions_of_the_sitting_one_by_one(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(4)
    client = sign_in(cast.reviewer)
    client.post(at("take", made))
    for place, item in enumerate(items(made)):
        if place == 2:
            client.post(at("decline", made, item), {"reason": "a test"}, headers=HTMX)
        else:
            client.post(at("decide", made, item), {"quick": "confirm", "seen": "0"}, headers=HTMX)
    for item in reversed(items(made)):
        page = page_of(client.get(at("desk", made), follow=True))
        undo = re.search(r'class="last" method="post" action="([^"]+)"', page)
        assert undo
        assert undo[1] == at("take_back", made, item)
        answer = client.post(undo[1], headers=HTMX)
        assert answer["HX-Push-Url"] == at("item", made, item)
        assert "Undone: " in page_of(answer)
    assert [item.state for item in items(made)] == [State.TO_REVIEW] * 4
    assert not Failure.objects.filter(current=True).exists()
    assert set(Trajectory.objects.values_list("label", flat=True)) == {""}
    assert 'data-key="u"' not in page_of(client.get(at("desk", made), follow=True))


def test_the_open_queue_does_not_undo_what_came_of_an_item(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(1)
    give(item=items(made)[0], actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert 'data-key="u"' not in page_of(sign_in(cast.reviewer).get(at("queue")))


def test_skipping_and_putting_at_the_end(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(3)
    a, b, c = items(made)
    client = sign_in(cast.reviewer)
    client.post(at("take", made))
    assert client.post(at("skip", made, a), headers=HTMX)["HX-Push-Url"] == at("item", made, b)
    assert client.post(at("requeue", made, b), headers=HTMX)["HX-Push-Url"] == at("item", made, a)
    assert items(made) == [a, c, b]
    take(queue=made, actor=Actor(cast.builder))
    told = page_of(client.post(at("requeue", made, c), headers=HTMX))
    assert "Not moved: builder has this item" in told


def test_a_task_is_made_from_the_desk_of_a_queue(cast: Cast, sign_in: SignIn, queue: Make, build: Build) -> None:
    """`x` sends the decision form, which says of which item it is."""
    build.environment()
    made = queue(1)
    [item] = items(made)
    client = sign_in(cast.builder)
    client.post(at("take", made))
    page = page_of(client.get(at("item", made, item)))
    assert f'<input type="hidden" name="item" value="{item.pk}">' in page
    sent = {"item": str(item.pk), "seen": "0", "environment": "mail", "bucket": "format_error", "correct": "1"}
    sent |= {"tool": "email.send", "was": "form", "arg.to": "Bako"}
    url = reverse("environments:make_task", args=["acme", item.trajectory.trace_id])
    refused = client.post(url, sent, headers=HTMX)
    assert refused.status_code == 422
    assert f'action="{at("decide", made, item)}"' in page_of(refused)
    client.post(url, {**sent, "arg.subject": "hello"}, headers=HTMX)
    assert items(made)[0].state == State.DONE
    assert Review.objects.get().corrected == {"tool": "email.send", "arguments": {"to": "Bako", "subject": "hello"}}


def test_who_is_not_named_may_look_and_not_decide(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(1, assignees=["trainer"])
    [item] = items(made)
    client = sign_in(cast.reviewer)
    assert "not a reviewer of the queue" in page_of(client.get(at("item", made, item)))
    page = page_of(client.post(at("take", made), follow=True))
    assert "No item" in page
    client.post(at("decide", made, item), {"bucket": "wrong_tool", "seen": "0"})
    assert not Review.objects.exists()


def test_progress_and_agreement_are_shown_per_person_and_bucket(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    made = queue(12, needed=2)
    for place, item in enumerate(items(made)):
        give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool" if place % 2 else "format_error")
        give(item=item, actor=Actor(cast.trainer), bucket="wrong_tool" if place % 2 or place < 2 else "format_error")
    disputed = items(made)[0]
    assert disputed.state == State.NEEDS_ANOTHER
    give(item=disputed, actor=Actor(cast.builder), bucket="wrong_tool")
    client = sign_in(cast.viewer)
    page = page_of(client.get(at("queue_detail", made)))
    assert re.search(r"<td>reviewer</td><td class=\"num\">12</td>", page)
    assert re.search(r"<td>builder</td><td class=\"num\">1</td>", page)
    shown = page_of(client.get(at("queue_agreement", made)))
    assert "12 items" in shown
    assert "reviewer, trainer" in shown
    assert "builder" not in shown, "who came because the others disagreed says nothing of how far they agree"
    assert "Broken format" in shown


def test_what_an_agent_or_a_person_wrote_stays_text(cast: Cast, sign_in: SignIn, queue: Make) -> None:
    hostile = "<script>alert(1)</script>"
    made = queue(1, name=hostile, instructions=hostile)
    Trajectory.objects.update(title=hostile)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", note=hostile)
    client = sign_in(cast.builder)
    for page in (at("queues"), at("queue_detail", made), at("item", made, item), at("edit_queue", made)):
        assert "<script>alert" not in page_of(client.get(page)), page


def test_the_pages_cost_the_same_for_one_item_and_for_many(
    cast: Cast, sign_in: SignIn, queue: Make, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    made = queue(60)
    client = sign_in(cast.builder)
    client.post(at("take", made))
    for item in items(made)[:3]:
        client.post(at("decide", made, item), {"quick": "confirm", "seen": "0"})
    in_hand = client.get(at("desk", made))["Location"]
    for page, limit in ((in_hand, 60), (at("queue_detail", made), 40), (at("queues"), 40)):
        client.get(page)
        with django_assert_max_num_queries(limit):
            client.get(page)
