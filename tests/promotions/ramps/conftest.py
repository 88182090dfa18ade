"""A running ramp, and sessions that met it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import SplitUnit
from flywheel.agents.splits import open_splits
from flywheel.core.evidence.ramp.ramp_plan import Holdback, Plan, Stage
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_judging, ramp_moves, ramp_units
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.models import Step
from tests.conftest import Build, Cast

HELD = Plan(stages=(Stage(5000, 1, 0),), quiet_s=60, finish="person", holdback=Holdback(500, 1, 0))
PLAN = Plan(stages=(Stage(2500, 10, 0), Stage(5000, 10, 0)), quiet_s=60, wait_s=3600)
Met = Callable[..., SplitUnit]


def begun(candidate: Candidate, cast: Cast) -> Ramp:
    """As an approver has begun it."""
    return ramp_moves.begin(
        candidate=candidate,
        plan=PLAN,
        actor=Actor(cast.approver),
        reason="by steps",
        generation=candidate.agent.generation,
    )


@pytest.fixture
def ramp(candidate: Candidate, cast: Cast) -> Ramp:
    """As the judge has begun it."""
    made = begun(candidate, cast)
    ramp_judging.look()
    return Ramp.objects.get(pk=made.pk)


@pytest.fixture
def held(candidate: Candidate, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Ramp:
    """A ramp whose candidate went live for all but 5% of the sessions."""
    monkeypatch.setattr(open_splits, "LEASE_S", 600.0)
    monkeypatch.setattr(ramp_moves, "LEASE_S", 600.0)
    actor = Actor(cast.approver)
    ramp = ramp_moves.begin(
        candidate=candidate, plan=HELD, actor=actor, reason="by steps", generation=candidate.agent.generation
    )
    ramp_moves.start(ramp=ramp)
    ramp_moves.finish(ramp=ramp, actor=actor, reason="it is fine", generation=ramp.generation)
    return Ramp.objects.select_related("split__agent").get(pk=ramp.pk)


@pytest.fixture
def met(build: Build, ramp: Ramp) -> Met:
    """`met(True, failed=…)`: a session in the candidate's arm that is over and has one trajectory."""
    return met_in(build, ramp)


def met_in(build: Build, ramp: Ramp) -> Met:
    def make(
        is_candidate: bool,
        *,
        outcome: str | None = "success",
        ago: float = 120.0,
        overrides: Sequence[Sequence[str]] = (),
        **fields: Any,
    ) -> SplitUnit:
        """`overrides` has for each of the first calls what it says otherwise than the version."""
        number = next(build.numbers)
        split = ramp.split
        split.refresh_from_db()
        at = timezone.now() - timedelta(seconds=ago)
        unit = SplitUnit.objects.create(
            split=split,
            kind="session",
            name=f"session {number}",
            is_candidate=is_candidate,
            share=split.share,
            met_at=at,
        )
        calls = fields.pop("answered_by", [ramp_units.answerer(split, is_candidate=is_candidate)])
        status, error = fields.pop("status", "ok"), fields.pop("error", "")
        row = build.trajectory(
            session_id=unit.name,
            agent=ramp.agent,
            outcome=outcome,
            **{"changed_at": at, "detected_at": at, "started_at": at} | fields,
        )
        if overrides:
            names = {f"gateway.overrides={' '.join(each)}" for each in overrides}
            row.attributes = sent_attributes.merged([], names)
            row.save(update_fields=["attributes"])
        for position, name in enumerate(calls, 10):
            said = overrides[position - 10 : position - 9]
            Step.objects.create(
                trajectory=row,
                span_id=f"c{position}",
                position=position,
                kind="assistant",
                started_at=at,
                ended_at=at + timedelta(seconds=2),
                status=status,
                error=error,
                answered_by=name,
                body={"raw": {"gateway": {"overrides": said[0]}}} if said else {},
            )
        return unit

    return make
