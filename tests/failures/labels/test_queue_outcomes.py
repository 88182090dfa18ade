"""Items of queues and decisions agree, whichever way a decision is made, corrected, undone or asked for again."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.failures.labels.decisions import Superseded, current_of, decide, undo
from flywheel.failures.models import Failure, Queue, QueueItem
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, archive, make
from flywheel.failures.queues.reviews import Closed, decline, give, is_disputed, reopen, take_back
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
State = QueueItem.State
Put = Callable[..., QueueItem]


@pytest.fixture
def row(build: Build) -> Trajectory:
    return build.trajectory()


@pytest.fixture
def put(cast: Cast, row: Trajectory) -> Put:
    """`put(needed=2)`: the trajectory as the only item of a new queue."""

    def go(**fields: Any) -> QueueItem:
        wanted = Wanted(**{"name": f"queue {Queue.objects.count()}", **fields})
        made = make(project=cast.project, actor=Actor(cast.builder), wanted=wanted)
        intake.add(queue=made, keys=[row.pk], actor=Actor(cast.builder))
        return QueueItem.objects.select_related("queue").get(queue=made)

    return go


def state(item: QueueItem) -> tuple[str, str | None]:
    """The state, and the bucket of the outcome."""
    item.refresh_from_db()
    return item.state, item.outcome.bucket if item.outcome else None


def test_undoing_elsewhere_opens_an_item_that_was_reviewed_once(cast: Cast, row: Trajectory, put: Put) -> None:
    item = put()
    give(item=item, actor=Actor(cast.trainer), bucket="wrong_tool")
    take_back(item=item, actor=Actor(cast.trainer))
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error")
    assert state(item) == (State.DONE, "format_error")
    undo(trajectory=row, actor=Actor(cast.reviewer))
    assert state(item) == (State.TO_REVIEW, None)


def test_undoing_elsewhere_what_was_decided_on_an_item_takes_the_review_back(
    cast: Cast, row: Trajectory, put: Put
) -> None:
    item = put()
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="format_error")
    undo(trajectory=row, actor=Actor(cast.trainer))
    assert state(item) == (State.DONE, "wrong_tool"), "what was said before counts again"
    undo(trajectory=row, actor=Actor(cast.trainer))
    assert state(item) == (State.TO_REVIEW, None)
    assert not item.reviews.filter(current=True).exists()
    assert item.reviews.exclude(taken_back_at=None).count() == 2, "kept for the record"


def test_undoing_elsewhere_what_several_agreed_on_asks_for_another(cast: Cast, row: Trajectory, put: Put) -> None:
    item = put(needed=2)
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="wrong_tool")
    undo(trajectory=row, actor=Actor(cast.trainer))
    assert state(item) == (State.NEEDS_ANOTHER, None)
    assert item.reviews.filter(current=True).count() == 2, "what they said stays"
    assert is_disputed(item), "and who may build can settle it alone"
    give(item=item, actor=Actor(cast.admin), bucket="bad_planning", settles=True)
    assert state(item) == (State.DONE, "bad_planning")


def test_a_decision_elsewhere_closes_an_item_that_was_asked_for_again(cast: Cast, row: Trajectory, put: Put) -> None:
    item = put()
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    reopen(item=item, actor=Actor(cast.builder))
    assert state(item) == (State.NEEDS_ANOTHER, "wrong_tool")
    decide(trajectory=row, actor=Actor(cast.trainer), bucket="format_error")
    assert state(item) == (State.DONE, "format_error")
    undo(trajectory=row, actor=Actor(cast.trainer))
    assert state(item) == (State.NEEDS_ANOTHER, None), "the decision from before it was asked for again is not enough"
    current = current_of(row)
    assert current is not None
    assert current.bucket == "wrong_tool"


def test_the_same_said_again_elsewhere_closes_an_item_that_came_since(cast: Cast, row: Trajectory, put: Put) -> None:
    decided = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    item = put()
    assert state(item) == (State.TO_REVIEW, None)
    assert decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool") == decided
    assert state(item) == (State.DONE, "wrong_tool")


def test_taking_back_on_an_item_leaves_it_done_where_a_decision_from_elsewhere_counts_again(
    cast: Cast, row: Trajectory, put: Put
) -> None:
    item = put()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    give(item=item, actor=Actor(cast.builder), bucket="format_error")
    take_back(item=item, actor=Actor(cast.builder))
    assert state(item) == (State.DONE, "wrong_tool")
    decline(item=item, actor=Actor(cast.builder), reason="no")
    assert state(item)[0] == State.DECLINED
    take_back(item=item, actor=Actor(cast.builder))
    assert state(item) == (State.DONE, "wrong_tool")


def test_a_declined_item_stays_declined_when_a_decision_is_undone(cast: Cast, row: Trajectory, put: Put) -> None:
    item = put()
    give(item=item, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decline(item=item, actor=Actor(cast.builder), reason="not here")
    undo(trajectory=row, actor=Actor(cast.reviewer))
    assert state(item) == (State.DECLINED, None)


def test_items_of_an_archived_queue_follow_too(cast: Cast, row: Trajectory, put: Put) -> None:
    item = put()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    archive(queue=item.queue, actor=Actor(cast.builder))
    undo(trajectory=row, actor=Actor(cast.reviewer))
    assert state(item) == (State.TO_REVIEW, None)


# Whatever happens

PEOPLE = ("reviewer", "builder", "trainer")
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["decide", "undo", "give", "give", "take_back", "reopen", "decline"]),
        st.sampled_from(PEOPLE),
        st.sampled_from(["", "wrong_tool", "format_error"]),
        st.integers(0, 1),
    ),
    max_size=14,
)


def check(row: Trajectory, items: list[QueueItem]) -> None:
    row.refresh_from_db()
    current = current_of(row)
    assert (row.label, row.label_bucket) == (
        ("", "") if current is None else ("failure" if current.is_failure else "pass", current.bucket)
    )
    for item in items:
        item.refresh_from_db()
        said = list(item.reviews.filter(current=True).order_by("pk"))
        outcome = item.outcome
        assert outcome is None or outcome.taken_back_at is None
        if item.state == State.DONE:
            assert outcome is not None
        if item.state == State.DECLINED:
            assert said[-1].declined
        if item.state == State.TO_REVIEW:
            assert not said
        if item.state == State.NEEDS_ANOTHER:
            assert said
        if item.is_open and item.queue.needed == 1:
            assert current is None or current.labelled_at < item.queued_at, "what counts now was waited for"
        assert (item.closed_at is None) == item.is_open
        assert item.said_by == sorted(review.reviewer_id for review in said)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(MOVES)
def test_whatever_people_do_items_and_decisions_agree(
    cast: Cast, row: Trajectory, put: Put, moves: list[tuple[str, str, str, int]]
) -> None:
    with transaction.atomic():
        items = [put(), put(needed=2)]
        for move, who, bucket, at in moves:
            actor: User = getattr(cast, who)
            before = list(Failure.objects.values_list("pk", flat=True))
            try:
                match move:
                    case "decide":
                        decide(trajectory=row, actor=Actor(actor), bucket=bucket)
                    case "undo":
                        undo(trajectory=row, actor=Actor(actor))
                    case "give":
                        give(item=items[at], actor=Actor(actor), bucket=bucket)
                    case "decline":
                        decline(item=items[at], actor=Actor(actor), reason="no")
                    case "take_back":
                        take_back(item=items[at], actor=Actor(actor))
                    case "reopen":
                        reopen(item=items[at], actor=Actor(actor))
            except (Closed, Superseded):
                pass
            assert set(before) <= set(Failure.objects.values_list("pk", flat=True)), "nothing is overwritten"
            check(row, items)
        transaction.set_rollback(True)
