"""The demo's next scene follows from what its visitors have done, and from nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.agents.models import Agent
from flywheel.edge.jobs import State
from flywheel.evals.models import RewardAudit
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Decision
from flywheel.promotions.models import Candidate
from flywheel.server.pages.demo_scenes import REVIEWED, SETS, Scene, scene_of
from flywheel.training.models import TrainingRun
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run
from tests.promotions.conftest import agent, candidate, evaluated

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def label(build: Build) -> Callable[[User], None]:
    """`label(user)`: that user's decision about a trajectory of its own."""

    def decided(user: User) -> None:
        decide(trajectory=build.trajectory(), actor=Actor(user), decision=Decision.ADDED, bucket="wrong_tool")

    return decided


@pytest.fixture
def measured(cast: Cast, build: Build, candidate: Candidate) -> None:
    """The story's own run is over, and both of its task sets are audited."""
    run = training_run(build)
    TrainingRun.objects.filter(pk=run.pk).update(created_by=cast.admin, state=State.FAILED, finished_at=timezone.now())
    for _ in range(SETS):
        RewardAudit.objects.create(
            project=cast.project,
            run=candidate.baseline_eval,
            seed=1,
            created_by=cast.admin,
            is_green=True,
            finished_at=timezone.now(),
        )


@pytest.fixture
def demo(cast: Cast) -> Project:
    """The cast's project as the demo: its reviewer, trainer and approver are named as the demo's accounts are."""
    Project.objects.filter(pk=cast.project.pk).update(slug="demo", is_demo=True)
    cast.project.refresh_from_db()
    return cast.project


def at(project: Project) -> Scene:
    scene = scene_of(project)
    assert scene is not None
    return scene


def test_no_other_project_has_scenes(cast: Cast) -> None:
    assert scene_of(cast.project) is None


def test_a_few_reviews_are_asked_for_and_those_of_others_do_not_count(
    demo: Project, build: Build, cast: Cast, label: Callable[..., Any]
) -> None:
    scene = at(demo)
    assert (scene.number, scene.username) == (1, "reviewer")
    assert f"Review {REVIEWED} failures" in scene.words
    label(cast.admin)
    assert f"Review {REVIEWED} failures" in at(demo).words
    for _ in range(REVIEWED - 1):
        label(cast.reviewer)
    assert "Review 1 failure:" in at(demo).words
    label(cast.reviewer)
    assert (at(demo).number, at(demo).username) == (2, "trainer")


def test_the_form_waits_for_the_earlier_run_and_the_baselines(
    demo: Project, cast: Cast, label: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    for _ in range(REVIEWED):
        label(cast.reviewer)
    assert (at(demo).act, at(demo).url, at(demo).is_passing) == ("Watch", "/p/demo/training/", True)
    request.getfixturevalue("measured")
    assert (at(demo).number, at(demo).act, at(demo).is_passing) == (2, "Open the form", False)


def test_a_run_is_watched_and_its_candidate_decided_and_production_looked_at(
    demo: Project, build: Build, candidate: Candidate
) -> None:
    run = training_run(build)
    assert at(demo).number == 3
    assert f"/training/runs/{run.pk}/" in at(demo).url
    Candidate.objects.filter(pk=candidate.pk).update(run=run)
    assert (at(demo).number, at(demo).username) == (4, "approver")
    assert f"/candidates/{candidate.pk}/" in at(demo).url
    Candidate.objects.filter(pk=candidate.pk).update(state=Candidate.State.REJECTED)
    assert (at(demo).number, "was not promoted" in at(demo).words) == (2, True)
    Candidate.objects.filter(pk=candidate.pk).update(state=Candidate.State.PROMOTED)
    Agent.objects.filter(pk=candidate.agent_id).update(live=candidate.version)
    assert (at(demo).number, at(demo).url) == (5, "/p/demo/")
    assert at(demo).words.startswith(f"{candidate.version} is live")
    Agent.objects.filter(pk=candidate.agent_id).update(live=candidate.baseline)
    assert at(demo).words.startswith(f"{candidate.baseline} answers again")


def test_a_run_that_ended_without_a_version_is_begun_again(demo: Project, build: Build) -> None:
    run = training_run(build)
    TrainingRun.objects.filter(pk=run.pk).update(state=State.FAILED, finished_at=timezone.now())
    assert (at(demo).number, f"{run} ended without a new version" in at(demo).words) == (2, True)
    training_run(build)
    assert at(demo).number == 3
