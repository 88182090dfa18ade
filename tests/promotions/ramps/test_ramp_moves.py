from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Notice
from flywheel.agents.models import Agent, Split
from flywheel.core.evidence.ramp.ramp_plan import Plan, Stage
from flywheel.edge.refusals import Refused, Stale
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import promote, roll_back
from flywheel.promotions.models import Candidate, Promotion, Ramp, RampChange
from flywheel.promotions.ramps import ramp_moves
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated

PLAN = Plan(stages=(Stage(500, 10, 0), Stage(5000, 10, 0)))


def begun(candidate: Candidate, cast: Cast, **more: Any) -> Ramp:
    return ramp_moves.begin(
        candidate=candidate,
        plan=PLAN,
        actor=Actor(cast.approver),
        reason="by steps",
        **{"generation": candidate.agent.generation} | more,
    )


def promoted(candidate: Candidate, cast: Cast, **more: Any) -> Promotion:
    return promote(
        candidate=candidate,
        actor=Actor(cast.approver),
        reason="at once",
        **{"generation": candidate.agent.generation} | more,
    )


def running(candidate: Candidate, cast: Cast, **more: Any) -> Ramp:
    return ramp_moves.start(ramp=begun(candidate, cast, **more))


def share(ramp: Ramp) -> int:
    return Split.objects.get(pk=ramp.split_id).share


def test_a_ramp_sends_nobody_to_its_candidate_before_the_judge_has_seen_it(candidate: Candidate, cast: Cast) -> None:
    ramp = begun(candidate, cast)
    assert (ramp.state, share(ramp)) == ("waiting", 0)
    assert Candidate.objects.get(pk=candidate.pk).state == "ramping"
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.baseline
    ramp_moves.start(ramp=ramp)
    assert (ramp.state, share(ramp)) == ("running", 500)
    split = Split.objects.get(pk=ramp.split_id)
    assert split.lease_until <= timezone.now()
    ramp_moves.renew(ramp)
    split.refresh_from_db()
    assert timezone.now() < split.lease_until <= timezone.now() + timedelta(seconds=11)


