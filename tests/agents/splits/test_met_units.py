"""Who has met an arm keeps it: over processes, restarts and shares."""

import os
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from scipy.stats import binom

from flywheel.agents.models import Split, SplitUnit
from flywheel.agents.splits.assignment import Unit, coin
from flywheel.agents.splits.met_units import MetUnits
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from tests.agents.splits.splitting import opened, split_of
from tests.conftest import Build

pytestmark = pytest.mark.django_db
SESSIONS, CALLS = int(os.environ.get("FLYWHEEL_TEST_SESSIONS", "2000")), 5
"""10,000 by hand: they take a minute."""


@pytest.fixture
def split(build: Build) -> Split:
    live, candidate = build.version(), build.version(system_prompt="Another")
    live.agent.live = live
    live.agent.save()
    return split_of(live, candidate)


def session(name: str) -> Unit:
    return Unit("session", name)


def arm(units: MetUnits, split: OpenSplit, unit: Unit) -> bool | None:
    known = units.recall(split, unit)
    return units.meet(split, unit) if known is None else known


def side(split: OpenSplit, *, of_candidate: bool) -> Unit:
    """A session whose coin says so at a share of half."""
    names = (session(f"n{number}") for number in range(1000))
    return next(
        unit
        for unit in names
        if (coin(split.row.salt, split.project_id, split.row.agent_id, unit) < 5000) == of_candidate
    )


def test_sessions_meet_one_arm_each_over_three_processes_with_restarts_and_stages(split: Split) -> None:
    found = opened(split)
    processes = [MetUnits(most=SESSIONS * 2 // 5) for _ in range(3)]
    drawn = random.Random(7)
    calls = [number for number in range(SESSIONS) for _ in range(CALLS)]
    # Sessions overlap: each has its calls among those of the next third of all.
    calls = [number for _, number in sorted((number + drawn.random() * SESSIONS * 0.3, number) for number in calls)]
    stages = {0: 500, SESSIONS: 1000, 2 * SESSIONS: 2500, 7 * SESSIONS // 2: 5000}
    met: dict[int, set[bool | None]] = defaultdict(set)
    for place, number in enumerate(calls):
        if share := stages.get(place):
            Split.objects.update(share=share)
        if (place + 1) % (SESSIONS * 7 // 10) == 0:
            processes[drawn.randrange(3)] = MetUnits(most=SESSIONS * 2 // 5)
        met[number].add(arm(processes[drawn.randrange(3)], found, session(f"s{number}")))
    assert len(met) == SESSIONS
    assert all(len(arms) == 1 and None not in arms for arms in met.values())
    rows = list(SplitUnit.objects.values_list("share", "is_candidate"))
    assert len(rows) == SESSIONS
    for share in stages.values():
        arms = [is_candidate for stage, is_candidate in rows if stage == share]
        least, most = binom.interval(0.999, len(arms), share / WHOLE)
        assert least <= sum(arms) <= most, share


def test_a_unit_is_kept_with_the_share_and_the_trace_of_its_first_call(split: Split) -> None:
    found, units = opened(split), MetUnits()
    unit = side(found, of_candidate=False)
    assert units.meet(found, unit, trace_id="a" * 32) is False
    Split.objects.update(share=WHOLE)
    assert MetUnits().meet(found, unit, trace_id="b" * 32, is_assigned=True) is False, "who has begun stays"
    row = SplitUnit.objects.get()
    assert (row.kind, row.name, row.trace_id, row.share) == ("session", unit.name, "a" * 32, 5000)
    assert (row.is_assigned, row.frozen_at, row.mixed, row.parts) == (False, None, "", {})
    assert MetUnits().meet(found, session("new")) is True
    assert SplitUnit.objects.get(name="new").share == WHOLE, "as the row says, whatever the process remembers"


def test_a_known_unit_costs_no_question(split: Split, django_assert_num_queries: Any) -> None:
    found, units = opened(split), MetUnits(most=2)
    first = arm(units, found, session("a"))
    with django_assert_num_queries(0):
        assert arm(units, found, session("a")) == first
    for name in ("b", "c"):
        arm(units, found, session(name))
    assert units.recall(found, session("a")) is None, "the one that was asked for longest ago is forgotten"
    assert arm(units, found, session("a")) == first


@pytest.mark.parametrize("change", [{"share": 0}, {"closed_at": timezone.now()}], ids=["share 0", "closed"])
def test_after_the_way_back_nobody_meets_anything(split: Split, change: dict[str, Any]) -> None:
    found = opened(split)
    assert MetUnits().meet(found, session("old")) is not None
    Split.objects.update(**change)
    assert MetUnits().meet(found, session("old")) is None
    assert MetUnits().meet(found, session("new")) is None
    assert SplitUnit.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_processes_that_meet_a_session_in_one_moment_agree(split: Split) -> None:
    found = opened(split)

    def meet(number: int) -> tuple[int, bool | None]:
        try:
            return number % 25, MetUnits().meet(found, session(f"s{number % 25}"))
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        said = set(pool.map(meet, range(200)))
    assert len(said) == SplitUnit.objects.count() == 25


@pytest.mark.parametrize("name", ["x" * 200, "'; --", "ü✓ \u202e", "{}", " "])
def test_a_hostile_name_is_a_name(name: str, split: Split) -> None:
    found = opened(split)
    assert MetUnits().meet(found, session(name)) == MetUnits().meet(found, session(name))
    assert SplitUnit.objects.get().name == name


def test_a_lease_says_nothing_of_who_has_met(split: Split) -> None:
    """Whether it holds is asked before, of `OpenSplit`."""
    found = opened(split)
    Split.objects.update(lease_until=timezone.now() - timedelta(hours=1))
    assert MetUnits().meet(found, session("a")) is not None
