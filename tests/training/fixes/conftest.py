"""A bucket of corrected failures with train and held-out tasks, and a server that reacts to its prompt."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core import digests, verifiers
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message
from flywheel.environments.models import Environment, EnvironmentVersion, Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.submission import RunSettings
from flywheel.failures.models import Decision, Failure
from flywheel.promotions.live_version import make_first
from flywheel.training.fixes.trial_lifecycle import DraftContent, TrialRequest, start
from flywheel.training.models import FixTrial
from tests.conftest import SYSTEM, TOOLS, Build, Cast
from tests.evals.fake import FakeEngine, QuietLease, claim, right, wrong
from workers.jobs import eval_runs

BUCKET = "wrong_arguments"
SERVER = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "scripted"}
BETTER = f"{SYSTEM} Name the person."
WORSE = f"{SYSTEM} Never name the person."


def reacts(request: ChatRequest) -> ChatResponse:
    """Right where its prompt says how or shows it, for every other task where it says nothing, and wrong when told."""
    prompt, person = request.messages[0].content, request.messages[-1].content.split()[1]
    if "Never name" in prompt:
        return wrong(request)
    if "Name the person." in prompt or "<example>" in prompt:
        return right(request)
    return right(request) if int(person.removeprefix("Person")) % 2 else wrong(request)


@dataclass
class Desk:
    cast: Cast
    build: Build
    parent: Version
    task_set: TaskSet
    monkeypatch: pytest.MonkeyPatch
    asked: list[ChatRequest] = field(default_factory=list)

    def request(self, *drafts: DraftContent, **fields: Any) -> TrialRequest:
        defaults: dict[str, Any] = {
            "key": uuid.uuid4(),
            "bucket": BUCKET,
            "parent": self.parent,
            "task_set": self.task_set,
            "settings": RunSettings(samples=2),
        }
        return TrialRequest(drafts=drafts, **{**defaults, **fields})

    def start(self, *drafts: DraftContent, **fields: Any) -> FixTrial:
        trial, is_new = start(self.request(*drafts, **fields), Actor(self.cast.builder))
        assert is_new
        return trial

    def carry_out(self, answer: Callable[[ChatRequest], ChatResponse] = reacts) -> None:
        """Do what workers do with every eval that waits."""
        for run in EvalRun.objects.filter(state="queued").order_by("pk"):
            engine = FakeEngine(answer)
            self.monkeypatch.setattr(eval_runs, "open_version", lambda _, engine=engine: engine)
            claimed = claim(run)
            eval_runs.evaluate(QuietLease(claimed.job, claimed.fence, 0.0))
            self.asked += engine.asked

    def failure(self, bucket: str = BUCKET, **fields: Any) -> Failure:
        trajectory = fields.pop("trajectory", None) or self.build.trajectory(
            agent=self.parent.agent, version=self.parent
        )
        return Failure.objects.create(
            project=self.cast.project,
            trajectory=trajectory,
            decision=Decision.ADDED,
            bucket=bucket,
            labelled_by=self.cast.reviewer,
            **fields,
        )


@pytest.fixture
def desk(cast: Cast, build: Build, monkeypatch: pytest.MonkeyPatch) -> Desk:
    agent = build.agent()
    parent = build.version(agent, endpoint=SERVER)
    make_first(agent=agent, version=parent, actor=Actor(cast.approver), reason="first")
    task_set = build.task_set(train=12, held_out=24)
    task_set.tasks.filter(split=Split.TRAIN).update(bucket=BUCKET)
    return Desk(cast, build, parent, task_set, monkeypatch)


def draft(name: str, prompt: str | None = None, **descriptions: str) -> DraftContent:
    return DraftContent(name=name, system_prompt=prompt, descriptions=descriptions)


def begun(*said: str) -> dict[str, Any]:
    """The state of a task that begins in the middle of a run: what the user said, each time with an answer between."""
    messages = [Message("user", said[0])]
    for text in said[1:]:
        messages += [Message("assistant", "Shall I?"), Message("user", text)]
    return {"messages": [message.to_json() for message in messages], "replies": []}


@pytest.fixture
def episodes(desk: Desk) -> Desk:
    """The desk with a set whose tasks begin in the middle of a run and end in words that are anybody's."""
    environment = Environment.objects.create(
        project=desk.cast.project, name="runs", kind="episode", agent=desk.parent.agent
    )
    content: dict[str, Any] = {"config": {"tools": TOOLS}, "verifier": {"kind": "episode"}}
    EnvironmentVersion.objects.create(
        environment=environment,
        number=1,
        digest=digests.digest(content),
        verifier_digest=verifiers.digest(content["verifier"]),
        created_by=desk.cast.builder,
        **content,
    )
    desk.task_set = desk.build.task_set(train=6, held_out=6, name="runs", environment=environment)
    for task in desk.task_set.tasks.order_by("number"):
        task.prompt = "Yes, please" if task.split == Split.TRAIN else "Yes, do"
        task.state = begun(f"Please book the big room for Person{task.number}", task.prompt)
        task.target = {"wanted": [{"type": "calls", "calls": [task.target], "order": "given"}]}
        task.bucket = BUCKET
        task.save()
    return desk