def test_it_goes_through_its_stages_and_then_live_for_everybody(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    ramp_moves.advance(ramp=ramp, actor=None, reason="nothing found", generation=ramp.generation)
    assert (ramp.stage, share(ramp)) == (1, 5000)
    with pytest.raises(Refused, match="last stage"):
        ramp_moves.advance(ramp=ramp, actor=Actor(cast.approver), reason="more", generation=ramp.generation)
    promotion = ramp_moves.finish(ramp=ramp, actor=None, reason="not worse", generation=ramp.generation)
    agent = Agent.objects.get(pk=candidate.agent_id)
    assert (agent.live, agent.generation) == (candidate.version, ramp.agent_generation + 1)
    assert (promotion.kind, promotion.approved_by) == ("promote", cast.approver)
    ramp = Ramp.objects.get(pk=ramp.pk)
    assert (ramp.state, ramp.promotion) == ("finished", promotion)
    split = Split.objects.get(pk=ramp.split_id)
    assert split.closed_at is not None
    assert Candidate.objects.get(pk=candidate.pk).state == "promoted"
    assert list(ramp.changes.order_by("pk").values_list("state", "share", "by__username")) == [
        ("waiting", 0, cast.approver.username),
        ("running", 500, None),
        ("running", 5000, None),
        ("finished", 10_000, None),
    ]
    assert AuditEntry.objects.get(action="promotions.ramp_finished").through == f"the judge of ramp {ramp.pk}"


@pytest.mark.parametrize(("end", "state"), [(ramp_moves.stop, "stopped"), (ramp_moves.take_back, "taken_back")])
def test_one_that_is_over_has_no_share_and_its_version_goes_out_again_only_by_its_name(
    candidate: Candidate, cast: Cast, end: Any, state: str
) -> None:
    ramp = running(candidate, cast)
    end(ramp=ramp, actor=Actor(cast.approver), reason="enough", generation=ramp.generation)
    assert (Ramp.objects.get(pk=ramp.pk).state, share(ramp)) == (state, 0)
    assert Split.objects.get(pk=ramp.split_id).closed_at is not None
    candidate.refresh_from_db()
    assert candidate.state == state
    with pytest.raises(Refused, match=f"in ramp {ramp.pk}") as caught:
        begun(candidate, cast)
    assert caught.value.field == "again"
    with pytest.raises(Refused, match=f"in ramp {ramp.pk}"):
        promote(candidate=candidate, actor=Actor(cast.approver), reason="x", generation=candidate.agent.generation)
    second = begun(candidate, cast, again=ramp.pk)
    assert second.after == ramp


def test_a_person_holds_it_and_lets_it_go_on_where_it_was(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    ramp_moves.hold(ramp=ramp, actor=Actor(cast.approver), reason="let me look", generation=ramp.generation)
    assert (ramp.state, share(ramp)) == ("holding", 500)
    for act in (ramp_moves.advance, ramp_moves.finish, ramp_moves.hold):
        with pytest.raises(Refused, match="on hold"):
            act(ramp=ramp, actor=Actor(cast.approver), reason="x", generation=ramp.generation)
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="fine", generation=ramp.generation)
    assert (ramp.state, share(ramp)) == ("running", 500)


def test_who_saw_an_older_state_moves_nothing_and_a_reason_is_wanted(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    with pytest.raises(Stale):
        ramp_moves.advance(ramp=ramp, actor=Actor(cast.approver), reason="x", generation=ramp.generation - 1)
    with pytest.raises(Refused, match="reason"):
        ramp_moves.take_back(ramp=ramp, actor=Actor(cast.approver), reason=" ", generation=ramp.generation)
    with pytest.raises(Stale):
        ramp_moves.finish(ramp=ramp, actor=None, reason="x", generation=ramp.generation - 1)
    assert Agent.objects.get(pk=candidate.agent_id).live == candidate.baseline
    assert RampChange.objects.filter(ramp=ramp).count() == 2


def test_all_checks_of_a_promotion_hold_at_both_ends(candidate: Candidate, cast: Cast) -> None:
    with pytest.raises(Refused, match="you launched"):
        ramp_moves.begin(
            candidate=candidate,
            plan=PLAN,
            actor=Actor(cast.trainer),
            reason="mine",
            generation=candidate.agent.generation,
        )
    ramp = running(candidate, cast)
    Candidate.objects.filter(pk=candidate.pk).update(report_digest="0" * 64)
    with pytest.raises(Refused, match="evaluate again"):
        ramp_moves.finish(ramp=ramp, actor=None, reason="x", generation=ramp.generation)
    assert Ramp.objects.get(pk=ramp.pk).state == "running"
    assert Promotion.objects.filter(candidate=candidate).count() == 0


def test_who_launched_the_candidate_may_take_it_back_and_not_let_it_go_further(
    candidate: Candidate, cast: Cast
) -> None:
    ramp, launcher = running(candidate, cast), Actor(cast.trainer)
    for act in (ramp_moves.advance, ramp_moves.finish):
        with pytest.raises(Refused, match="you launched"):
            act(ramp=ramp, actor=launcher, reason="x", generation=ramp.generation)
    ramp_moves.hold(ramp=ramp, actor=launcher, reason="x", generation=ramp.generation)
    with pytest.raises(Refused, match="you launched"):
        ramp_moves.go_on(ramp=ramp, actor=launcher, reason="x", generation=ramp.generation)
    ramp_moves.take_back(ramp=ramp, actor=launcher, reason="x", generation=ramp.generation)
    assert ramp.state == "taken_back"


def test_where_harm_was_found_meanwhile_only_the_way_back_is_left(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    ramp_moves.end_share(ramp, {"words": "harm", "signals": ["failed"]})
    approver = Actor(cast.approver)
    for act in (ramp_moves.advance, ramp_moves.hold, ramp_moves.finish, ramp_moves.stop):
        with pytest.raises(Stale):
            act(ramp=Ramp.objects.get(pk=ramp.pk), actor=approver, reason="x", generation=ramp.generation)
    Ramp.objects.filter(pk=ramp.pk).update(state="holding")
    with pytest.raises(Stale):
        ramp_moves.go_on(ramp=Ramp.objects.get(pk=ramp.pk), actor=approver, reason="x", generation=ramp.generation)
    assert (share(ramp), Agent.objects.get(pk=candidate.agent_id).live) == (0, candidate.baseline)
    ramp_moves.take_back(ramp=Ramp.objects.get(pk=ramp.pk), actor=None, reason="harm", generation=ramp.generation)
    assert Ramp.objects.get(pk=ramp.pk).state == "taken_back"


def test_a_plan_judges_only_categories_that_there_are(candidate: Candidate, cast: Cast) -> None:
    plan = Plan(alphas={"failed": 0.01, "bucket:wrong_tol": 0.01})
    with pytest.raises(Refused, match="wrong_tol") as caught:
        ramp_moves.begin(
            candidate=candidate,
            plan=plan,
            actor=Actor(cast.approver),
            reason="x",
            generation=candidate.agent.generation,
        )
    assert caught.value.field == "alphas"


def test_people_are_told_of_a_stage_and_not_that_it_goes_on(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    ramp_moves.hold(ramp=ramp, actor=Actor(cast.approver), reason="x", generation=ramp.generation)
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="x", generation=ramp.generation)
    ramp_moves.take_back(ramp=ramp, actor=Actor(cast.approver), reason="x", generation=ramp.generation)
    told = Notice.objects.filter(subject=str(ramp)).order_by("pk")
    assert list(told.values_list("event", flat=True)) == ["ramp.stage_reached", "ramp.held", "ramp.taken_back"]


def test_people_are_told_that_it_finished(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    ramp_moves.finish(ramp=ramp, actor=Actor(cast.approver), reason="fine", generation=ramp.generation)
    told = Notice.objects.filter(subject=str(ramp)).order_by("-pk")[0]
    assert (told.event, told.title) == ("ramp.finished", f"{candidate.version} is live for everybody")
    assert (told.text, told.url) == ("fine", f"/p/acme/promotions/ramps/{ramp.pk}/")


def test_a_version_whose_ramp_is_under_way_cannot_be_deleted(candidate: Candidate, cast: Cast) -> None:
    running(candidate, cast)
    with pytest.raises(ProtectedError, match=r"protected foreign keys: .*'Split.candidate'"):
        candidate.version.delete()


def test_an_agent_has_one_ramp_at_a_time(candidate: Candidate, cast: Cast) -> None:
    running(candidate, cast)
    candidate.refresh_from_db()
    with pytest.raises(Refused, match="being released by steps already"):
        begun(candidate, cast)
    Candidate.objects.filter(pk=candidate.pk).update(state="waiting")
    with pytest.raises(Refused, match="has a ramp under way"):
        begun(candidate, cast)


def test_whoever_moves_the_live_version_ends_the_split(build: Build, candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    other = build.version(candidate.agent, system_prompt="earlier")
    Promotion.objects.create(
        agent=candidate.agent, kind="first", generation=77, after=other, approved_by=cast.approver, reason="x"
    )
    roll_back(
        agent=candidate.agent, to=other, actor=Actor(cast.approver), reason="x", generation=candidate.agent.generation
    )
    split = Split.objects.get(pk=ramp.split_id)
    assert (split.share, split.closed_at is not None) == (0, True)


def test_what_happened_to_a_ramp_cannot_be_rewritten(candidate: Candidate, cast: Cast) -> None:
    ramp = running(candidate, cast)
    for act in (lambda: ramp.changes.update(reason="other"), lambda: RampChange.objects.all().delete()):
        with pytest.raises(IntegrityError, match="never change"), transaction.atomic():
            act()


def test_a_version_that_was_rolled_back_after_its_ramp_goes_out_again_only_by_that_name(
    build: Build, candidate: Candidate, evaluated: Evaluated, cast: Cast
) -> None:
    ramp = running(candidate, cast)
    ramp_moves.advance(ramp=ramp, actor=None, reason="nothing found", generation=ramp.generation)
    first = ramp_moves.finish(ramp=ramp, actor=None, reason="not worse", generation=ramp.generation)
    agent = Agent.objects.get(pk=candidate.agent_id)
    actor = Actor(cast.approver)
    roll_back(agent=agent, to=candidate.baseline, actor=actor, generation=first.generation, reason="unsafe")
    another = propose(
        version_eval=evaluated(candidate.version, candidate.version_eval.task_set, passing=22),
        baseline_eval=candidate.baseline_eval,
        actor=Actor(cast.trainer),
    )
    another = Candidate.objects.get(pk=another.pk)
    for release in (begun, promoted):
        with pytest.raises(Refused, match=f"went live in ramp {ramp.pk}") as caught:
            release(another, cast)
        assert caught.value.field == "again"
    assert promoted(another, cast, again=ramp.pk).again == ramp
