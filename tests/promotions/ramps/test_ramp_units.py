from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F, Q
from django.utils import timezone

from flywheel.agents.models import SplitUnit
from flywheel.agents.splits.assignment import Unit
from flywheel.agents.splits.assignment_tokens import assignment_token
from flywheel.core.evidence.ramp.ramp_plan import Plan, with_buckets
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import ramp_units
from flywheel.trajectories.ingest.gateway.journals.journal_traces import OUR_END, OVERRIDES
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, proposed
from tests.promotions.ramps.conftest import Met


def final(ramp: Ramp, after: float = 0.0) -> list[SplitUnit]:
    return ramp_units.final(ramp, timezone.now() + timedelta(seconds=after))


def parts(ramp: Ramp, after: float = 0.0) -> dict[str, Any]:
    [unit] = final(ramp, after)
    found: dict[str, Any] = unit.parts
    return found


def trajectory(unit: SplitUnit) -> Trajectory:
    return Trajectory.objects.get(session_id=unit.name)


def test_a_session_is_final_once_it_is_silent_read_and_its_result_known(ramp: Ramp, met: Met) -> None:
    early = met(True, ago=30)
    unread = met(True, detected_at=None)
    unknown = met(True, outcome=None)
    known = met(False, outcome="failed")
    assert final(ramp) == [known]
    Trajectory.objects.filter(session_id=unknown.name).update(outcome="success")
    assert final(ramp, after=10) == [unknown, known]
    assert final(ramp, after=40) == [early, unknown, known]
    assert final(ramp, after=4000) == [early, unread, unknown, known]


def test_a_session_that_goes_on_for_long_has_its_trajectories_counted_before_it_is_final(ramp: Ramp, met: Met) -> None:
    long = ramp_units.GOES_ON * ramp.rules.quiet_s
    everybodys, long_over = met(True, ago=long + 1, outcome=None), met(True, ago=long + 1, outcome=None)
    met(True, ago=long - 60, changed_at=timezone.now(), ended_at=timezone.now(), outcome=None)
    Trajectory.objects.filter(session_id=everybodys.name).update(changed_at=timezone.now(), ended_at=timezone.now())
    assert final(ramp) == []
    counted = SplitUnit.objects.filter(trajectories__gt=0)
    assert [(unit.pk, unit.trajectories, unit.frozen_at) for unit in counted] == [(everybodys.pk, 1, None)]
    assert long_over not in counted, "it waits for its outcome and is silent"


def test_a_session_of_as_many_trajectories_as_are_read_is_counted_though_no_outcome_is_known(
    ramp: Ramp, met: Met, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramp_units, "TRAJECTORIES", 3)
    unit = met(True, outcome=None)
    for _ in range(3):
        build.trajectory(session_id=unit.name, agent=ramp.agent)
    assert final(ramp) == []
    assert SplitUnit.objects.get(pk=unit.pk).trajectories == 3


