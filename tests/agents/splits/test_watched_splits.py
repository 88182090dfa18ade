"""Splits that calls go by are looked at beside them, for as long as calls come."""

import threading
import time
from typing import Any

import pytest
from django.db import Error, connection
from django.utils import timezone

from flywheel.agents.models import Agent, Split
from flywheel.agents.splits import open_splits, watched_splits
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.agents.splits.watched_splits import WatchedSplits
from tests.agents.splits.splitting import split_of
from tests.conftest import Build
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def split(build: Build) -> OpenSplit:
    live, candidate = build.version(), build.version(system_prompt="Another")
    live.agent.live, live.agent.served = live, 'a,"b"'
    live.agent.save()
    split_of(live, candidate)
    found = open_splits.find(live.agent)
    assert found is not None
    return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> WatchedSplits:
    """Without its thread."""
    monkeypatch.setattr(WatchedSplits, "_run", lambda _: None)
    return WatchedSplits(60.0)


def test_a_split_is_seen_as_long_as_it_is_as_it_is_known(split: OpenSplit, watched: WatchedSplits) -> None:
    assert watched.seen_at(split) == 0
    watched.watch(split)
    before = time.monotonic()
    assert watched.look()
    first = watched.seen_at(split)
    assert first >= before
    assert watched.look()
    assert watched.seen_at(split) > first


@pytest.mark.parametrize(
    "change",
    [
        lambda split: Split.objects.update(share=0, generation=split.row.generation + 1),
        lambda _: Split.objects.update(closed_at=timezone.now()),
        lambda _: Split.objects.all().delete(),
        lambda split: Agent.objects.update(live=split.row.candidate),
        lambda _: Agent.objects.update(served="another"),
    ],
    ids=["moved", "closed", "gone", "another live version", "served otherwise"],
)
def test_what_is_otherwise_by_now_is_not_seen(change: Any, split: OpenSplit, watched: WatchedSplits) -> None:
    watched.watch(split)
    watched.look()
    before = watched.seen_at(split)
    change(split)
    watched.look()
    assert watched.seen_at(split) == before


def test_another_generation_was_never_seen(split: OpenSplit, watched: WatchedSplits) -> None:
    watched.watch(split)
    watched.look()
    Split.objects.update(generation=split.row.generation + 1)
    again = open_splits.find(split.row.agent)
    assert again is not None
    assert (watched.seen_at(again), watched.seen_at(split) > 0) == (0, True)


def test_a_holdback_is_seen_beside_its_candidate_as_the_live_version(split: OpenSplit, watched: WatchedSplits) -> None:
    Split.objects.update(is_holdback=True, generation=split.row.generation + 1)
    Agent.objects.update(live=split.row.candidate)
    held = open_splits.find(Agent.objects.get())
    assert held is not None
    watched.watch(held)
    watched.look()
    assert watched.seen_at(held) > 0


def test_who_is_not_called_any_more_is_not_looked_at(
    split: OpenSplit, watched: WatchedSplits, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.watch(split)
    assert watched.look()
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 61)
    assert not watched.look()
    assert watched.seen_at(split) == 0


@pytest.mark.django_db(transaction=True)
def test_a_thread_looks_and_ends_with_the_calls(split: OpenSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_splits, "EVERY_S", 0.01)
    failing = [Error("the database is away"), TypeError("nobody knows why")]
    look = WatchedSplits.look

    def first_fails(self: WatchedSplits) -> bool:
        if failing:
            raise failing.pop()
        return look(self)

    monkeypatch.setattr(WatchedSplits, "look", first_fails)
    watched = WatchedSplits(1.0)

    def threads() -> int:
        return sum(thread.name == "watched-splits" for thread in threading.enumerate())

    for _ in range(3):
        watched.watch(split)
        watched.watch(split)
        wait_for(lambda: watched.seen_at(split) > 0, "it is seen")
        assert threads() == 1
        wait_for(lambda: not threads(), "nobody calls")
    assert connection.is_usable()
