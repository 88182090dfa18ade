"""The demo's first story: what a visitor waits for, and what goes on where a start was ended."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Project
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import tooling
from flywheel.environments.models import Suite, TaskSet
from flywheel.failures.models import Failure
from flywheel.trajectories.models import Trajectory
from workers.jobs import eval_runs
from workers.jobs.detection import detect_waiting
from workers.programs import demo, story_playback
from workers.reference import story

pytestmark = pytest.mark.django_db(transaction=True)


class Policy:
    """Does what every third customer wants, and for the others what the one before wanted."""

    def __init__(self) -> None:
        asked = story.sessions(33, seed=story_playback.SEED)
        self.targets = {request.prompt: request.target for request in asked}
        self.answered = 0

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        answers = []
        for request in requests:
            targets = list(self.targets.values())
            place = list(self.targets).index(request.messages[-1].content)
            said = targets[place - (place % 3 > 0)]
            text = tooling.call_text(said["tool"], said["arguments"])
            answers.append(ChatResponse(text=text, finish_reason="stop", latency_ms=1.0))
        self.answered += len(requests)
        return answers

    def close(self) -> None:
        pass


def test_a_load_that_was_ended_goes_on_where_it_was(live_server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.objects.create(slug="demo", name="Demo", is_demo=True)
    policy, said, guard = Policy(), list[str](), story_playback.guard
    monkeypatch.setenv("FLYWHEEL_BIND", "127.0.0.1")
    monkeypatch.setenv("FLYWHEEL_PORT", str(urlsplit(live_server.url).port))
    monkeypatch.setattr(eval_runs, "open_version", lambda _: policy)
    monkeypatch.setattr(story_playback, "wait_for_detectors", lambda project: detect_waiting(project.pk))
    for name, customers in {"EARLIER": range(8), "LABELLED": range(8, 30), "THIS_WEEK": range(30, 33)}.items():
        monkeypatch.setattr(demo, name, customers)

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(story_playback, "guard", ended)
    with pytest.raises(KeyboardInterrupt):
        demo.load(project, said.append)
    sets, labels, came = TaskSet.objects.count(), Failure.objects.count(), Trajectory.objects.count()
    assert (sets, came) == (2, policy.answered)

    monkeypatch.setattr(story_playback, "guard", guard)
    demo.load(project, said.append)
    assert Suite.objects.filter(agent__project=project).count() == story_playback.SUITES
    assert Failure.objects.count() == labels, "nobody labels twice, nor this week's, which are the visitor's"
    assert TaskSet.objects.filter(name=story_playback.TASK_SET).count() == sets
    assert Trajectory.objects.count() == came
    few, many = TaskSet.objects.filter(name=story_playback.TASK_SET).order_by("version")
    assert 0 < few.members.count() < many.members.count()
    assert said[-1].endswith("proposals of this week wait for a reviewer")

    demo.load(project, said.append)
    assert policy.answered == came, "the third start has nothing to do"