def test_what_the_judge_waits_for_is_read_at_once(ramp: Ramp, met: Met, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown, early, known, grown = (
        met(True, detected_at=None, outcome=None),
        met(True, detected_at=None, ago=1, ended_at=timezone.now()),
        met(True, detected_at=None),
        met(True, detected_at=timezone.now() - timedelta(hours=1)),
    )
    monkeypatch.setattr(ramp_units, "READ", 3)
    ramp_units.read_awaited(ramp, timezone.now())
    unread = Trajectory.objects.filter(Q(detected_at=None) | Q(detected_at__lt=F("changed_at")))
    assert list(unread.values_list("session_id", flat=True)) == [early.name]
    assert final(ramp) == [known, grown]
    monkeypatch.setattr(ramp_units, "READ_STEPS", -1)
    Trajectory.objects.filter(session_id=unknown.name).update(detected_at=None)
    ramp_units.read_awaited(ramp, timezone.now())
    assert unread.count() == 2, "a long one waits for its turn"


def test_what_the_last_look_put_off_is_read_by_a_look_that_comes_a_little_early(ramp: Ramp, met: Met) -> None:
    unit, now = met(True, detected_at=None), timezone.now()
    assert ramp_units.final(ramp, now) == []
    early = now + timedelta(seconds=0.9)
    ramp_units.read_awaited(ramp, early - timedelta(seconds=0.3))  # before the judge looks
    assert ramp_units.final(ramp, early) == [unit]


def test_what_is_said_of_a_session_later_is_no_sign_of_life(ramp: Ramp, met: Met) -> None:
    unit = met(True, outcome=None)
    now = timezone.now()
    Trajectory.objects.filter(session_id=unit.name).update(
        outcome="failed", ended_at=now - timedelta(seconds=100), changed_at=now, detected_at=now
    )
    assert final(ramp) == [unit]


@pytest.mark.parametrize(("shown", "is_final"), [("error", True), ("unsafe", True), ("nothing", False)])
def test_a_session_that_went_wrong_for_all_to_see_needs_no_outcome(
    ramp: Ramp, met: Met, shown: str, is_final: bool
) -> None:
    is_error = shown == "error"
    unit = met(
        True,
        outcome=None,
        status="error" if is_error else "ok",
        error="502: away" if is_error else "",
        error_count=int(is_error),
    )
    if shown == "unsafe":
        row = trajectory(unit)
        proposed(row, "unsafe_action", detector="unsafe_call")
    found = final(ramp)
    assert found == ([unit] if is_final else [])
    if is_final:
        assert found[0].parts["failed"] is None
        assert (found[0].parts["errors"], found[0].parts["unsafe"]) == (float(is_error), float(not is_error))


@pytest.mark.parametrize(("own_score", "counts"), [(0.9, 1.0), (0.4, 0.0)])
def test_what_people_decided_about_a_detector_does_not_change_what_counts(
    ramp: Ramp, met: Met, own_score: float, counts: float
) -> None:
    """Their decisions come while sessions are counted: the world would seem to change with them."""
    row = trajectory(met(True))
    proposed(row, "unsafe_action", 1 - own_score, own_score)
    assert parts(ramp)["unsafe"] == counts


@pytest.mark.parametrize("arm", [True, False])
def test_a_session_that_had_begun_before_the_ramp_is_judged_in_neither_arm(ramp: Ramp, met: Met, arm: bool) -> None:
    unit = met(arm)
    Trajectory.objects.filter(session_id=unit.name).update(received_at=ramp.split.created_at - timedelta(seconds=1))
    assert [found.mixed for found in final(ramp)] == ["earlier"]


def test_calls_of_another_agent_in_the_same_session_say_nothing(ramp: Ramp, met: Met) -> None:
    own = ramp_units.answerer(ramp.split, is_candidate=True)
    met(True, answered_by=[own, "other@1:" + "0" * 64])
    assert [unit.mixed for unit in final(ramp)] == [""]


def test_what_nobody_ever_learns_is_missing_and_not_a_success(ramp: Ramp, met: Met) -> None:
    met(True, outcome=None)
    assert parts(ramp, after=4000)["failed"] is None


def test_a_session_without_a_trajectory_is_missing_in_the_end(ramp: Ramp, met: Met) -> None:
    unit = met(True)
    trajectory(unit).delete()
    assert final(ramp) == []
    assert parts(ramp, after=4000) == dict.fromkeys(ramp.rules.signals)


def test_the_part_of_its_trajectories_that_failed_counts_and_a_person_is_right(ramp: Ramp, met: Met) -> None:
    unit = met(True, outcome="success")
    row = trajectory(unit)
    for outcome, label in (("failed", ""), ("success", "failure"), ("failed", "pass")):
        row.pk, row.trace_id, row.outcome, row.label = None, f"{outcome} {label}", outcome, label
        row.save()
    [found] = final(ramp)
    assert (found.parts["failed"], found.trajectories) == (0.5, 4)


def test_what_detectors_and_people_found_counts_by_signal(ramp: Ramp, met: Met) -> None:
    ramp.plan = with_buckets(Plan(), ["wrong_tool"]).to_json()
    ramp.__dict__.pop("rules", None)
    row = trajectory(met(True))
    proposed(row, "hallucinated_api", detector="unknown_tool")
    proposed(row, "unsafe_action", detector="unsafe_call")
    proposed(row, "wrong_tool", 0.2, detector="other_tool")
    found = parts(ramp)
    assert (found["invalid"], found["unsafe"], found["bucket:wrong_tool"]) == (1.0, 1.0, 0.0)
    Trajectory.objects.filter(pk=row.pk).update(label="failure", label_bucket="wrong_tool")
    found = parts(ramp)
    assert (found["invalid"], found["unsafe"], found["bucket:wrong_tool"]) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("status", "error", "counts"),
    [
        ("ok", "", 0.0),
        ("error", "503: overloaded", 1.0),
        ("error", "404: no such adapter", 1.0),
        ("error", "the upstream 127.0.0.1 cannot be reached: refused", 1.0),
        ("error", "400: messages are missing", 0.0),
        ("error", "cut off: the caller went away after 3 bytes of the answer", 0.0),
        ("error", OUR_END, 0.0),
    ],
)
def test_a_servers_error_counts_and_a_callers_does_not(
    ramp: Ramp, met: Met, status: str, error: str, counts: float
) -> None:
    met(True, status=status, error=error)
    assert parts(ramp)["errors"] == counts


def test_slow_and_dear_are_told_by_the_limits_of_the_plan(ramp: Ramp, met: Met) -> None:
    met(True, cost_usd=0.2)
    assert parts(ramp).keys() >= {"failed"}
    assert "slow" not in parts(ramp)
    ramp.plan = {**ramp.plan, "limits": {"slow": 1.5, "dear": 0.5}}
    ramp.__dict__.pop("rules", None)
    found = parts(ramp)
    assert (found["slow"], found["dear"]) == (1.0, 0.0)


