"""A bucket is fixed while a version is live that does better on its tasks, by the numbers."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.core.digests import digest
from flywheel.environments.models import Task
from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.buckets.bucket_lifecycle import State
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import promote, roll_back
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated

pytestmark = pytest.mark.django_db


@pytest.fixture
def better(build: Build, agent: Agent, evaluated: Evaluated) -> Candidate:
    """Of 24 held-out tasks of one bucket: 8 of 48 attempts passed before, 44 after."""
    task_set = build.task_set(train=2, held_out=24)
    Task.objects.update(bucket="wrong_tool")
    assert agent.live is not None
    version = build.version(agent, system_prompt="Answer with exactly one tool call as JSON.")
    return propose(
        version_eval=evaluated(version, task_set, passing=44),
        baseline_eval=evaluated(agent.live, task_set, passing=8),
        actor=Actor(build.cast.trainer),
    )


def test_a_promoted_version_that_does_better_fixes_it_until_it_is_rolled_back(
    cast: Cast, agent: Agent, better: Candidate, sign_in: Callable[[User], Client]
) -> None:
    before = agent.live
    assert before is not None
    assert bucket_lifecycle.of(cast.project, "wrong_tool").state == State.FIXING
    page = sign_in(cast.viewer).get("/p/acme/failures/buckets/wrong_tool/").content.decode()
    assert f"candidate {better.pk}" in page
    agent.refresh_from_db()
    promote(candidate=better, actor=Actor(cast.approver), reason="better", generation=agent.generation)
    found = bucket_lifecycle.of(cast.project, "wrong_tool")
    assert (found.state, found.fixes[0].verdict, found.fixes[0].version) == (State.FIXED, "better", better.version)
    page = sign_in(cast.viewer).get("/p/acme/failures/buckets/wrong_tool/").content.decode()
    assert "went live" in page
    assert f"{better.version} live" in page
    agent.refresh_from_db()
    roll_back(agent=agent, to=before, actor=Actor(cast.approver), reason="slow", generation=agent.generation)
    found = bucket_lifecycle.of(cast.project, "wrong_tool")
    assert (found.state, found.fixes[0].stands) == (State.FIXING, False)
    page = sign_in(cast.viewer).get("/p/acme/failures/buckets/wrong_tool/").content.decode()
    assert "was live and was rolled back" in page


def test_a_version_that_is_not_shown_to_be_better_does_not(
    cast: Cast, build: Build, agent: Agent, candidate: Candidate
) -> None:
    Task.objects.update(bucket="wrong_tool")  # 12 tasks are too few to tell
    candidate.report["comparison"]["slices"][0]["name"] = "wrong_tool"
    candidate.report_digest = digest(candidate.report)
    candidate.save()
    agent.refresh_from_db()
    promote(candidate=candidate, actor=Actor(cast.approver), reason="better", generation=agent.generation)
    found = bucket_lifecycle.of(cast.project, "wrong_tool")
    assert (found.state, found.fixes[0].verdict) == (State.FIXING, "too few to tell")
