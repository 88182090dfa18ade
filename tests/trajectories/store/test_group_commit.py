"""Requests that come at the same time share a transaction, and nobody's answer depends on whose company he had."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from flywheel.accounts.models import ApiKey, Project, User
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.ingest import otlp_http
from flywheel.trajectories.models import Batch, Step, Trajectory
from flywheel.trajectories.store import group_commit
from flywheel.trajectories.store import merge as storing
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival, Reader, Said
from flywheel.trajectories.store.batch_ledger import Sent
from flywheel.trajectories.store.group_commit import Together
from tests.trajectories import talking
from tests.trajectories.talking import episode, span
from tests.waiting import PATIENCE_S, wait_for

A, B = "a" * 32, "b" * 32


@contextmanager
def gathered(turns: Together[str, str], what: Sequence[str]) -> Iterator[list["Future[str | None]"]]:
    """Let all of these come while somebody else is still expected."""
    with ThreadPoolExecutor(len(what)) as pool:
        with turns.coming():
            asked = []
            for number, each in enumerate(what, 1):
                asked.append(pool.submit(turns.do, each))
                wait_for(lambda number=number: len(turns._queue) == number, f"{number} wait")  # type: ignore[misc]
        yield asked


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "COMPANY_S", PATIENCE_S)


def test_those_who_fit_share_a_turn_and_the_others_have_the_next() -> None:
    done: list[list[str]] = []

    def work(turn: Sequence[str]) -> list[str]:
        done.append(list(turn))
        return [each.upper() for each in turn]

    turns = Together[str, str](work, lambda turn, other: other[0] not in {each[0] for each in turn})
    with gathered(turns, ["a1", "b", "a2", "c"]) as asked:
        assert [each.result(PATIENCE_S) for each in asked] == ["A1", "B", "A2", "C"]
    assert done == [["a1", "b", "c"], ["a2"]]
    assert turns.do("alone") == "ALONE"  # and whoever comes later begins at once


def test_when_a_turn_fails_each_is_told_and_the_next_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger=group_commit.__name__)

    def work(turn: Sequence[str]) -> list[str]:
        if "bad" in turn:
            raise ValueError
        return list(turn)

    turns = Together[str, str](work, lambda _, other: other != "later")
    with gathered(turns, ["good", "bad", "later"]) as asked:
        assert [each.result(PATIENCE_S) for each in asked] == [None, None, "later"]
    assert [(row.levelname, row.getMessage(), row.exc_info) for row in caplog.records] == [
        ("DEBUG", "2 requests are stored one by one: ValueError", None)
    ]


@pytest.fixture
def sent_at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Batch]]:
    """Send bodies in as many threads, so that they meet in one turn."""
    project = Project.objects.create(slug="busy", name="Busy")
    key, _ = ApiKey.make(project, "test", ["ingest"], User.objects.create_user("ann", password="pw"))

    def one(spans: list[Any]) -> Batch:
        body = talking.body_of(spans)
        try:
            return otlp_http.take(project, key, Sent(otlp_traces.PROTOBUF, "", body), body)
        finally:
            connection.close()

    def send(*requests: list[Any]) -> list[Batch]:
        with ThreadPoolExecutor(len(requests)) as pool:
            with storing.turns.coming():
                asked = []
                for number, spans in enumerate(requests, 1):
                    asked.append(pool.submit(one, spans))
                    wait_for(lambda number=number: len(storing.turns._queue) == number, f"{number} wait")  # type: ignore[misc]
            return [each.result(60) for each in asked]

    return send


@pytest.mark.django_db(transaction=True)
def test_each_request_has_its_own_row_in_the_ledger(
    sent_at_once: Callable[..., list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []

    def work(requests: Sequence[storing._Request]) -> list[Batch]:
        turns.append(len(requests))
        return storing._store_together(requests)

    monkeypatch.setattr(storing.turns, "_work", work)
    first, unready = episode(A), span(60, trace=B, took_ms=None, name="waits")
    twice = [*episode(B), unready, unready]
    told = sent_at_once(first, twice, episode(A))
    assert turns == [2, 1], "two that speak of one trajectory never share a turn"
    assert [(row.received, row.inserted, row.duplicate) for row in told] == [
        (len(first), len(first), 0),
        (len(twice), len(twice) - 1, 1),
        (len(first), 0, len(first)),
    ]
    assert all(row.received == row.inserted + row.updated + row.duplicate + row.rejected for row in Batch.objects.all())
    assert {row.trace_id: row.step_count for row in Trajectory.objects.all()} == {A: len(first), B: len(twice) - 1}


@pytest.mark.django_db(transaction=True)
def test_what_the_database_refuses_of_one_request_does_not_cost_another(
    sent_at_once: Callable[..., list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reader.spans

    def with_nul(reader: Reader, spans: Sequence[Span]) -> Iterator[tuple[Arrival, Said]]:
        for arrival, said in read(reader, spans):
            if arrival.name == "poison":
                arrival.error = "\0"  # which no text column holds
            yield arrival, said

    monkeypatch.setattr(Reader, "spans", with_nul)
    first, second = episode(A), [*episode(B), span(60, trace=B, name="poison")]
    told = sent_at_once(first, second)
    assert [(row.inserted, row.rejected) for row in told] == [(len(first), 0), (len(second) - 1, 1)]
    assert Step.objects.count() == len(first) + len(second) - 1
    assert Batch.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_nobody_waits_for_one_that_is_too_large_to_share(
    sent_at_once: Callable[..., list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[set[int]] = []
    write = storing._store

    def watched(requests: Sequence[storing._Request], *more: float) -> list[Batch]:
        expected.append(set(storing.turns._coming))
        return write(requests, *more)

    monkeypatch.setattr(storing, "SMALL", 0)
    monkeypatch.setattr(storing, "_store", watched)
    (project,) = Project.objects.filter(slug="busy")
    body = talking.body_of(episode(A))
    otlp_http.take(project, ApiKey.objects.get(project=project), Sent(otlp_traces.PROTOBUF, "", body), body)
    assert expected == [set()]
