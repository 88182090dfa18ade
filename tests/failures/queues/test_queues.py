"""Queues: what comes into them, who is given what, what reviewers say and what it means, and that nothing is lost."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.access import Forbidden
from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, InboxEntry, User
from flywheel.edge.refusals import Refused
from flywheel.failures.labels.decisions import Superseded, decide, undo
from flywheel.failures.models import Failure, Queue, QueueItem, Review
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, archive, change, make
from flywheel.failures.queues.reservations import Held, NotYours, hold, release, requeue, take
from flywheel.failures.queues.reviews import Closed, decline, give, reopen, speaking, take_back
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast
from tests.waiting import PATIENCE_S
from workers.jobs.detection import detect_waiting

pytestmark = pytest.mark.django_db
Make = Callable[..., Queue]
State = QueueItem.State


@pytest.fixture
def queue(cast: Cast, build: Build) -> Make:
    """`queue(3, needed=2)`: with three trajectories in it."""

    def go(count: int = 3, with_existing: bool = False, **fields: object) -> Queue:
        wanted = Wanted(**{"name": f"queue {Queue.objects.count()}", **fields})  # type: ignore[arg-type]
        made = make(project=cast.project, actor=Actor(cast.builder), wanted=wanted, with_existing=with_existing)
        intake.add(queue=made, keys=[build.trajectory().pk for _ in range(count)], actor=Actor(cast.builder))
        return made

    return go


def items(queue: Queue) -> list[QueueItem]:
    return list(queue.items.select_related("queue", "trajectory", "outcome").order_by("queued_at", "pk"))


def first(queue: Queue) -> QueueItem:
    return items(queue)[0]


def expire(item: QueueItem) -> None:
    QueueItem.objects.filter(pk=item.pk).update(reserved_until=timezone.now() - timedelta(seconds=1))


def label_of(item: QueueItem) -> tuple[str, str]:
    row = Trajectory.objects.get(pk=item.trajectory_id)
    return row.label, row.label_bucket


# Taking


def test_items_are_handed_out_in_order_and_one_keeps_what_one_has(cast: Cast, queue: Make) -> None:
    made = queue(3)
    a, b, c = items(made)
    assert take(queue=made, actor=Actor(cast.reviewer)) == a
    assert take(queue=made, actor=Actor(cast.reviewer)) == a, "opened again"
    assert take(queue=made, actor=Actor(cast.builder)) == b
    assert take(queue=made, actor=Actor(cast.trainer)) == c
    assert take(queue=made, actor=Actor(cast.approver)) is None
    assert [item.state_now for item in items(made)] == ["in_review"] * 3


def test_skipping_frees_the_item_and_goes_round(cast: Cast, queue: Make) -> None:
    made = queue(3)
    a, b, c = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    assert take(queue=made, actor=Actor(cast.reviewer), after=a) == b
    assert take(queue=made, actor=Actor(cast.builder)) == a, "free again"
    assert take(queue=made, actor=Actor(cast.reviewer), after=b) == c
    assert take(queue=made, actor=Actor(cast.reviewer), after=c) == b, (
        "from the end on from the beginning, past what others have"
    )
    hold(item=a, actor=Actor(cast.builder))
    hold(item=c, actor=Actor(cast.builder))
    assert take(queue=made, actor=Actor(cast.reviewer), after=b) is None, "what one skips is not given back at once"


def test_an_expired_reservation_is_free_and_a_heartbeat_keeps_it(cast: Cast, queue: Make) -> None:
    made = queue(1, minutes=5)
    [item] = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    with pytest.raises(Held, match="reviewer has this item, for 5 more minutes"):
        hold(item=item, actor=Actor(cast.builder))
    expire(item)
    hold(item=item, actor=Actor(cast.reviewer))
    assert take(queue=made, actor=Actor(cast.builder)) is None, "nobody took it meanwhile: the page had it again"
    expire(item)
    assert take(queue=made, actor=Actor(cast.builder)) == item
    with pytest.raises(Held, match="builder has this item"):
        hold(item=item, actor=Actor(cast.reviewer))
    release(item=item, actor=Actor(cast.reviewer))
    assert first(made).reserved_by == cast.builder, "only one's own"


def test_putting_at_the_end(cast: Cast, queue: Make) -> None:
    made = queue(3)
    a, b, c = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    with pytest.raises(Held):
        requeue(item=a, actor=Actor(cast.builder))
    requeue(item=a, actor=Actor(cast.reviewer))
    assert items(made) == [b, c, a]
    assert first(made).reserved_by is None


def test_named_reviewers_alone_are_given_something(cast: Cast, queue: Make) -> None:
    made = queue(2, assignees=["reviewer", "trainer"], needed=2)
    with pytest.raises(NotYours):
        take(queue=made, actor=Actor(cast.builder))
    with pytest.raises(NotYours):
        hold(item=first(made), actor=Actor(cast.builder))
    with pytest.raises(NotYours):
        give(item=first(made), actor=Actor(cast.builder), bucket="wrong_tool")
    assert take(queue=made, actor=Actor(cast.trainer)) == first(made)


def test_who_is_assigned_a_queue_is_told_once_and_not_by_themselves(cast: Cast) -> None:
    actor = Actor(cast.builder)
    made = make(project=cast.project, actor=actor, wanted=Wanted("q", assignees=["builder", "reviewer"]))
    change(queue=made, actor=actor, wanted=Wanted("q", assignees=["reviewer", "trainer"]))
    change(queue=made, actor=actor, wanted=Wanted("q"))
    told = InboxEntry.objects.order_by("pk").values_list("user__username", "notice__title", "notice__url")
    page = reverse("failures:queue_detail", args=["acme", made.pk])
    assert list(told) == [
        ("reviewer", "builder assigned the queue q to reviewer", page),
        ("trainer", "builder assigned the queue q to trainer", page),
    ]


def test_nobody_is_given_anything_of_an_archived_queue(cast: Cast, queue: Make) -> None:
    made = queue(1)
    archive(queue=made, actor=Actor(cast.builder))
    assert take(queue=made, actor=Actor(cast.reviewer)) is None
    with pytest.raises(Closed, match="archived"):
        give(item=first(made), actor=Actor(cast.reviewer), bucket="wrong_tool")
    archive(queue=made, actor=Actor(cast.builder), is_archived=False)
    assert take(queue=made, actor=Actor(cast.reviewer)) == first(made)


@pytest.mark.django_db(transaction=True)
def test_people_at_once_never_get_the_same_item(cast: Cast, queue: Make) -> None:
    """Each in a connection of their own, as fast as they can, until the queue is empty."""
    made = queue(60)
    people = [cast.reviewer, cast.builder, cast.trainer, cast.approver]
    together = threading.Barrier(len(people))
    given: list[int] = []

    def work(person: User) -> None:
        try:
            together.wait()
            while item := take(queue=made, actor=Actor(person)):
                given.append(item.pk)
                give(item=item, actor=Actor(person), bucket="wrong_tool")
        finally:
            connection.close()

    at_once([lambda person=person: work(person) for person in people])  # type: ignore[misc]
    assert len(given) == len(set(given)) == 60
    assert made.items.filter(state=State.DONE).count() == 60


@pytest.mark.django_db(transaction=True)
def test_of_people_who_want_one_item_at_once_one_gets_it(cast: Cast, queue: Make) -> None:
    made = queue(12)
    people = [cast.reviewer, cast.builder, cast.trainer]
    together = threading.Barrier(len(people))
    got: list[tuple[int, str]] = []

    def work(person: User) -> None:
        try:
            for item in items(made):
                together.wait()
                try:
                    hold(item=item, actor=Actor(person))
                except Held:
                    continue
                got.append((item.pk, person.username))
        finally:
            connection.close()

    at_once([lambda person=person: work(person) for person in people])  # type: ignore[misc]
    assert sorted(pk for pk, _ in got) == sorted(item.pk for item in items(made))
    assert {(item.pk, item.reserved_by.username) for item in made.items.select_related("reserved_by")} == set(got)  # type: ignore[union-attr]


def at_once(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# One reviewer


def test_one_reviewer_decides_alone(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", note="looked", seen=0)
    item = first(made)
    assert (item.state, item.reserved_by, label_of(item)) == (State.DONE, None, ("failure", "wrong_tool"))
    assert item.outcome is not None
    assert (item.outcome.labelled_by, item.outcome.note) == (cast.reviewer, "looked")
    actions = AuditEntry.objects.order_by("pk").values_list("action", "through")
    assert ("failures.added", f"queue {made}") in actions
    assert actions.last() == ("failures.review", "")


def test_a_late_decision_is_told_who_has_the_item_and_changes_nothing(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    expire(item)
    take(queue=made, actor=Actor(cast.builder))
    with pytest.raises(Held, match="builder has this item"):
        give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", seen=0)
    assert not Review.objects.exists()
    give(item=item, actor=Actor(cast.builder), bucket="format_error", seen=0)
    with pytest.raises(Superseded, match="builder decided broken format since you opened this") as caught:
        give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", seen=0)
    assert label_of(item) == ("failure", "format_error")
    assert Review.objects.count() == 1
    assert caught.value.current is not None
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", seen=caught.value.current.pk)
    assert label_of(item) == ("failure", "wrong_tool")


def test_an_expired_reservation_that_nobody_took_still_decides(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    take(queue=made, actor=Actor(cast.reviewer))
    expire(item)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert first(made).state == State.DONE


def test_the_same_review_twice_is_one_even_when_the_item_went_on(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    sent = give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", note="once")
    take(queue=made, actor=Actor(cast.builder))
    assert give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", note=" once ") == sent
    assert item.reviews.count() == 1


def test_correcting_a_done_item_supersedes_and_keeps_what_was(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.reviewer), bucket="format_error")
    assert label_of(item) == ("failure", "format_error")
    assert list(item.reviews.values_list("bucket", "current")) == [("wrong_tool", False), ("format_error", True)]
    assert item.trajectory.failures.count() == 2


def test_a_decision_made_elsewhere_is_the_one_that_was_wanted(cast: Cast, build: Build, queue: Make) -> None:
    one, several, named = queue(0), queue(0, needed=2), queue(0, assignees=["trainer"])
    row = build.trajectory()
    for made in (one, several, named):
        intake.add(queue=made, keys=[row.pk], actor=Actor(cast.builder))
    decided = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert (first(one).state, first(one).outcome) == (State.DONE, decided)
    assert first(several).state == State.TO_REVIEW
    assert first(named).state == State.TO_REVIEW
    undo(trajectory=row, actor=Actor(cast.reviewer))
    assert first(one).state == State.TO_REVIEW


# Several reviewers


def test_an_outcome_needs_as_many_as_the_queue_says(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", corrected={"text": "no"})
    assert (first(made).state, label_of(item)) == (State.NEEDS_ANOTHER, ("", ""))
    assert not Failure.objects.exists()
    assert take(queue=made, actor=Actor(cast.reviewer)) is None, "one has decided"
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", corrected={"text": "no"}, note="again")
    assert first(made).state == State.NEEDS_ANOTHER, "the same person is one reviewer"
    assert take(queue=made, actor=Actor(cast.builder)) == item
    give(item=item, actor=Actor(cast.builder), bucket="wrong_tool")
    assert (first(made).state, label_of(item)) == (State.DONE, ("failure", "wrong_tool"))
    outcome = first(made).outcome
    assert outcome is not None
    assert outcome.corrected == {"text": "no"}, "of those who agree, the one who wrote what is right"
    with pytest.raises(Closed, match="enough reviewers have decided"):
        give(item=item, actor=Actor(cast.trainer), bucket="wrong_tool")


def test_who_disagrees_needs_another_and_the_majority_decides(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder))
    assert (first(made).state, label_of(item)) == (State.NEEDS_ANOTHER, ("", ""))
    give(item=item, actor=Actor(cast.trainer))
    assert (first(made).state, label_of(item)) == (State.DONE, ("pass", ""))
    assert first(made).outcome.labelled_by == cast.trainer  # type: ignore[union-attr]


def test_somebody_settles_what_reviewers_do_not_agree_on(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    with pytest.raises(Closed, match="nothing to settle"):
        give(item=item, actor=Actor(cast.builder), bucket="format_error", settles=True)
    give(item=item, actor=Actor(cast.builder), bucket="bad_planning")
    settled = give(item=item, actor=Actor(cast.builder), bucket="format_error", settles=True)
    assert (first(made).state, label_of(item)) == (State.DONE, ("failure", "format_error"))
    assert not settled.is_blind
    give(item=item, actor=Actor(cast.reviewer), bucket="unsafe_action")
    assert label_of(item) == ("failure", "format_error"), "what was settled stays"


def test_who_has_spoken_settles_with_the_same_words(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="bad_planning")
    give(item=item, actor=Actor(cast.builder), bucket="bad_planning", settles=True)
    assert (first(made).state, label_of(item)) == (State.DONE, ("failure", "bad_planning"))


def test_only_who_may_build_settles(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="bad_planning")
    with pytest.raises(Forbidden):
        give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool", settles=True)


def test_a_correction_may_change_what_the_majority_is(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=3)
    [item] = items(made)
    for person, bucket in ((cast.reviewer, "wrong_tool"), (cast.builder, "wrong_tool"), (cast.trainer, "other")):
        give(item=item, actor=Actor(person), bucket=bucket, note="so")
    assert label_of(item) == ("failure", "wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="other", note="so")
    assert label_of(item) == ("failure", "other")
    assert [review.is_blind for review in item.reviews.order_by("pk")] == [True, True, True, False]


def test_a_closed_item_is_reopened_for_another(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    for person in (cast.reviewer, cast.builder):
        give(item=item, actor=Actor(person), bucket="wrong_tool")
    reopen(item=item, actor=Actor(cast.trainer))
    assert (first(made).state, label_of(item)) == (State.NEEDS_ANOTHER, ("failure", "wrong_tool"))
    assert take(queue=made, actor=Actor(cast.trainer)) == item
    give(item=item, actor=Actor(cast.trainer), bucket="format_error")
    assert (first(made).state, label_of(item)) == (State.DONE, ("failure", "wrong_tool")), "two of three"


@pytest.mark.parametrize(
    ("said", "needed", "expected"),
    [
        ([], 1, None),
        (["a"], 1, 0),
        (["a", "b"], 1, 1),
        (["a"], 2, None),
        (["a", "b"], 2, None),
        (["a", "b", "b"], 2, 2),
        (["a", "b", "c", "a"], 2, None),
        (["a", "b", "c", "a", "a"], 2, 4),
        (["", ""], 2, 1),
        (["a", "-"], 2, 1),
        (["-", "a", "a"], 2, 2),
        (["-", "a"], 1, 1),
        (["a", "b!", "a"], 3, 1),
    ],
)
def test_who_speaks_for_the_item(said: list[str], needed: int, expected: int | None) -> None:
    """`-` declines, `b!` settles."""
    reviews = [
        Review(pk=place, bucket=text.strip("-!"), declined=text == "-", settles=text.endswith("!"))
        for place, text in enumerate(said)
    ]
    assert speaking(reviews, needed) == (None if expected is None else reviews[expected])


# Declining and undoing


def test_of_several_corrections_the_one_that_most_wrote_counts() -> None:
    both: list[dict[str, object]] = [{"tool": name, "arguments": {}} for name in ("a", "b")]
    written = [{"refuse": ""}, {"calls": both, "order": "any"}, {"calls": both[::-1], "order": "any"}, {"ask": ""}]
    reviews = [Review(pk=place, bucket="wrong_tool", corrected=each) for place, each in enumerate(written)]
    assert speaking(reviews, 4) is reviews[2]


def test_declining_says_why_and_closes_the_item(cast: Cast, queue: Make) -> None:
    made = queue(2, needed=2)
    item = first(made)
    with pytest.raises(Refused, match="note: give the reason"):
        decline(item=item, actor=Actor(cast.reviewer), reason=" ")
    decline(item=item, actor=Actor(cast.reviewer), reason="a test run")
    assert (first(made).state, label_of(item)) == (State.DECLINED, ("", ""))
    entry = AuditEntry.objects.get(action="failures.decline")
    assert entry.reason == "a test run"
    assert take(queue=made, actor=Actor(cast.builder)) == items(made)[1]
    with pytest.raises(Closed, match="somebody declined it"):
        give(item=item, actor=Actor(cast.builder), bucket="wrong_tool")
    take_back(item=item, actor=Actor(cast.reviewer))
    assert first(made).state == State.TO_REVIEW


def test_taking_back_goes_step_by_step_and_keeps_the_record(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    for bucket in ("wrong_tool", "format_error", ""):
        give(item=item, actor=Actor(cast.reviewer), bucket=bucket)
    expected: list[tuple[State, tuple[str, str]]] = [
        (State.DONE, ("failure", "format_error")),
        (State.DONE, ("failure", "wrong_tool")),
        (State.TO_REVIEW, ("", "")),
    ]
    for found in expected:
        assert take_back(item=item, actor=Actor(cast.reviewer)) is not None
        assert (first(made).state, label_of(item)) == found
    assert take_back(item=item, actor=Actor(cast.reviewer)) is None
    assert item.reviews.exclude(taken_back_at=None).count() == 3


def test_taking_back_opens_an_item_that_was_decided_together(cast: Cast, queue: Make) -> None:
    made = queue(1, needed=2)
    [item] = items(made)
    for person in (cast.reviewer, cast.builder):
        give(item=item, actor=Actor(person), bucket="wrong_tool")
    take_back(item=item, actor=Actor(cast.reviewer))
    assert (first(made).state, label_of(item), first(made).outcome) == (State.NEEDS_ANOTHER, ("", ""), None)
    assert take(queue=made, actor=Actor(cast.trainer)) == item
    take_back(item=item, actor=Actor(cast.builder))
    assert (first(made).state, first(made).reserved_by) == (State.TO_REVIEW, cast.trainer), "who has it keeps it"


def test_what_somebody_decided_above_is_not_taken_back(cast: Cast, queue: Make) -> None:
    made = queue(1)
    [item] = items(made)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=item.trajectory, actor=Actor(cast.builder), bucket="format_error")
    with pytest.raises(Superseded):
        take_back(item=item, actor=Actor(cast.reviewer))
    assert label_of(item) == ("failure", "format_error")
    assert item.reviews.get().current


# Intake


def test_adding_twice_adds_once_and_never_what_is_of_another_project(cast: Cast, build: Build, queue: Make) -> None:
    made = queue(0)
    mine, other = build.trajectory(), build.trajectory(project=cast.elsewhere)
    assert intake.add(queue=made, keys=[mine.pk, other.pk, mine.pk], actor=Actor(cast.reviewer)) == 1
    assert intake.add(queue=made, keys=[mine.pk], actor=Actor(cast.reviewer)) == 0
    assert [item.trajectory for item in items(made)] == [mine]


def test_a_rule_takes_what_is_there_when_it_is_asked_to(cast: Cast, build: Build, queue: Make) -> None:
    row, other = build.trajectory(answer="{"), build.trajectory()
    detect_waiting()
    new = queue(0, rule="detected", bucket="format_error")
    every = queue(0, with_existing=True, rule="detected")
    intake.catch_up()
    assert items(new) == []
    assert [item.trajectory for item in items(every)] == [row]
    assert intake.catch_up() == 0
    Trajectory.objects.filter(pk__in=[row.pk, other.pk]).update(changed_at=timezone.now())
    detect_waiting()
    assert [item.trajectory for item in items(new)] == [row]
    assert intake.after_detection([row.pk, other.pk]) == 0


def test_a_rule_asks_for_the_bucket_and_the_detector_and_leaves_what_is_decided(
    cast: Cast, build: Build, queue: Make
) -> None:
    decided, row = build.trajectory(answer="{"), build.trajectory(answer="{")
    decide(trajectory=decided, actor=Actor(cast.reviewer), bucket="wrong_tool")
    detect_waiting()
    detector = row.proposals.get().detector
    archived = queue(0, rule="detected")
    archive(queue=archived, actor=Actor(cast.builder))
    queues = [
        queue(0, rule="detected", detector=detector),
        queue(0, rule="detected", detector="repeated_loop"),
        queue(0, rule="detected", bucket="bad_planning"),
        archived,
    ]
    intake.after_detection([decided.pk, row.pk])
    assert [[item.trajectory for item in items(each)] for each in queues] == [[row], [], [], []]


def test_a_sample_is_about_as_large_as_asked_and_always_the_same(cast: Cast, build: Build, queue: Make) -> None:
    all_of_it, some = queue(0, rule="sample", percent=100), queue(0, rule="sample", percent=30)
    start = timezone.now()
    rows = Trajectory.objects.bulk_create(
        [Trajectory(project=cast.project, trace_id=f"{n:032x}", started_at=start) for n in range(400)]
    )
    keys = [row.pk for row in rows]
    intake.after_detection(keys)
    taken = set(some.items.values_list("trajectory", flat=True))
    assert all_of_it.items.count() == 400
    assert 80 < len(taken) < 160
    intake.after_detection(keys)
    assert set(some.items.values_list("trajectory", flat=True)) == taken


def test_what_reviewers_disagree_on_goes_where_it_is_asked_for(cast: Cast, queue: Make) -> None:
    before = queue(1, needed=2)
    expert = queue(0, rule="disagreed", assignees=["approver"])
    made = queue(2, needed=2)
    item, agreed = items(made)
    for person in (cast.reviewer, cast.builder):
        give(item=agreed, actor=Actor(person), bucket="wrong_tool")
        give(item=item, actor=Actor(person), bucket="wrong_tool" if person == cast.builder else "")
        give(item=first(before), actor=Actor(person), bucket="wrong_tool" if person == cast.builder else "")
    found = {each.trajectory_id for each in items(expert)}
    assert found == {item.trajectory_id, first(before).trajectory_id}
    late = queue(0, rule="disagreed", with_existing=True)
    intake.catch_up()
    assert {each.trajectory_id for each in items(late)} == found


# Making


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": " "}, "name: expected between 1 and 100 characters"),
        ({"name": "there"}, "name: a queue 'there' already exists"),
        ({"name": "a\0b"}, "null character"),
        ({"rule": "weird"}, "rule: 'weird' is unknown; use one of hand"),
        ({"rule": "detected", "bucket": "weird"}, "bucket: 'weird' is unknown"),
        ({"rule": "detected", "detector": "weird"}, "detector: 'weird' is unknown"),
        ({"rule": "sample"}, "percent: expected more than 0"),
        ({"rule": "sample", "percent": float("nan")}, "percent: expected more than 0"),
        ({"needed": 0}, "needed: expected between 1 and 9"),
        ({"minutes": 0}, "minutes: expected between 1"),
        ({"assignees": ["viewer"]}, "assignees: 'viewer' may not label here"),
        ({"assignees": ["reviewer"], "needed": 2}, "needed: 2 reviewers needed, 1 named"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_by_field(
    cast: Cast, queue: Make, fields: dict[str, object], message: str
) -> None:
    queue(0, name="there")
    with pytest.raises(Refused) as caught:
        queue(0, **{"name": "new", **fields})
    assert message in str(caught.value)


def test_what_another_rule_brought_does_not_become_a_sample(cast: Cast, build: Build, queue: Make) -> None:
    made, sample = queue(1, rule="detected"), queue(1, rule="sample", percent=100)
    build.trajectory(answer="{")
    detect_waiting()
    assert made.items.filter(added_by=None).count() == 1
    with pytest.raises(Refused, match="rule: this queue's items came from another rule"):
        change(queue=made, actor=Actor(cast.admin), wanted=Wanted(name="s", rule="sample", percent=5))
    change(queue=sample, actor=Actor(cast.admin), wanted=Wanted(name="s", rule="sample", percent=5))
    by_hand = queue(1)
    change(queue=by_hand, actor=Actor(cast.admin), wanted=Wanted(name="h", rule="sample", percent=5))


def test_a_queue_is_changed_and_keeps_what_is_in_it(cast: Cast, queue: Make) -> None:
    made = queue(2)
    give(item=first(made), actor=Actor(cast.reviewer), bucket="wrong_tool")
    change(queue=made, actor=Actor(cast.admin), wanted=Wanted(name="other", needed=2, instructions="Look twice."))
    made.refresh_from_db()
    assert (made.name, made.needed, made.items.count()) == ("other", 2, 2)
    assert first(made).state == State.DONE
