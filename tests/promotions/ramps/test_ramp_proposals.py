from datetime import timedelta

import pytest
from django.utils import timezone

from flywheel.core.evidence.ramp.ramp_plan import Plan, Stage
from flywheel.promotions.models import Candidate
from flywheel.promotions.ramps.ramp_proposals import (
    FEWEST,
    RATE_UNKNOWN,
    LiveTraffic,
    live_traffic,
    proposed_plan,
    reach_of,
    reach_words,
)
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import Build


def test_limits_come_from_the_live_versions_traffic_where_there_is_enough(candidate: Candidate, build: Build) -> None:
    assert proposed_plan(candidate).limits == {}
    at = timezone.now() - timedelta(days=1)
    for number in range(1, FEWEST + 1):
        build.trajectory(
            version=candidate.baseline, started_at=at, cost_usd=number / 100, outcome="failed" if number <= 10 else None
        )
    build.trajectory(version=candidate.baseline, started_at=at, outcome="failed", label="pass")
    build.trajectory(version=candidate.baseline, started_at=at - timedelta(days=20), outcome="success")
    build.trajectory(version=candidate.version, started_at=at, outcome="success")
    assert proposed_plan(candidate).limits == {"dear": pytest.approx(0.451)}, "no call went through the gateway"
    Step.objects.filter(kind="assistant").update(answered_by="a@1:0")
    traffic = live_traffic(candidate.baseline)
    assert traffic.judged == 11
    assert traffic.rate == pytest.approx(10 / 11)
    assert traffic.call_s == pytest.approx(0.3)
    plan = proposed_plan(candidate)
    assert plan.limits == {"dear": pytest.approx(0.451), "slow": 0.3}
    assert {"slow", "dear"} <= set(plan.signals)


def test_a_category_that_got_better_is_watched(candidate: Candidate) -> None:
    candidate.report["comparison"]["slices"] = [
        {"name": "wrong_tool", "verdict": "better"},
        {"name": "broken_output", "verdict": "too few to tell"},
    ]
    plan = proposed_plan(candidate)
    assert plan.alphas["bucket:wrong_tool"] == 0.005
    assert "bucket:broken_output" not in plan.alphas


def test_without_a_judged_run_the_rate_is_assumed(candidate: Candidate) -> None:
    traffic = live_traffic(candidate.baseline)
    assert (traffic.judged, traffic.rate, traffic.rate_taken) == (0, None, RATE_UNKNOWN)
    assert not Trajectory.objects.exists()
    assert LiveTraffic(10, 0.0).rate_taken > 0
    assert LiveTraffic(10, 1.0).rate_taken < 1


@pytest.mark.parametrize("rate", [0.005, 0.3, 0.99])
def test_a_longer_stage_catches_less_harm(rate: float) -> None:
    found = [reach_of(Stage(2500, sessions), Plan(), rate) for sessions in (10, 100, 1000, 10_000)]
    sizes = [1.0 if harm is None else harm for harm in found]
    assert sizes == sorted(sizes, reverse=True)
    assert "Stage 2" in reach_words(2, Stage(2500, 100), Plan(), rate)
