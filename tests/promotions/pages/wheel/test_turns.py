"""The pages of turns: every number is a link to the list that it counts, and the draft is a button away."""

import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Agent
from flywheel.environments.models import Task, TaskSet
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Recurrence
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.promotions.conftest import agent, candidate, evaluated
from tests.promotions.turns.test_drafts import failed
from tests.promotions.turns.test_turn_bounds import promoted

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


def url(name: str, agent: Agent, *args: object) -> str:
    return reverse(f"promotions:{name}", args=["acme", agent.name, *args])


def test_every_number_leads_to_what_it_counts(cast: Cast, build: Build, candidate: Candidate, sign_in: SignIn) -> None:
    client, agent = sign_in(cast.viewer), candidate.agent
    build.trajectory(agent=agent)
    promoted(candidate, cast)
    page = page_of(client.get(url("turn", agent, 1)))
    assert "From the beginning" in page
    assert f"to {candidate.version}, promoted" in page
    assert 'hx-trigger="load"' in page
    counts = client.get(url("turn", agent, 1), headers={"HX-Request": "true"}).content.decode()
    links = re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)\s*<span>(\d+)</span>', counts)
    assert len(links) == 10
    for address, title, count in links:
        listed = page_of(client.get(address))
        assert listed.count("<tr data-href") == int(count), title
    listed = page_of(client.get(url("turns", agent)))
    assert "Turn 2, open" in listed
    assert url("turn", agent, 1) in listed
    assert "rolled back" not in listed
    assert url("turn", agent, 2) + "?station=trajectories" in page_of(
        client.get(reverse("overview:index", args=["acme"]))
    )
    assert client.get(url("turn", agent, 3)).status_code == 404
    assert client.get(url("turn", agent, 1), {"station": "x"}).status_code == 404


def test_the_next_task_set_is_drafted_and_frozen_by_two_buttons(cast: Cast, build: Build, sign_in: SignIn) -> None:
    agent, client = build.agent(), sign_in(cast.builder)
    assert "No environment for these failures" in page_of(client.get(url("draft", agent)))
    build.task_set(train=1, held_out=1)
    Recurrence.objects.create(
        project=cast.project, bucket="wrong_tool", version=build.version(agent),
        claim=0.02, failed=0.5, sessions=9, path=[],
    )  # fmt: skip
    for number in range(3):
        failed(cast, build, f"Person{number}")
    failed(cast, build, "Bare", bucket="wrong_tool", corrected=None)
    page = page_of(client.get(url("draft", agent)))
    assert "review its trajectories first" in page
    assert page.index("Meet Bare") < page.index("Meet Person2") < page.index("Meet Person0")
    assert "no corrected action" in page
    assert "Start the next turn" not in page_of(sign_in(cast.viewer).get(url("draft", agent)))
    for _ in range(2):
        client.post(url("start_turn", agent), {"environment": "mail"})
    assert Task.objects.exclude(failure=None).count() == 3
    Task.objects.update(is_proved=True)
    page = page_of(client.get(url("draft", agent), {"show": "taskless"}))
    assert "Meet Person0" not in page
    answer = client.post(url("freeze_draft", agent), {"environment": "mail", "name": "mail"})
    made = TaskSet.objects.order_by("-pk")[0]
    assert answer["Location"] == reverse("environments:task_set", args=["acme", "mail", made.version])
    assert "in a task set already" in page_of(client.get(url("draft", agent)))


def test_what_an_agent_wrote_is_shown_as_text(cast: Cast, build: Build, sign_in: SignIn) -> None:
    agent, client = build.agent(), sign_in(cast.viewer)
    build.environment()
    row = build.trajectory("x", agent=agent, title="<b>bold</b>")
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    for address in (url("draft", agent), url("turn", agent, 1) + "?station=trajectories"):
        page = client.get(address).content.decode()
        assert "&lt;b&gt;bold" in page
        assert "<b>bold" not in page
