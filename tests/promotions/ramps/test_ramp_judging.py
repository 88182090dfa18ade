import random
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Split, SplitUnit
from flywheel.core.evidence.ramp.ramp_judge import Judgement
from flywheel.failures.detectors import detector_settings
from flywheel.failures.models import DetectorSetting
from flywheel.promotions.live_version import roll_back
from flywheel.promotions.models import Candidate, Promotion, Ramp
from flywheel.promotions.ramps import ramp_judging, ramp_moves, ramp_units
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast
from tests.promotions.ramps.conftest import Met, begun, met_in


def looked(ramp: Ramp) -> Ramp:
    ramp_judging.look()
    return Ramp.objects.select_related("split").get(pk=ramp.pk)


def sessions(met: Met, count: int, *, live: float, candidate: float, seed: int = 1, share: float = 0.5) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        is_candidate = rng.random() < share
        failed = rng.random() < (candidate if is_candidate else live)
        met(is_candidate, outcome="failed" if failed else "success")


def test_the_judge_begins_a_ramp_and_renews_its_lease_with_each_look(ramp: Ramp) -> None:
    assert ramp.state == "running"
    Split.objects.update(lease_until=timezone.now() - timedelta(hours=1))
    ramp = looked(ramp)
    left = ramp.split.lease_until - timezone.now()
    assert timedelta(seconds=8) < left <= timedelta(seconds=11)


def test_a_judge_that_fails_lets_the_lease_run_out(ramp: Ramp, monkeypatch: pytest.MonkeyPatch) -> None:
    Split.objects.update(lease_until=timezone.now())
    before = Split.objects.get().lease_until
    monkeypatch.setattr(ramp_judging, "_freeze", lambda _: 1 / 0)
    ramp_judging.look()
    assert Split.objects.get().lease_until == before


def test_a_detector_that_fails_does_not_hold_up_the_judge(
    ramp: Ramp, met: Met, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ramp_units, "read_awaited", lambda *_: 1 / 0)
    met(True)
    assert looked(ramp).split.units.get().number == 1


def test_it_goes_to_the_next_stage_after_enough_sessions_and_finishes_by_proof(ramp: Ramp, met: Met) -> None:
    sessions(met, 9, live=0.2, candidate=0.2, share=0.25)
    assert looked(ramp).stage == 0
    sessions(met, 1, live=0.0, candidate=0.0)
    ramp = looked(ramp)
    assert (ramp.stage, ramp.split.share) == (1, 5000)
    assert "10 sessions at 25%" in ramp.changes.order_by("-pk")[0].reason
    sessions(met, 200, live=0.9, candidate=0.05)
    ramp = looked(ramp)
    assert ramp.state == "finished"
    assert "not to be worse by 5% or more" in ramp.changes.order_by("-pk")[0].reason
    assert Agent.objects.get(pk=ramp.agent_id).live_id == ramp.candidate.version_id


