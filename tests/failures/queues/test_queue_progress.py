"""How far a queue is costs the same however many items it has, and is right whatever happens to them."""

import random
from collections import Counter

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from flywheel.accounts.actors import Actor
from flywheel.failures.models import Queue, QueueItem, QueueTally
from flywheel.failures.queues import intake, queue_progress
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.operations.deletion import delete
from tests.conftest import Build, Cast

State = QueueItem.State


def made(cast: Cast, name: str) -> Queue:
    return make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name=name))


def counted(queue: Queue) -> dict[str, int]:
    return dict(Counter(queue.items.values_list("state", flat=True)))


def tallied(queue: Queue) -> dict[str, int]:
    found = queue_progress.of([queue])[0]
    return {state: n for state in State.values if (n := getattr(found, state))}


def test_tallies_are_what_counting_finds_whatever_happens(
    cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_progress, "FOLDED_FROM", 5)
    source = random.Random(4)
    queues = [made(cast, "one"), made(cast, "two")]
    rows = [build.trajectory() for _ in range(12)]
    for queue in queues:
        intake.add(queue=queue, keys=[row.pk for row in rows], actor=Actor(cast.builder))
        intake.add(queue=queue, keys=[rows[0].pk], actor=Actor(cast.builder))
    for turn in range(40):
        items = list(QueueItem.objects.order_by("?")[: source.randrange(1, 5)])
        match source.randrange(5):
            case 0:
                QueueItem.objects.filter(pk__in=[item.pk for item in items]).update(state=source.choice(State.values))
            case 1:
                for item in items:
                    item.state = source.choice(State.values)
                    item.save()
            case 2:
                QueueItem.objects.filter(pk__in=[item.pk for item in items]).update(reserved_by=cast.builder)
            case 3 if turn % 4 == 0 and items:
                delete(trajectory=items[0].trajectory, actor=Actor(cast.admin))
            case _:
                items[0].delete()
                intake.add(queue=items[0].queue, keys=[items[0].trajectory_id], actor=Actor(cast.builder))
        assert [tallied(queue) for queue in queues] == [counted(queue) for queue in queues]
    before = QueueTally.objects.count()
    queue_progress.fold()
    assert QueueTally.objects.count() < before
    assert [tallied(queue) for queue in queues] == [counted(queue) for queue in queues]


def test_of_a_queue_that_is_gone_no_tally_stays(cast: Cast, build: Build) -> None:
    queue = made(cast, "gone")
    for _ in range(queue_progress.FOLDED_FROM + 1):
        intake.add(queue=queue, keys=[build.trajectory().pk], actor=Actor(cast.builder))
    key = queue.pk
    queue.delete()
    QueueTally.objects.bulk_create([QueueTally(queue_id=key, state="done", n=1) for _ in range(60)])
    queue_progress.fold()
    assert not QueueTally.objects.exists()


def test_no_statement_of_progress_reads_items_that_nobody_has(cast: Cast, build: Build) -> None:
    queue = made(cast, "large")
    start = build.trajectory()
    rows = [Trajectory(project=cast.project, trace_id=f"{n:032x}", started_at=start.started_at) for n in range(300)]
    Trajectory.objects.bulk_create(rows)
    intake.add(queue=queue, keys=Trajectory.objects.values_list("pk", flat=True).iterator(), actor=Actor(cast.builder))
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert queue_progress.of([queue])[0].total == 301
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE failures_queueitem, failures_queuetally; SET LOCAL enable_seqscan = off")
        for query in captured:
            cursor.execute(f"EXPLAIN (ANALYZE, TIMING off, SUMMARY off) {query['sql']}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "queue_item_reserved" in plan or "failures_queuetally" in plan
            assert "actual rows=30" not in plan, plan
