"""A ramp in the shadow: pairs are compared once, harm holds it, and it goes on as its plan says."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Shadow, ShadowCopy, Split
from flywheel.core.evidence.ramp.ramp_plan import Plan, Stage
from flywheel.core.evidence.ramp.ramp_plan import Shadow as ShadowPlan
from flywheel.core.traces import Message, Step, ToolCall, Trace
from flywheel.edge.refusals import Refused
from flywheel.promotions.models import Candidate, Ramp, ShadowVerdict
from flywheel.promotions.ramps import ramp_judging, ramp_moves, shadow_comparing
from flywheel.promotions.ramps.ramp_words import standing_words
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.merge import store_rollouts
from tests.conftest import Cast

pytestmark = pytest.mark.django_db
TOOLS = [{"name": "find", "parameters": {"type": "object", "required": ["id"]}}]
LONG_AGO = timedelta(hours=1)


def begin(candidate: Candidate, cast: Cast, **shadow: Any) -> Ramp:
    plan = Plan(stages=(Stage(2500, 10, 0),), quiet_s=60, shadow=ShadowPlan(**{"sessions": 3, **shadow}))
    made = ramp_moves.begin(
        candidate=candidate,
        plan=plan,
        actor=Actor(cast.approver),
        reason="by steps",
        generation=candidate.agent.generation,
    )
    return look(made)


def look(ramp: Ramp) -> Ramp:
    ramp_judging.look()
    return Ramp.objects.get(pk=ramp.pk)


def copied(ramp: Ramp, number: int, arguments: Any = None, *, ago: timedelta = LONG_AGO) -> ShadowCopy:
    """A session's call of the live version, which finds order 1, and the candidate's answer."""
    at = timezone.now() - ago
    names = [f"{kind}{number:03d}".ljust(32, "0") for kind in "ab"]
    for name, said, source in zip(
        names, ({"id": "1"}, arguments or {"id": "1"}), (Source.PRODUCTION, Source.SHADOW), strict=True
    ):
        step = Step(
            name[:16],
            "assistant",
            started_at=at,
            ended_at=at + timedelta(seconds=1),
            input=[Message("user", "Where is order 1?")],
            output=[Message("assistant", "", (ToolCall("c", "find", said),))],
            tokens_out=7,
            cost_usd=0.5,
        )
        store_rollouts(ramp.agent.project, [Trace(name, [step], tools=TOOLS)], source=source)
    fields = {"trace_id": names[0], "span_id": names[0][:16], "copy_trace_id": names[1], "at": at}
    return ShadowCopy.objects.create(split=ramp.split, kind="session", name=f"s{number}", **fields)


def test_a_ramp_waits_in_the_shadow_and_goes_on_when_enough_is_compared(candidate: Candidate, cast: Cast) -> None:
    ramp = begin(candidate, cast)
    assert (ramp.state, ramp.stage, ramp.split.share, ramp.split.shadow.is_on) == ("shadow", -1, 0, True)
    assert standing_words(ramp) == "ramp in the shadow"
    copied(ramp, 0)
    copied(ramp, 1)
    lost = copied(ramp, 2)
    ShadowCopy.objects.filter(pk=lost.pk).update(copy_trace_id="never")
    assert look(ramp).state == "shadow"
    assert sorted(ShadowCopy.objects.values_list("state", flat=True)) == ["compared", "compared", "lost"]
    used = Shadow.objects.get()
    assert (used.tokens_used, used.dollars_used) == (14, 1.0)
    other = copied(ramp, 3, {"id": "2"})
    ramp = look(ramp)
    assert (ramp.state, ramp.stage, ramp.split.share) == ("running", 0, 2500)
    assert not Shadow.objects.get().is_on
    assert ramp.changes.get(generation=3).reason == "the shadow compared 3 sessions"
    numbers = shadow_comparing.numbers(ramp)
    assert (numbers.sessions, numbers.compared, numbers.lost, numbers.differ) == (3, 3, 1, 1)
    assert shadow_comparing.disagreements(ramp.split).get() == other
    for verdict in (ShadowVerdict.Verdict.WRONG, ShadowVerdict.Verdict.BOTH):
        shadow_comparing.say_verdict(copy=other, actor=Actor(cast.reviewer), project=cast.project, verdict=verdict)
    assert shadow_comparing.verdicts_of(ramp.split) == {"both": 1}
    with pytest.raises(Refused, match="unknown"):
        shadow_comparing.say_verdict(copy=other, actor=Actor(cast.reviewer), project=cast.project, verdict="better")


def test_more_invalid_calls_hold_it_and_a_person_lets_it_go_on(candidate: Candidate, cast: Cast) -> None:
    ramp = begin(candidate, cast, sessions=50)
    for number in range(12):
        copied(ramp, number, {"order": 1})
    ramp = look(ramp)
    assert (ramp.state, ramp.stage, Shadow.objects.get().is_on) == ("holding", -1, False)
    assert ramp.finding["words"] == "its answers to copies show more invalid calls"
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="the schema is wrong", generation=ramp.generation)
    ramp = look(ramp)
    assert (ramp.state, Shadow.objects.get().is_on) == ("shadow", True)
    ramp_moves.advance(ramp=ramp, actor=Actor(cast.approver), reason="enough", generation=ramp.generation)
    assert (ramp.state, ramp.stage, Split.objects.get().share) == ("running", 0, 2500)


def test_a_person_decides_where_the_plan_says_so_or_nothing_was_compared(candidate: Candidate, cast: Cast) -> None:
    ramp = begin(candidate, cast, then="person", minutes=1)
    copied(ramp, 0, ago=timedelta(0))
    Ramp.objects.update(stage_since=timezone.now() - LONG_AGO)
    ramp = look(ramp)
    assert (ramp.state, ramp.finding["doubts"]) == ("holding", ["shadow over"])
    ramp_moves.go_on(ramp=ramp, actor=Actor(cast.approver), reason="fine", generation=ramp.generation)
    assert look(ramp).state == "running"


def test_a_shadow_is_over_when_its_budget_is_used_up_and_nothing_is_on_its_way(
    candidate: Candidate, cast: Cast
) -> None:
    ramp = begin(candidate, cast, sessions=50, calls=2)
    copied(ramp, 0)
    assert look(ramp).state == "shadow"
    Shadow.objects.update(copies=2)
    under_way = copied(ramp, 1)
    ShadowCopy.objects.filter(pk=under_way.pk).update(copy_trace_id="on its way", at=timezone.now())
    assert look(ramp).state == "shadow", "its answer is awaited"
    ShadowCopy.objects.filter(pk=under_way.pk).update(copy_trace_id="b001".ljust(32, "0"))
    assert look(ramp).state == "shadow", "its session is not over"
    ShadowCopy.objects.filter(pk=under_way.pk).update(at=timezone.now() - LONG_AGO)
    ramp = look(ramp)
    assert (ramp.state, ramp.stage) == ("running", 0)
    assert ramp.changes.get(generation=3).reason == "the shadow compared 2 sessions"


@pytest.mark.parametrize(
    ("limit", "used"), [({"tokens": 14}, {"tokens_used": 14}), ({"dollars": 1.0}, {"dollars_used": 1.0})]
)
def test_tokens_and_dollars_use_the_budget_up_as_well(
    limit: dict[str, Any], used: dict[str, Any], candidate: Candidate, cast: Cast
) -> None:
    ramp = begin(candidate, cast, sessions=50, **limit)
    copied(ramp, 0)
    assert look(ramp).state == "shadow"
    copied(ramp, 1)
    assert look(ramp).state == "running"
    assert Shadow.objects.filter(**used).exists()


def test_a_copy_that_was_lost_is_not_waited_for(candidate: Candidate, cast: Cast) -> None:
    ramp = begin(candidate, cast, sessions=50, calls=2)
    copied(ramp, 0)
    lost = copied(ramp, 1)
    ShadowCopy.objects.filter(pk=lost.pk).update(copy_trace_id="never")
    Shadow.objects.update(copies=2)
    ramp = look(ramp)
    assert (ramp.state, ShadowCopy.objects.get(pk=lost.pk).state) == ("running", "lost")
