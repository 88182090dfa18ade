"""The claims of a promotion, from the ramp, from the version before, and from the suites."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent, SplitUnit
from flywheel.environments.models import Suite, Task
from flywheel.promotions import suite_standings
from flywheel.promotions.candidacy import propose
from flywheel.promotions.claims.promotion_claims import claims_of
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate, Promotion, Ramp
from flywheel.promotions.ramps import ramp_moves
from tests.conftest import Build, Cast, proposed
from tests.pages import page_of
from tests.promotions.conftest import Evaluated, ended, pair_of, runs_of
from tests.promotions.ramps.conftest import ramp
from tests.promotions.ramps.test_claim_watching import KEY, claims_better, promote_anyway

__all__ = ["ramp"]
BUCKET = f"bucket:{KEY}"
SignIn = Callable[[User], Client]


def before(build: Build, candidate: Candidate, found: list[dict[str, Any]]) -> None:
    """Trajectories of the version before: a detector's score, or a person's label."""
    for said in found:
        label = said.get("label", "")
        row = build.trajectory(
            version=candidate.baseline,
            started_at=timezone.now() - timedelta(days=1),
            label=label,
            label_bucket=KEY if label else "",
        )
        if "own_score" in said:
            proposed(row, KEY, 0.6, **said)


@pytest.fixture
def guarded(build: Build, cast: Cast, agent: Agent, golden: Suite, evaluated: Evaluated) -> Candidate:
    """A candidate that passes the agent's suite, whose first task is of a category and the others of none."""
    tasks = Task.objects.filter(pk__in=golden.task_set.members.values("task"))
    tasks.update(bucket="")
    Task.objects.filter(pk__in=golden.task_set.members.filter(split="held_out").values("task")[:1]).update(bucket=KEY)
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    ended(runs_of(golden, agent.live))
    return row


def test_half_of_what_the_version_before_did_is_claimed_of_a_category_that_is_to_be_better(
    build: Build, candidate: Candidate
) -> None:
    claims_better(candidate)
    sure: dict[str, Any] = {"own_score": 0.9}
    before(build, candidate, [sure, sure, sure, {"label": "failure"}, {"own_score": 0.4}, *[{}] * 5])
    assert claims_of(candidate, [])[BUCKET] == 0.2


def test_a_suite_that_it_passes_claims_its_category_at_twice_what_was_before(
    build: Build, guarded: Candidate, golden: Suite
) -> None:
    before(build, guarded, [{"own_score": 0.9}, *[{}] * 9])
    assert BUCKET not in claims_of(guarded, suite_standings.standings_of(guarded)), "it has not run"
    ended(runs_of(golden, guarded.version))
    assert claims_of(guarded, suite_standings.standings_of(guarded))[BUCKET] == 0.2


def test_a_category_of_which_it_fails_a_task_of_the_suite_is_not_claimed(guarded: Candidate, golden: Suite) -> None:
    ended(runs_of(golden, guarded.version))
    runs_of(golden, guarded.version).results.filter(task__bucket=KEY).update(success=False)
    stands = suite_standings.standings_of(guarded)
    for stand in stands:
        object.__setattr__(stand, "state", "cannot_tell")
    assert BUCKET not in claims_of(guarded, stands)


def test_a_suite_that_measures_harm_alone_claims_no_category(guarded: Candidate, golden: Suite) -> None:
    ended(runs_of(golden, guarded.version))
    stands = suite_standings.standings_of(guarded)
    stands[0].suite.measure = Suite.Measure.SAFE
    assert BUCKET not in claims_of(guarded, stands)


def test_twice_what_its_own_sessions_showed_in_its_ramp_is_claimed_and_the_rest_comes_from_before(
    build: Build, candidate: Candidate, ramp: Ramp, cast: Cast
) -> None:
    claims_better(candidate)
    before(build, candidate, [{"own_score": 0.9}, *[{}] * 4])
    for number, (is_candidate, parts) in enumerate(
        [(True, {"unsafe": 1.0, "errors": None}), *[(True, {"unsafe": 0.0, "errors": 0.0})] * 9]
        + [(False, {"unsafe": 1.0, "errors": 1.0})] * 5,
        1,
    ):
        SplitUnit.objects.create(
            split=ramp.split,
            kind="session",
            name=f"s{number}",
            is_candidate=is_candidate,
            share=2500,
            met_at=timezone.now(),
            number=number,
            parts=parts,
        )
    Ramp.objects.filter(pk=ramp.pk).update(stage=1)
    ramp.refresh_from_db()
    made = ramp_moves.finish(ramp=ramp, actor=Actor(cast.approver), reason="fine", generation=ramp.generation)
    assert made.claims == {"unsafe": 0.2, "errors": 0.02, BUCKET: pytest.approx(0.1)}


def test_an_approver_sees_what_will_be_claimed_and_the_promotion_keeps_that_for_ever(
    build: Build, candidate: Candidate, cast: Cast, sign_in: SignIn
) -> None:
    claims_better(candidate)
    before(build, candidate, [{"own_score": 0.9}, *[{}] * 4])
    url = reverse("promotions:candidate", args=["acme", candidate.pk])
    words = "unsafe actions in at most 1%; server errors and timeouts in at most 2%; "
    client = sign_in(cast.approver)
    text = " ".join(page_of(client.get(url)).split())
    assert words in text
    assert "in at most 10% of the sessions." in text
    made = promote_anyway(candidate, cast)
    assert made.claims == {"unsafe": 0.01, "errors": 0.02, BUCKET: pytest.approx(0.1)}
    before(build, candidate, [{"own_score": 0.9}] * 9)
    assert "in at most 10% of the sessions." in " ".join(page_of(client.get(url)).split())
    with pytest.raises(IntegrityError, match="never change"), transaction.atomic():
        Promotion.objects.update(claims={})


def test_a_promotion_keeps_the_claims_of_the_suites_as_they_stood(
    guarded: Candidate, golden: Suite, cast: Cast
) -> None:
    ended(runs_of(golden, guarded.version))
    made = promote(
        candidate=guarded, actor=Actor(cast.approver), reason="ok", generation=Agent.objects.get().generation
    )
    assert made.claims == {"unsafe": 0.01, "errors": 0.02, BUCKET: 0.02}
