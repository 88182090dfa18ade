"""A split holds while its lease is renewed, whatever clocks say."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from flywheel.agents.models import Split
from flywheel.agents.splits import open_splits
from tests.agents.splits.splitting import opened, renew, shift, split_of
from tests.conftest import Build

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def split(build: Build) -> Split:
    live, candidate = build.version(), build.version(system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate)


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the process counts by, in seconds, for the test to move."""
    at = [time.monotonic()]
    monkeypatch.setattr("flywheel.agents.splits.open_splits.time.monotonic", lambda: at[0])
    return at


def test_a_split_holds_until_its_lease_ends(split: Split, monotonic: list[float]) -> None:
    found = opened(split)
    assert found.project_id == split.agent.project_id
    monotonic[0] += 9
    assert found.is_held
    monotonic[0] += 1
    assert not found.is_held
    assert open_splits.find(split.agent) is None, "what was seen before is not renewed by looking again"
    renew(split)
    assert opened(split).is_held


@pytest.mark.parametrize(
    "change",
    [
        {"share": 0},
        {"closed_at": timezone.now()},
        {"lease_until": timezone.now() - timedelta(seconds=1)},
        {"lease_until": timezone.now() - HOUR},
    ],
    ids=["share 0", "closed", "lapsed", "lapsed long ago"],
)
def test_a_split_that_ended_does_not_hold(split: Split, change: dict[str, object]) -> None:
    Split.objects.update(**change)
    assert open_splits.find(split.agent) is None


def test_a_split_beside_another_live_version_does_not_hold(split: Split, build: Build) -> None:
    split.agent.live = build.version(system_prompt="A third")
    split.agent.save()
    assert open_splits.find(split.agent) is None


def test_a_database_whose_clock_is_set_back_keeps_no_split(split: Split, monotonic: list[float]) -> None:
    opened(split)
    shift(split, HOUR)
    assert opened(split).until - monotonic[0] <= open_splits.LEASE_S
    for _ in range(5):
        monotonic[0] += 2
        open_splits.find(split.agent)
    assert open_splits.find(split.agent) is None, "though an hour is left by the clock of the database"
    renew(split)
    assert opened(split).is_held, "and it breaks none either"


def test_a_database_whose_clock_is_set_forward_breaks_no_split(split: Split, monotonic: list[float]) -> None:
    until = opened(split).until
    left = timedelta(hours=-1)
    assert open_splits._until(split.pk, split.lease_until, left, monotonic[0] + 2) == until
    later = split.lease_until + HOUR
    assert open_splits._until(split.pk, later, timedelta(seconds=10), monotonic[0] + 4) == monotonic[0] + 14


def test_the_process_own_clock_says_nothing(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    for by in (-3600, 3600):
        with monkeypatch.context() as set_wrong:
            set_wrong.setattr(time, "time", lambda by=by: 1_790_000_000 + by)
            assert opened(split).is_held
