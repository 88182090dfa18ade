"""The demo's customers come again after each move of what is live, each of them once."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.agents.models import Agent
from flywheel.promotions.live_version import make_first
from tests.conftest import Build, Cast
from workers.programs import story_playback
from workers.programs.demo import THIS_WEEK
from workers.programs.releases import demo_customers
from workers.reference import story, traffic
from workers.reference.gateway_customers import Application

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent(build: Build, cast: Cast) -> Agent:
    agent = build.agent()
    make_first(agent=agent, version=build.version(agent), actor=Actor(cast.approver), reason="first")
    return Agent.objects.select_related("live").get(pk=agent.pk)


def test_new_customers_call_what_is_live_until_another_goes_live(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[str] = []

    def served(self: Application, requests: Sequence[story.Request]) -> None:
        key = ApiKey.find(self._headers["Authorization"].removeprefix("Bearer "))
        assert key is not None
        assert key.scopes == ["gateway", "ingest"]
        came.append(requests[0].session_id)
        if len(came) == 3:
            Agent.objects.filter(pk=agent.pk).update(generation=agent.generation + 1)

    def one_by_one(customers: Application, sessions: Any, *, is_over: Callable[[], bool], **_: Any) -> None:
        for requests in sessions:
            if is_over():
                return
            customers.serve(requests)

    monkeypatch.setattr(Application, "serve", served)
    monkeypatch.setattr(demo_customers, "come", one_by_one)
    demo_customers.answer(agent, "http://here", 2)
    assert came == ["c20-0240", "c20-0241"]
    demo_customers.answer(agent, "http://here", 5)
    assert len(came) == 3
    demo_customers.answer(Agent.objects.get(pk=agent.pk), "http://here")  # without a ramp nobody comes for one
    assert len(came) == 3
    assert not ApiKey.objects.filter(revoked_at=None).exists()


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
    no_engine: Any = None
    now, told = timezone.now(), []
    for customers in (range(2), range(4), range(4)):  # ended in its middle, told again, and once more
        told.append(
            story_playback.answer_customers(
                agent.project, agent.live, no_engine, "http://here", customers, begin=now, end=now
            )
        )
    assert sent == [f"c20-{number:04}" for number in range(4)]
    assert told[2] == 0