def test_a_stage_with_enough_sessions_lasts_its_least_minutes(ramp: Ramp, met: Met) -> None:
    stages = [{**stage, "minutes": 30.0} for stage in ramp.plan["stages"]]
    Ramp.objects.filter(pk=ramp.pk).update(plan={**ramp.plan, "stages": stages})
    sessions(met, 12, live=0.0, candidate=0.0, share=0.25)
    for minutes, stage in ((29, 0), (31, 1)):
        Ramp.objects.filter(pk=ramp.pk).update(stage_since=timezone.now() - timedelta(minutes=minutes))
        assert looked(ramp).stage == stage


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_judge_whose_own_clock_is_an_hour_off_judges_by_the_databases(
    hours: int, ramp: Ramp, met: Met, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = [{**stage, "minutes": 30.0} for stage in ramp.plan["stages"]]
    Ramp.objects.filter(pk=ramp.pk).update(plan={**ramp.plan, "stages": stages})
    now = timezone.now
    for candidate, number, told in ((0.0, 12, ("running", 0)), (0.9, 200, ("taken_back", 0))):
        sessions(met, number, live=0.0, candidate=candidate, share=0.25)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(timezone, "now", lambda: now() + timedelta(hours=hours))
            ramp = looked(ramp)
        assert (ramp.state, ramp.stage) == told


def test_harm_takes_it_back_with_what_showed_it(ramp: Ramp, met: Met) -> None:
    sessions(met, 200, live=0.05, candidate=0.8, share=0.25)
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share, ramp.split.closed_at is not None) == ("taken_back", 0, True)
    assert ramp.finding["signals"] == ["failed"]
    unit = SplitUnit.objects.get(split=ramp.split, number=ramp.finding["unit"])
    assert unit.wealth["failed"] * ramp.rules.alphas["failed"] >= 1
    assert Agent.objects.get(pk=ramp.agent_id).live_id == ramp.candidate.baseline_id
    assert Candidate.objects.get(pk=ramp.candidate_id).state == "taken_back"
    assert ramp.changes.order_by("-pk")[0].data["signals"] == ["failed"]


def test_killed_after_the_share_ended_the_next_look_takes_it_back(
    ramp: Ramp, met: Met, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions(met, 200, live=0.05, candidate=0.8, share=0.25)
    with monkeypatch.context() as patched:
        patched.setattr(ramp_moves, "take_back", lambda **_: 1 / 0)
        ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("running", 0)
    lease = ramp.split.lease_until
    ramp = looked(ramp)
    assert (ramp.state, ramp.split.share) == ("taken_back", 0)
    assert ramp.split.lease_until == lease


def test_wealth_recomputed_from_the_frozen_sessions_equals_what_is_kept(ramp: Ramp, met: Met) -> None:
    for seed in range(4):
        sessions(met, 7, live=0.3, candidate=0.4, seed=seed)
        met(True, outcome=None, ago=5000)
        ramp = looked(ramp)
    assert Judgement.from_json(ramp.judgement) == ramp_judging.recomputed(ramp)
    units = SplitUnit.objects.filter(split=ramp.split)
    assert list(units.order_by("number").values_list("number", flat=True)) == list(range(1, units.count() + 1))


def test_a_session_that_is_frozen_is_not_judged_again(ramp: Ramp, met: Met) -> None:
    unit = met(True, outcome="success")
    before = looked(ramp).judgement
    Trajectory.objects.filter(session_id=unit.name).update(outcome="failed")
    assert looked(ramp).judgement == before
    assert SplitUnit.objects.get(pk=unit.pk).parts["failed"] == 0.0


def test_arms_that_are_not_as_promised_hold_it_until_a_person_accepts_that(ramp: Ramp, met: Met, cast: Cast) -> None:
    for _ in range(40):
        met(True)
    ramp = looked(ramp)
    assert ramp.state == "holding"
    assert "40 of 40 sessions at 25%" in ramp.finding["words"]
    assert ramp.split.share == 2500
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="it is a batch job", generation=ramp.generation)
    met(True)
    assert looked(ramp).state == "running"


def test_a_doubt_that_a_person_accepted_stays_accepted_after_another_hold(ramp: Ramp, met: Met, cast: Cast) -> None:
    Ramp.objects.filter(pk=ramp.pk).update(
        stage=1, plan={**ramp.plan, "finish": "nothing_found"}, finding={"accepted": ["judged", "shares"]}
    )
    Split.objects.update(share=5000)
    Candidate.objects.filter(pk=ramp.candidate_id).update(report_digest="0" * 64)
    for _ in range(40):
        met(True)
    ramp = looked(ramp)
    assert (ramp.state, ramp.finding["accepted"]) == ("holding", ["judged", "shares"])
    assert "evaluate again" in ramp.finding["words"]


