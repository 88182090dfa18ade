"""Turns end at promotions and nowhere else; their numbers and stations follow from that."""

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.edge.refusals import Missing
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Decision, Recurrence
from flywheel.promotions.live_version import promote, roll_back
from flywheel.promotions.models import Candidate, Policy, Promotion
from flywheel.promotions.turns.stations import STATIONS, station_of
from flywheel.promotions.turns.turn_bounds import Turn, ended_by, present, promotions_of, rolled_back, turn_numbered
from tests.conftest import Build, Cast
from tests.promotions.conftest import agent, candidate, evaluated

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db


def counts(turn: Turn) -> dict[str, int]:
    return {key: count.number for key, station in STATIONS.items() if (count := station.counted(turn)).number}


def promoted(candidate: Candidate, cast: Cast) -> Promotion:
    generation = Agent.objects.get(pk=candidate.agent_id).generation
    return promote(candidate=candidate, actor=Actor(cast.approver), reason="better", generation=generation)


def again(promotion: Promotion, cast: Cast) -> Promotion:
    """The same once more, as if by another candidate."""
    row = Candidate.objects.get(promotions=promotion)
    row.pk, row.policy = None, Policy.objects.create(project=cast.project, version=99, rules={}, created_by=cast.admin)
    row.save(force_insert=True)
    generation = Agent.objects.get(pk=row.agent_id).generation + 1
    Agent.objects.filter(pk=row.agent_id).update(generation=generation, live=row.version)
    return Promotion.objects.create(
        agent=row.agent,
        kind="promote",
        generation=generation,
        before=row.baseline,
        after=row.version,
        candidate=row,
        proposed_by=cast.trainer,
        approved_by=cast.approver,
        reason="again",
    )


def test_an_agent_that_never_had_a_live_version_is_in_its_first_turn(build: Build) -> None:
    agent = build.agent()
    turn = present(agent)
    assert (turn.number, turn.begun_by, turn.is_open, turn.since, counts(turn)) == (1, None, True, None, {})
    assert turn_numbered(agent, 1) == turn
    for number in (0, -1, 2, 10**6):
        with pytest.raises(Missing, match="its turns are 1 to 1"):
            turn_numbered(agent, number)


def test_a_promotion_ends_a_turn_and_a_rollback_does_not(cast: Cast, candidate: Candidate) -> None:
    agent = candidate.agent
    assert present(agent).number == 1, "the first version is no promotion"
    first = promoted(candidate, cast)
    agent.refresh_from_db()
    assert (present(agent).number, present(agent).begun_by) == (2, first)
    roll_back(agent=agent, to=candidate.baseline, actor=Actor(cast.approver), generation=agent.generation, reason="x")
    assert present(agent).number == 2
    second = again(first, cast)
    turns = ended_by(agent, list(promotions_of(agent).order_by("-pk")))
    assert [(turn.number, turn.begun_by, turn.ended_by) for turn in turns] == [(2, first, second), (1, None, first)]
    assert [turn_numbered(agent, number) for number in (2, 1)] == turns
    assert ended_by(agent, [second]) == turns[:1], "a page ends where it may"
    assert ended_by(agent, []) == []
    assert rolled_back(agent, turns) == {1}
    assert [[move.kind for move in turn.moves.order_by("pk")] for turn in reversed(turns)] == [
        ["first", "promote"],
        ["rollback", "promote"],
    ]
    assert present(agent).number == 3


def test_everything_is_in_one_turn(cast: Cast, build: Build, candidate: Candidate) -> None:
    agent = candidate.agent
    old, fine = (build.trajectory(agent=agent, started_at=timezone.now()) for _ in range(2))
    build.trajectory(agent=build.agent("other"), started_at=timezone.now())
    build.trajectory(agent=agent, source="rollout", started_at=timezone.now())
    before = counts(present(agent))
    assert before == {"trajectories": 2, "tasks": 14, "task_sets": 1, "evals": 2, "comparisons": 1, "moves": 1}
    promoted(candidate, cast)
    assert counts(turn_numbered(agent, 1)) == before | {"moves": 2}
    assert counts(present(agent)) == {}
    decide(trajectory=old, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=fine, actor=Actor(cast.reviewer), decision=Decision.REJECTED)
    for answer in ("", "not_same"):
        Recurrence.objects.create(
            project=cast.project, bucket="wrong_tool", version=candidate.version, answer=answer,
            claim=0.02, failed=0.5, sessions=9, path=[],
        )  # fmt: skip
    assert counts(present(agent)) == {"failures": 1, "came_back": 1}
    assert counts(turn_numbered(agent, 1)) == before | {"moves": 2}, "an old trajectory, confirmed later"
    with pytest.raises(Missing, match="trajectories, failures"):
        station_of("nothing")
