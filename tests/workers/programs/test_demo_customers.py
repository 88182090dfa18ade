"""The demo's customers come again after each move of what is live, each of them once."""

from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.promotions.live_version import make_first
from tests.conftest import Build, Cast
from workers.jobs import eval_runs
from workers.programs import demo_customers, story_playback
from workers.programs.demo import THIS_WEEK
from workers.reference import traffic

pytestmark = pytest.mark.django_db


class Shut:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def agent(build: Build, cast: Cast) -> Agent:
    agent = build.agent()
    make_first(agent=agent, version=build.version(agent), actor=Actor(cast.approver), reason="first")
    return Agent.objects.select_related("live").get(pk=agent.pk)


def test_new_customers_are_answered_by_the_live_version_until_another_goes_live(
    agent: Agent, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, came = Shut(), []

    def answered(project: Any, version: Any, opened: Any, endpoint: str, customers: range, **_: Any) -> int:
        assert (version, opened, endpoint) == (agent.live, engine, "http://here")
        came.append(customers)
        if len(came) == 2:
            Agent.objects.filter(pk=agent.pk).update(generation=agent.generation + 1)
        return 3

    monkeypatch.setattr(eval_runs, "open_version", lambda _: engine)
    monkeypatch.setattr(story_playback, "answer_customers", answered)
    monkeypatch.setattr(demo_customers, "PAUSE_S", 0.0)
    demo_customers.answer(agent.project, agent, "http://here")
    first = THIS_WEEK.stop
    assert came == [range(first, first + 2), range(first + 2, first + 4)]
    assert engine.is_closed


def test_who_came_already_does_not_come_again(agent: Agent, build: Build) -> None:
    assert demo_customers.first_new(agent.project) == THIS_WEEK.stop
    build.trajectory(session_id="c20-0251")
    build.trajectory(session_id="somebody")
    assert demo_customers.first_new(agent.project) == 252


def test_a_story_that_is_told_again_sends_no_customer_twice(
    agent: Agent, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def send(endpoint: str, key: str, requests: list[Any], rollouts: list[Any], **_: Any) -> None:
        assert len(requests) == len(rollouts)
        for request in requests:
            build.trajectory(session_id=request.session_id)
        sent.extend(sorted({request.session_id for request in requests}))

    monkeypatch.setattr(story_playback, "_answers", lambda _: True)
    monkeypatch.setattr(traffic, "answer", lambda _, requests: [None for _ in requests])
    monkeypatch.setattr(traffic, "send", send)
    assert agent.live is not None
    shut: Any = Shut()
    now, told = timezone.now(), []
    for customers in (range(2), range(4), range(4)):  # ended in its middle, told again, and once more
        told.append(
            story_playback.answer_customers(
                agent.project, agent.live, shut, "http://here", customers, begin=now, end=now
            )
        )
    assert sent == [f"c20-{number:04}" for number in range(4)]
    assert told[2] == 0