def test_sessions_that_are_judged_in_one_arm_alone_hold_it(ramp: Ramp, met: Met) -> None:
    live = ramp_units.answerer(ramp.split, is_candidate=False)
    for place in range(120):
        met(place % 4 == 0, answered_by=[live])
    ramp = looked(ramp)
    assert ramp.state == "holding"
    assert set(ramp.finding["doubts"]) <= {"judged", "missing"}


def test_doubts_hold_a_stage_that_is_due_though_nothing_is_new(
    ramp: Ramp, met: Met, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):
        met(True)
    with monkeypatch.context() as patched:
        patched.setattr(ramp_judging, "_go_on", lambda *_: None)
        assert looked(ramp).state == "running"
    assert looked(ramp).state == "holding"


def test_harm_that_was_found_before_the_live_version_moved_is_still_told_as_harm(ramp: Ramp) -> None:
    ramp_moves.end_share(ramp, {"words": "harm", "signals": ["failed"]})
    Split.objects.update(closed_at=timezone.now())
    assert looked(ramp).state == "taken_back"


def test_a_stage_of_which_nobody_knows_how_its_sessions_ended_is_a_persons_to_decide(
    ramp: Ramp, met: Met, cast: Cast
) -> None:
    for number in range(12):
        met(number % 4 == 0, outcome=None, ago=5000)
    ramp = looked(ramp)
    assert (ramp.state, ramp.finding["words"]) == (
        "holding",
        "of none of 12 sessions is it known how they ended",
    )
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="detectors see enough", generation=ramp.generation)
    assert looked(ramp).stage == 1


def test_a_detector_that_is_switched_off_meanwhile_holds_it(ramp: Ramp, met: Met, cast: Cast) -> None:
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin)}
    DetectorSetting.objects.create(
        project=cast.project,
        by=cast.admin,
        detector="repeated_loop",
        is_on=False,
        at=ramp.created_at - timedelta(hours=1),
    )
    detector_settings.switch(name="ignored_error", is_on=False, **common)
    detector_settings.switch(name="ignored_error", is_on=True, **common)
    met(True)
    assert looked(ramp).state == "running", "one that was off before, and one that is on again"
    detector_settings.switch(name="unsafe_call", is_on=False, **common)
    met(True)
    ramp = looked(ramp)
    assert ramp.state == "holding"
    assert ramp.finding["words"] == "since it began, unsafe_call has been switched off, and finds nothing any more"
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="it was wrong", generation=ramp.generation)
    met(True)
    assert looked(ramp).state == "running"


def test_a_detector_that_was_off_when_it_began_does_not_hold_it_whatever_is_done_with_it(
    ramp: Ramp, met: Met, cast: Cast
) -> None:
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin)}
    detector_settings.point(name="blind_search", bucket="wrong_tool", **common)
    met(True)
    assert looked(ramp).state == "running", "off by default"
    detector_settings.switch(name="blind_search", is_on=True, **common)
    detector_settings.point(name="blind_search", bucket="format_error", **common)
    detector_settings.switch(name="blind_search", is_on=False, **common)
    met(True)
    assert looked(ramp).state == "running", "off again"


def test_two_detectors_that_were_switched_off_are_both_named(ramp: Ramp, met: Met, cast: Cast) -> None:
    for name in ("unsafe_call", "repeated_loop"):
        detector_settings.switch(project=cast.project, actor=Actor(cast.admin), name=name, is_on=False)
    met(True)
    words = "since it began, repeated_loop and unsafe_call have been switched off, and find nothing any more"
    assert looked(ramp).finding["words"] == words