def test_a_session_that_saw_two_versions_is_mixed(ramp: Ramp, met: Met) -> None:
    live, candidate = (ramp_units.answerer(ramp.split, is_candidate=arm) for arm in (False, True))
    met(True, answered_by=[candidate, live])
    met(True, answered_by=[live])
    met(False, answered_by=[live, "assistant@9:" + "0" * 64])
    met(False, answered_by=[live, live])
    assert [unit.mixed for unit in final(ramp)] == ["two_versions", "not_given", "not_given", ""]


def test_a_session_whose_agent_asked_for_its_arm_counts_only_with_the_token_of_that(ramp: Ramp, met: Met) -> None:
    units = [met(True, answered_by=[]) for _ in range(4)]
    SplitUnit.objects.update(is_assigned=True)
    own = Unit("session", units[0].name)
    tokens = [
        assignment_token(ramp.split, own, "candidate"),
        assignment_token(ramp.split, own, "candidate"),
        assignment_token(ramp.split, Unit("session", units[2].name), "live"),
    ]
    for unit, token in zip(units, tokens, strict=False):
        Trajectory.objects.filter(session_id=unit.name).update(attributes=[f"flywheel.assignment={token}"])
    assert [unit.mixed for unit in final(ramp)] == ["", "claimed", "claimed", "claimed"]


def test_only_what_the_agent_did_in_production_counts(ramp: Ramp, met: Met) -> None:
    unit = met(True)
    row = trajectory(unit)
    row.pk, row.trace_id, row.source, row.outcome = None, "other", "rollout", "failed"
    row.save()
    assert parts(ramp)["failed"] == 0.0


@pytest.mark.parametrize("arm", [True, False])
@pytest.mark.parametrize("reported", ["", "live", "candidate"])
def test_an_outcome_that_comes_with_the_programs_own_trace_counts_whichever_of_the_two_versions_it_reports(
    ramp: Ramp, met: Met, build: Build, arm: bool, reported: str
) -> None:
    unit = met(arm, outcome=None)
    beside(unit, ramp, build, version=getattr(ramp.split, reported, None))
    assert final(ramp) == [], "the gateway's own trace waits for its outcome"
    assert parts(ramp, after=4000)["failed"] == 1.0


def test_a_trace_of_another_agent_says_nothing_of_an_arm(ramp: Ramp, met: Met, build: Build) -> None:
    unit = met(True)
    beside(unit, ramp, build, agent=build.agent("other"))
    beside(unit, ramp, build, agent=build.agent("other"), outcome=None)
    assert [(row.parts["failed"], row.trajectories) for row in final(ramp)] == [(0.0, 1)], "and is not waited for"


def test_a_version_that_a_trace_merely_reports_decides_nothing(ramp: Ramp, met: Met, build: Build) -> None:
    """A program may report the version that it was released with, whichever answers it today."""
    unit, third = met(False), build.version(ramp.agent, system_prompt="A third")
    beside(unit, ramp, build, version=third)
    (row,) = final(ramp)
    assert (row.mixed, row.parts["failed"], row.trajectories) == ("", 0.5, 2)


def beside(unit: SplitUnit, ramp: Ramp, build: Build, **fields: Any) -> Trajectory:
    """A trace of the same session that failed, which the gateway did not answer."""
    at = unit.met_at
    given: dict[str, Any] = {
        "agent": ramp.agent,
        "outcome": "failed",
        "changed_at": at,
        "detected_at": at,
        "started_at": at,
    }
    return build.trajectory(session_id=unit.name, **given | fields)


def test_a_session_that_waits_for_long_is_looked_at_less_often(ramp: Ramp, met: Met) -> None:
    fresh, old = met(True, outcome=None, ago=90), met(True, outcome=None, ago=3000)
    now = timezone.now()
    assert ramp_units.final(ramp, now) == []
    waits = [SplitUnit.objects.get(pk=unit.pk).look_at - now for unit in (fresh, old)]
    assert waits[0] == timedelta(seconds=0.5)
    assert timedelta(seconds=14) < waits[1] < timedelta(seconds=16)


def test_calls_that_override_what_the_version_brings_are_counted_by_name(ramp: Ramp, met: Met) -> None:
    own = [ramp_units.answerer(ramp.split, is_candidate=True)]
    twice = met(True, answered_by=own * 3, overrides=[["system", "temperature"], ["temperature"]])
    plain = met(True, answered_by=own * 2)
    claimed = met(True, answered_by=own)
    Trajectory.objects.filter(session_id=claimed.name).update(attributes=["gateway.overrides=temperature", OVERRIDES])
    found = {unit.name: (unit.overriding_calls, unit.overrides) for unit in final(ramp)}
    assert found[twice.name] == (2, {"system": 1, "temperature": 2})
    assert found[plain.name] == (0, {})
    assert found[claimed.name] == (0, {}), "whoever sends the attribute alone has overridden nothing"
