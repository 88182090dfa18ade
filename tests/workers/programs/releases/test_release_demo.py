"""The demo's project of releases: two ramps that the judge ends, a third that a visitor may harm, and who goes on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flywheel.accounts.models import ApiKey, Project
from flywheel.agents.models import Agent, Version
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import self_tests
from flywheel.system import demo_switch
from tests.conftest import Build
from tests.promotions.conftest import Evaluated, agent, candidate, evaluated
from tests.promotions.ramps.conftest import ramp
from tests.workers.programs.releases.conftest import Customers
from workers.programs import story_playback
from workers.programs.releases import harmable_server, release_demo
from workers.programs.story_playback import StoryFailed
from workers.reference import gateway_customers
from workers.reference.gateway_customers import Unanswered

__all__ = ["agent", "candidate", "evaluated", "ramp"]
pytestmark = pytest.mark.django_db
ENDPOINT = "http://here"


@pytest.fixture
def project(build: Build, evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One whose versions need no weights' server: an eval ends at once, and one of three attempts is right."""

    def evaluate(version: Version, task_set: TaskSet, samples: int) -> EvalRun:
        known = EvalRun.objects.filter(version=version, task_set=task_set, samples=samples).first()
        return known or evaluated(version, task_set, passing=5, samples=samples)

    monkeypatch.setattr(story_playback, "evaluate", evaluate)
    monkeypatch.setattr(self_tests, "is_awaited", lambda _: False)
    return build.cast.project


@pytest.fixture
def measured(project: Project, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first version has answered its customers, and tasks are made of what it got wrong."""

    def send_traffic(project: Project, agent: Agent, endpoint: str, customers: range, **_: Any) -> int:
        assert (endpoint, customers) == (ENDPOINT, release_demo.FIRST)
        return 0

    def make_tasks(project: Project) -> TaskSet:
        environment = build.environment(story_playback.ENVIRONMENT, project.agents.get())
        return build.task_set(train=2, held_out=8, environment=environment)

    monkeypatch.setattr(story_playback, "send_traffic", send_traffic)
    monkeypatch.setattr(story_playback, "make_tasks", make_tasks)


@pytest.fixture
def switch() -> Iterator[Callable[..., None]]:
    yield demo_switch.turn
    demo_switch.turn(on=False)


def fails(version: Version) -> float:
    """Hotter is worse."""
    return {release_demo.COOL: 0.1, release_demo.HOT: 0.7}.get(version.sampling["temperature"], 0.9)


def ramps() -> list[tuple[float, str]]:
    rows = Ramp.objects.order_by("pk").select_related("candidate__version")
    return [(row.candidate.version.sampling["temperature"], row.state) for row in rows]


@pytest.mark.usefixtures("measured")
def test_two_ramps_are_played_to_their_ends_and_a_third_begins_each_once(
    project: Project, customers: Customers
) -> None:
    said: list[str] = []
    customers.fails = fails
    cool = release_demo.load(project, ENDPOINT, said.append)
    assert ramps() == [(release_demo.COOL, "finished"), (release_demo.WILD, "taken_back")]
    assert project.agents.get().live == cool
    assert [line.rpartition(" is ")[2] for line in said] == ["finished", "taken back"]

    came = len(customers.came)
    assert release_demo.load(project, ENDPOINT, said.append) == cool
    assert (len(ramps()), len(customers.came)) == (2, came), "a start after that plays nothing again"

    for _ in range(2):
        release_demo.begin_last(project, cool, said.append)
    last = Ramp.objects.latest("pk")
    assert len(ramps()) == 3
    assert last.is_open
    assert (last.rules.finish, [stage.share for stage in last.rules.stages]) == ("person", [5000])
    endpoint = last.candidate.version.endpoint
    assert (endpoint["kind"], endpoint["model"]) == ("openai", harmable_server.MODEL)
    assert said[-1].endswith("is under way")
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_customers_come_while_a_ramp_is_open_and_more_of_them_while_it_is_harmed(
    project: Project, ramp: Ramp, monkeypatch: pytest.MonkeyPatch, switch: Callable[..., None]
) -> None:
    asked: list[dict[str, Any]] = []

    def come(application: Any, sessions: Any, *, is_over: Callable[[], bool], **how: Any) -> None:
        asked.append({"first": next(sessions)[0].session_id, **how})
        assert not is_over()
        switch(on=not demo_switch.is_on())
        assert is_over(), "they begin anew at the other pace"
        switch(on=not demo_switch.is_on())

    monkeypatch.setattr(gateway_customers, "come", come)
    release_demo.serve(project, ENDPOINT)
    switch(on=True)
    release_demo.serve(project, ENDPOINT)
    assert [row["pause_s"] for row in asked] == [release_demo.PAUSE_S, release_demo.HARMED_PAUSE_S]
    assert {row["first"] for row in asked} == {f"c20-{release_demo.FIRST.stop + project.trajectories.count():04}"}
    Ramp.objects.filter(pk=ramp.pk).update(state=Ramp.State.STOPPED)
    release_demo.serve(project, ENDPOINT)
    assert len(asked) == 2, "nobody comes where nothing is let out"
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_the_program_goes_on_where_a_story_or_a_customer_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Project.objects.create(slug=demo_switch.PROJECT, name="Releases")
    served: list[str] = []

    def fails_to_load(*_: object) -> None:
        raise StoryFailed("the first ramp did not end")

    def serve(project: Project, endpoint: str) -> None:
        served.append(endpoint)
        raise Unanswered("the gateway is away")

    def rest(_: float) -> None:
        if len(served) == 2:
            raise SystemExit

    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(release_demo, "FIRST_STORY_S", 0.0)
    monkeypatch.setattr(release_demo, "load", fails_to_load)
    monkeypatch.setattr(release_demo, "serve", serve)
    monkeypatch.setattr(time, "sleep", rest)
    with pytest.raises(SystemExit):
        release_demo.main()
    said = capsys.readouterr().err
    assert "the first ramp did not end" in said
    assert said.count("no customer was answered: the gateway is away") == 2