def test_a_detector_that_is_pointed_at_another_category_meanwhile_holds_it(ramp: Ramp, met: Met, cast: Cast) -> None:
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin)}
    detector_settings.point(name="unsafe_call", bucket="other", **common)
    detector_settings.point(name="unsafe_call", bucket="", **common)
    met(True)
    assert looked(ramp).state == "running", "it proposes again what it did"
    detector_settings.point(name="broken_output", bucket="other", **common)
    met(True)
    ramp = looked(ramp)
    assert (ramp.state, ramp.finding["doubts"]) == ("holding", ["pointed"])
    words = "since it began, broken_output has been pointed at another category, and what it finds counts there"
    assert ramp.finding["words"] == words
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="it fits", generation=ramp.generation)
    met(True)
    assert looked(ramp).state == "running"
    detector_settings.switch(name="repeated_loop", is_on=False, **common)
    met(True)
    ramp = looked(ramp)
    assert (ramp.state, ramp.finding["doubts"]) == ("holding", ["detectors"]), "that is another doubt"


def test_a_detector_that_was_pointed_and_switched_off_meanwhile_is_named_once(ramp: Ramp, met: Met, cast: Cast) -> None:
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin)}
    detector_settings.point(name="broken_output", bucket="other", **common)
    detector_settings.switch(name="broken_output", is_on=False, **common)
    met(True)
    assert looked(ramp).finding["doubts"] == ["detectors"]


def test_a_category_that_was_another_before_the_ramp_does_not_hold_it(
    build: Build, candidate: Candidate, cast: Cast
) -> None:
    common: dict[str, Any] = {"project": cast.project, "actor": Actor(cast.admin)}
    detector_settings.point(name="broken_output", bucket="other", **common)
    made = begun(candidate, cast)
    assert looked(made).state == "running"
    met_in(build, made)(True)
    assert looked(made).state == "running"


def test_a_move_of_the_live_version_stops_it(build: Build, ramp: Ramp, cast: Cast) -> None:
    other = build.version(ramp.agent, system_prompt="earlier")
    Promotion.objects.create(
        agent=ramp.agent, kind="first", generation=77, after=other, approved_by=cast.approver, reason="x"
    )
    roll_back(agent=ramp.agent, to=other, actor=Actor(cast.approver), reason="x", generation=ramp.agent_generation)
    ramp = looked(ramp)
    assert ramp.state == "stopped"
    assert "moved meanwhile" in ramp.changes.order_by("-pk")[0].reason


def test_what_may_not_go_live_any_more_holds_it_with_the_reason(ramp: Ramp, met: Met) -> None:
    Ramp.objects.filter(pk=ramp.pk).update(stage=1, plan={**ramp.plan, "finish": "nothing_found"})
    Split.objects.update(share=5000)
    Candidate.objects.filter(pk=ramp.candidate_id).update(report_digest="0" * 64)
    sessions(met, 12, live=0.0, candidate=0.0)
    ramp = looked(ramp)
    assert ramp.state == "holding"
    assert "evaluate again" in ramp.finding["words"]


def test_a_judgement_that_does_not_follow_from_its_sessions_holds_it(ramp: Ramp, met: Met) -> None:
    sessions(met, 12, live=0.3, candidate=0.3)
    Ramp.objects.filter(pk=ramp.pk).update(judgement=Judgement.begin(ramp.rules).to_json())
    ramp = looked(ramp)
    assert ramp.stage == 1
    begun = Judgement.begin(ramp.rules)
    kept = begun.follow(ramp_judging.sessions_of([SplitUnit(is_candidate=True, share=5000, parts={"failed": 1.0})]))[1]
    plan = {**ramp.plan, "finish": "nothing_found"}
    Ramp.objects.filter(pk=ramp.pk).update(judgement=kept.to_json(), plan=plan)
    sessions(met, 12, live=0.3, candidate=0.3, seed=2)
    ramp = looked(ramp)
    assert ramp.state == "holding"
    assert "does not follow" in ramp.finding["words"]


def test_one_that_a_person_finishes_waits_for_them(ramp: Ramp, met: Met) -> None:
    Ramp.objects.filter(pk=ramp.pk).update(stage=1, plan={**ramp.plan, "finish": "person"})
    Split.objects.update(share=5000)
    sessions(met, 60, live=0.9, candidate=0.0)
    assert looked(ramp).state == "running"
