"""The overview names one next act: the one nearest to a better version that the viewer may do."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project, User
from flywheel.agents.models import Agent
from flywheel.edge.jobs import State
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Decision
from flywheel.promotions.models import Candidate
from flywheel.promotions.pages.wheel.overview import waiting_counts
from flywheel.promotions.pages.wheel.wheel_turn import Act, Stage, wheel_of
from flywheel.promotions.turns.turn_bounds import present
from flywheel.training.models import TrainingRun
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run
from tests.promotions.conftest import agent, candidate, evaluated

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db
EVERYTHING = frozenset(Permission)


def turn(project: Project, permissions: frozenset[str] = EVERYTHING) -> tuple[dict[str, Stage], Act]:
    counts = waiting_counts(project, User.objects.get(username="viewer"))
    agent = Agent.objects.filter(project=project).first()
    stages, act = wheel_of(project, present(agent) if agent else None, permissions, counts)
    return {stage.key: stage for stage in stages}, act


def test_an_idle_project_is_all_caught_up_and_shows_so(cast: Cast, build: Build) -> None:
    assert turn(cast.project)[0] == {}, "no agent, no turn"
    build.trajectory(agent=build.agent())
    stages, act = turn(cast.project)
    assert act.words == "All caught up"
    assert {key: stage.state for key, stage in stages.items()} == {
        "runs": "now",
        "failures": "todo",
        "tasks": "todo",
        "training": "todo",
        "candidates": "todo",
        "live": "todo",
    }
    assert (stages["runs"].count.number, stages["runs"].label) == (1, "run")
    assert stages["runs"].url.endswith("/turns/1/?station=trajectories")


def test_the_act_nearest_to_a_better_version_comes_first(cast: Cast, build: Build, candidate: Candidate) -> None:
    Candidate.objects.filter(pk=candidate.pk).update(state=Candidate.State.REJECTED)
    build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9)
    assert turn(cast.project)[1].words == "Review 1 proposed failure"
    run = training_run(build)
    assert turn(cast.project)[1].words == f"{run} is queued"
    TrainingRun.objects.filter(pk=run.pk).update(state=State.RUNNING)
    assert turn(cast.project)[1].words == f"{run} is training"
    Candidate.objects.filter(pk=candidate.pk).update(state=Candidate.State.WAITING)
    stages, act = turn(cast.project)
    assert act.words == f"Decide on {candidate.version}"
    assert (stages["candidates"].state, stages["training"].state) == ("now", "done")


def test_labelled_failures_become_tests_and_tests_are_learnt_from(cast: Cast, build: Build) -> None:
    decide(trajectory=build.trajectory(), actor=Actor(cast.reviewer), decision=Decision.ADDED, bucket="wrong_tool")
    assert turn(cast.project)[1].words == "Turn 1 failure into tests"
    assert turn(cast.project, frozenset({Permission.TRAIN}))[1].is_yours is False
    build.task(is_proved=True)
    assert turn(cast.project, frozenset({Permission.TRAIN}))[1].words == "Learn from 1 new task"


@pytest.mark.parametrize(
    ("may", "words", "who", "is_yours"),
    [
        (Permission.APPROVE, "Decide on assistant@2", "approvers", True),
        (Permission.REVIEW, "Review 1 proposed failure", "reviewers", True),
        (None, "Decide on assistant@2", "approvers", False),
    ],
)
def test_who_may_do_nothing_is_told_who_does(
    cast: Cast, build: Build, candidate: Candidate, may: Any, words: str, who: str, is_yours: bool
) -> None:
    build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9)
    act = turn(cast.project, frozenset({may} - {None}))[1]
    assert (act.words, act.who, act.is_yours) == (words, who, is_yours)


def test_the_ring_is_divided_equally(cast: Cast, build: Build) -> None:
    build.agent()
    begins = [stage.begin for stage in turn(cast.project)[0].values()]
    assert begins == list(range(3, 360, 60))
    assert Stage.arc == 54
