"""The benchmark of lists: its trajectories are those that the store makes, and what it says adds up."""

import random
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from flywheel.accounts.models import Membership, Role, User
from flywheel.failures.detectors.proposals import detect, unread
from flywheel.failures.models import Failure, Proposal
from flywheel.system.sql import planned
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Feedback, Step, Trajectory, Words
from flywheel.trajectories.operations.rereads import read_again
from flywheel.trajectories.search import full_text
from flywheel.trajectories.store.merge import store
from flywheel.trajectories.store.stored_traces import traces_of
from tests import bench_lists
from tests.bench_lists import Plan
from tests.benching import filling, kinds, timing
from tests.conftest import Cast

EVERY = kinds.every()
SOME = [*EVERY[:20], *(kind for kind in EVERY[20:] if kind.bucket is not None)][:26]


@pytest.fixture
def filler(transactional_db: None, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> filling.Filler:
    monkeypatch.setattr("flywheel.trajectories.store.detector_wakeup.soon", lambda _: None)
    return filling.Filler(cast.project, cast.admin, SOME)


def _words() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT trajectory_id, part, words::text FROM trajectories_words ORDER BY 1, 2")
        return list(cursor.fetchall())


def _proposals() -> list[tuple[Any, ...]]:
    rows = Proposal.objects.order_by("trajectory_id", "detector", "step", "bucket", "evidence")
    return list(rows.values_list("trajectory_id", "detector", "bucket", "step", "score", "evidence"))


def test_copies_are_what_the_store_makes_of_them(filler: filling.Filler, cast: Cast) -> None:
    filler.fill(60)
    rows = list(Trajectory.objects.filter(project=cast.project))
    assert len(rows) == 60
    assert Step.objects.count() == 60 * kinds.STEPS
    assert Feedback.objects.exists()
    assert Failure.objects.exists()
    words, proposals = _words(), _proposals()
    assert words
    assert proposals

    assert not any(read_again(cast.project, row.pk) for row in rows)
    for row in rows:
        spans = [
            otlp_traces.from_json(step.body, trace_id=row.trace_id, span_id=step.span_id, parent_id=step.parent_id)
            for step in row.steps.all()
        ]
        assert store(cast.project, spans, source=row.source, format="otlp").duplicate == kinds.STEPS
    assert {row.step_count for row in Trajectory.objects.all()} == {kinds.STEPS}

    Trajectory.objects.exclude(source="rollout").update(detected_at=None)
    while found := unread(cast.project.pk):
        detect(found)
    assert _words() == words
    assert _proposals() == proposals
    full_text.index(traces_of(rows[:5]))
    assert Words.objects.filter(trajectory__in=rows[:5]).count() == 5


def test_no_page_reads_the_steps_from_end_to_end(filler: filling.Filler, cast: Cast) -> None:
    filler.fill(80)
    prepared = bench_lists.prepare(cast.project, cast.admin, Plan(requests=3, long_steps=600))
    for role in Role:
        Membership.objects.get_or_create(project=cast.project, user=cast.admin, role=role)
    client = Client()
    client.force_login(User.objects.get(pk=cast.admin.pk))
    pages = bench_lists.pages(cast.project, prepared)
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
    try:
        with timing.listening(pages=0) as watch:
            timings = [timing.measure(client, page, 2, watch) for page in pages]
            assert filling.STEPS not in watch.sequential
            with watch.watching("all steps, planned apart from Django"):
                planned(f"SELECT count(*) FROM {filling.STEPS} WHERE body::text = %s::text", ["{}"])
            assert filling.STEPS in watch.sequential
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET enable_seqscan")
    assert all(one.took for one in timings)


def test_words_are_used_as_people_use_them() -> None:
    words = filling.Words(random.Random(0))
    drawn = words.some(20_000)
    assert len(set(words.every)) == filling.VOCABULARY
    assert drawn.count(words.every[0]) > 10 * drawn.count(words.every[100]) > 0


def test_what_is_too_slow_is_said() -> None:
    page = {"p50": 10.0, "p95": 60.0, "n": 30, "web_cpu": 5.0, "db_cpu": 1.0, "statements": 9.0, "limit": 50.0}
    size = {"filled_s": 1.0, "measured_s": 2.0, "pages": {"list, first page": page}}
    found = {
        "sizes": {"2000": {**size, "sequential": {}}, "20000": {**size, "sequential": {filling.STEPS: ["a page"]}}},
        "over_http": {"list, first page": {"p50": 1.0, "p95": 2.0}},
        "peers": bench_lists.PEERS,
        "peers_at": bench_lists.PEERS_AT,
    }
    assert bench_lists.unplanned(found) == ["a page"]
    text = bench_lists.report(found)
    assert "1.00×     50!" in text
    assert "Phoenix 20 2.4 s" in text
