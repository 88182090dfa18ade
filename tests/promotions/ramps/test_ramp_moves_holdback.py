"""A holdback: the version is live, some sessions stay with the one before, and the ramp's test goes on."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Split
from flywheel.agents.splits import open_splits
from flywheel.edge.refusals import Refused
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate, Promotion, Ramp, Watch
from flywheel.promotions.ramps import claim_watching, ramp_judging, ramp_moves
from flywheel.promotions.ramps.ramp_words import standing_words
from tests.conftest import Build, Cast
from tests.promotions.ramps.conftest import HELD, met_in

pytestmark = pytest.mark.django_db


def test_the_split_goes_on_beside_the_new_live_version_until_it_is_finished(held: Ramp, cast: Cast) -> None:
    agent, split = held.split.agent, held.split
    assert (held.state, held.stage, held.place, split.share) == ("running", 1, "holdback", 9500)
    assert (agent.live, split.live, split.is_holdback) == (held.candidate.version, held.candidate.baseline, True)
    assert standing_words(held) == "live, 5% held back"
    found = open_splits.find(agent)
    assert found is not None
    assert (found.row, found.row.candidate) == (split, agent.live)
    claim_watching.look()
    assert not Watch.objects.exists(), "the ramp's own test is causal"
    with pytest.raises(Refused, match="is live already"):
        ramp_moves.stop(ramp=held, actor=Actor(cast.approver), reason="no", generation=held.generation)
    promotion = ramp_moves.finish(ramp=held, actor=Actor(cast.approver), reason="over", generation=held.generation)
    agent.refresh_from_db()
    assert (held.state, promotion.after, agent.live) == ("finished", held.candidate.version, held.candidate.version)
    assert open_splits.find(agent) is None
    claim_watching.look()
    assert Watch.objects.get().promotion == promotion


def test_harm_sends_everybody_to_the_version_before_and_makes_it_live_again(held: Ramp) -> None:
    agent = held.split.agent
    ramp_moves.end_share(held, {"words": "more failures", "signals": ["failed"]})
    assert open_splits.find(agent) is None
    back = open_splits.taken_back(agent)
    assert back is not None
    assert back.live == held.candidate.baseline
    ramp_judging.look()
    held.refresh_from_db()
    agent = Agent.objects.get(pk=agent.pk)
    assert (held.state, agent.live) == ("taken_back", held.candidate.baseline)
    assert open_splits.taken_back(agent) is None
    assert Split.objects.get().closed_at is not None
    assert Candidate.objects.get(pk=held.candidate_id).state == Candidate.State.TAKEN_BACK
    assert agent.promotions.order_by("-generation").values_list("kind", flat=True)[0] == "rollback"


def test_a_person_takes_it_back_if_nothing_changed_meanwhile(held: Ramp, cast: Cast) -> None:
    with pytest.raises(Refused):
        ramp_moves.take_back(ramp=held, actor=Actor(cast.approver), reason="late", generation=held.generation - 1)
    assert Split.objects.get().share == 9500
    ramp_moves.take_back(ramp=held, actor=Actor(cast.approver), reason="complaints", generation=held.generation)
    assert (held.state, Agent.objects.get(pk=held.agent_id).live) == ("taken_back", held.candidate.baseline)


def test_the_judge_ends_it_after_its_sessions_and_its_days_and_not_before(held: Ramp, build: Build) -> None:
    plan = {**held.plan, "holdback": {"share": 500, "sessions": 3, "days": 2.0}}
    Ramp.objects.filter(pk=held.pk).update(plan=plan)
    met = met_in(build, held)
    late = timezone.now() - timedelta(days=2, minutes=1)

    def state(since: datetime) -> str:
        Ramp.objects.filter(pk=held.pk).update(stage_since=since)
        ramp_judging.look()
        return str(Ramp.objects.get(pk=held.pk).state)

    met(True)
    met(False)
    assert state(late) == "running", "too few sessions"
    met(True)
    assert state(timezone.now() - timedelta(days=1)) == "running", "too few days"
    assert state(late) == "finished"
    change = held.changes.order_by("-pk")[0]
    assert (change.by, change.reason) == (None, "nothing was found in 3 sessions at 95%")
    assert Split.objects.get().closed_at is not None
    assert Agent.objects.get(pk=held.agent_id).live == held.candidate.version


def taken_back(held: Ramp, cast: Cast) -> Candidate:
    """Its candidate, after the version before was made live again."""
    ramp_moves.take_back(ramp=held, actor=Actor(cast.approver), reason="complaints", generation=held.generation)
    return Candidate.objects.select_related("agent").get(pk=held.candidate_id)


def test_what_was_taken_back_after_it_was_live_is_let_out_again_at_once_by_its_name(held: Ramp, cast: Cast) -> None:
    row = taken_back(held, cast)
    given: dict[str, Any] = {"actor": Actor(cast.approver), "reason": "mended", "generation": row.agent.generation}
    with pytest.raises(Refused, match=f"in ramp {held.pk}") as caught:
        promote(candidate=row, **given)
    assert caught.value.field == "again"
    second = promote(candidate=row, again=held.pk, **given)
    assert list(row.promotions.order_by("pk").values_list("generation", "again")) == [
        (held.agent_generation + 1, None),
        (second.generation, held.pk),
    ]
    assert Agent.objects.get(pk=row.agent_id).live == row.version
    assert Candidate.objects.get(pk=row.pk).state == Candidate.State.PROMOTED


def test_it_is_let_out_again_by_steps_and_the_judge_finishes_it(held: Ramp, cast: Cast) -> None:
    row = taken_back(held, cast)
    ramp = ramp_moves.begin(
        candidate=row,
        plan=replace(HELD, holdback=None),
        actor=Actor(cast.approver),
        reason="mended",
        generation=row.agent.generation,
        again=held.pk,
    )
    ramp_moves.start(ramp=ramp)
    promotion = ramp_moves.finish(ramp=ramp, actor=None, reason="it is fine", generation=ramp.generation)
    assert (ramp.state, ramp.promotion, promotion.again) == ("finished", promotion, held)
    assert row.promotions.count() == 2


def test_one_approval_makes_one_promotion_of_a_candidate(held: Ramp, cast: Cast) -> None:
    taken_back(held, cast)
    kept = Promotion.objects.get(candidate=held.candidate)
    with pytest.raises(IntegrityError, match="promotion_once_per_approval"), transaction.atomic():
        Promotion.objects.create(
            agent=kept.agent,
            kind=kept.kind,
            generation=99,
            after=kept.after,
            candidate=kept.candidate,
            proposed_by=kept.proposed_by,
            approved_by=kept.approved_by,
        )
