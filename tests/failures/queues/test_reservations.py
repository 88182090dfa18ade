"""What one has decided on already costs nothing when the next item is handed out, however much it is."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.failures.models import Queue, QueueItem, Review
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.failures.queues.reservations import free_for, take
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast

MANY = 400


@pytest.fixture
def queue(cast: Cast, build: Build) -> Queue:
    """Three reviewers an item: the reviewer has spoken of the first 400 of 410 items, the builder of the first 200."""
    made = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name="large", needed=3))
    start = build.trajectory().started_at
    Trajectory.objects.bulk_create(
        Trajectory(project=cast.project, trace_id=f"{n:032x}", started_at=start) for n in range(MANY + 10)
    )
    keys = Trajectory.objects.filter(trace_id__startswith="000").order_by("trace_id").values_list("pk", flat=True)
    intake.add(queue=made, keys=list(keys), actor=Actor(cast.builder))
    items = list(made.items.order_by("queued_at", "pk"))
    for person, count in ((cast.reviewer, MANY), (cast.builder, MANY // 2)):
        Review.objects.bulk_create(Review(item=item, reviewer=person, bucket="wrong_tool") for item in items[:count])
    made.items.filter(reviews__isnull=False).update(state=QueueItem.State.NEEDS_ANOTHER)
    return made


def read(plan: dict[str, Any]) -> float:
    """Rows that the statement took into its hands, those that it threw away included."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return float(own) + sum(read(part) for part in plan.get("Plans", ()))


def test_who_has_spoken_of_many_is_given_the_next_without_reading_them(cast: Cast, queue: Queue) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE failures_queueitem")
    order = list(queue.items.order_by("queued_at", "pk"))
    for person, at in ((cast.reviewer, MANY), (cast.builder, MANY // 2), (cast.trainer, 0)):
        with CaptureQueriesContext(connection) as captured:
            assert take(queue=queue, actor=Actor(person)) == order[at]
        searched = [query["sql"] for query in captured if "WITH RECURSIVE" in query["sql"]]
        assert len(searched) == 1
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {searched[0]}")
            [[[explained]]] = cursor.fetchall()
        assert read(explained["Plan"]) < 40, explained
    # From the end on from the beginning, past what one has spoken of and what others have.
    assert take(queue=queue, actor=Actor(cast.reviewer), after=order[-1]) == order[MANY]
    assert [item.pk for item in free_for(queue, cast.builder, 3)] == [item.pk for item in order[MANY // 2 :][:3]]


def test_what_one_takes_back_is_handed_out_again(cast: Cast, queue: Queue) -> None:
    order = list(queue.items.order_by("queued_at", "pk"))
    Review.objects.filter(item=order[7], reviewer=cast.reviewer).update(current=False)
    assert take(queue=queue, actor=Actor(cast.reviewer)) == order[7]
    order[7].refresh_from_db()
    assert order[7].said_by == [cast.builder.pk]
    Review.objects.filter(item=order[7]).delete()
    order[7].refresh_from_db()
    assert order[7].said_by == []
