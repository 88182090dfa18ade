"""The agent's page: which eval stands beside each version."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.agents.pages.agents import _newest_evals
from flywheel.environments.task_sets.suite_definitions import put
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.promotions.conftest import Evaluated, agent, evaluated

__all__ = ["agent", "evaluated"]

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
INDEX = reverse("agents:index", args=["acme"])


def test_versions_are_shown_by_the_tasks_that_they_were_trained_for_and_not_by_what_guards_them(
    agent: Agent, build: Build, cast: Cast, evaluated: Evaluated
) -> None:
    """Every version runs the suites, and what they guard mostly succeeds: a better version would look no better."""
    first, second = agent.live, build.version(agent, system_prompt="Do.")
    assert first is not None
    tasks, guard = build.task_set(name="tasks", held_out=12), build.task_set(name="guard", held_out=12)
    put(agent=agent, actor=Actor(cast.builder), name="golden", kind="safety", task_set=guard)
    for version, passing in ((first, 2), (second, 9)):
        evaluated(version, tasks, passing=passing)
        evaluated(version, guard, passing=12)
    evaluated(first, guard, passing=11)
    assert {run.task_set for run in _newest_evals([agent]).values()} == {tasks}
    third = build.version(agent, system_prompt="Do it.")
    evaluated(third, guard, passing=10)
    assert _newest_evals([agent])[third.pk].task_set == guard, "where nothing else was measured"


def test_the_list_shows_how_the_live_version_does_and_how_versions_compare(
    agent: Agent, build: Build, cast: Cast, evaluated: Evaluated, sign_in: SignIn
) -> None:
    first, second = agent.live, build.version(agent, system_prompt="Do.")
    assert first is not None
    client = sign_in(cast.viewer)
    assert "not evaluated on held-out tasks yet" in page_of(client.get(INDEX))
    tasks = build.task_set(name="tasks", held_out=12)
    evaluated(first, tasks, passing=6)
    answer = client.get(INDEX)
    assert "25.0%" in page_of(answer)
    assert answer.context["charts"] == [], "one version is nothing to compare"
    evaluated(second, tasks, passing=18)
    answer = client.get(INDEX)
    assert "25.0%" in page_of(answer)
    assert [chart["title"] for chart in answer.context["charts"]] == [agent.name]
