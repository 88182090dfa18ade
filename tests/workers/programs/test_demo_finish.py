"""The end of the demo's first chapter, which goes on while a visitor looks around."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, Project
from flywheel.agents.models import Agent, Version
from flywheel.edge.jobs import State
from flywheel.environments.models import TaskSet
from flywheel.evals.models import EvalRun
from flywheel.promotions.candidacy import propose
from flywheel.promotions.models import Candidate
from flywheel.training.models import Dataset, TrainingRun
from tests.conftest import Build
from tests.promotions.conftest import Evaluated, agent, evaluated
from workers.programs import demo, story_playback

__all__ = ["agent", "evaluated"]
pytestmark = pytest.mark.django_db


class Chapter:
    """Stands in for the worker, which measures and trains."""

    def __init__(self, build: Build, evaluated: Evaluated, agent: Agent) -> None:
        self.build, self.evaluated, self.agent = build, evaluated, agent
        assert agent.live is not None
        self.first = agent.live
        self.passing = 4
        """Attempts of 24 in which what was trained is right; before it was so in four."""
        self.measured: list[tuple[Version, TaskSet]] = []
        self.audited: list[tuple[Version, TaskSet]] = []
        self.launched: list[tuple[Version, TaskSet, str, dict[str, Any]]] = []

    def evaluate(self, version: Version, task_set: TaskSet, samples: int) -> EvalRun:
        self.measured.append((version, task_set))
        known = EvalRun.objects.filter(version=version, task_set=task_set, samples=samples).first()
        return known or self.evaluated(version, task_set, passing=4, samples=samples)

    def audit_reward(self, version: Version, task_set: TaskSet) -> None:
        self.audited.append((version, task_set))

    def start_training(self, version: Version, task_set: TaskSet, algorithm: str, chosen: dict[str, Any]) -> Any:
        self.launched.append((version, task_set, algorithm, chosen))
        project, trainer = task_set.project, self.build.cast.trainer
        dataset = Dataset.objects.create(
            project=project, name="tasks", version=1, kind=Dataset.Kind.TASKS, task_set=task_set, digest="d" * 64,
            rows=2, file="gone", created_by=trainer,
        )  # fmt: skip
        return TrainingRun.objects.create(
            project=project, created_by=trainer, base=version, dataset=dataset, task_set=task_set, algorithm=algorithm,
            tuning={"mode": "full"}, settings=chosen, spec_digest="s" * 64, state=State.SUCCEEDED,
        )  # fmt: skip

    def candidate_of(self, run: TrainingRun) -> Candidate:
        known = Candidate.objects.first()
        if known is not None:
            return known
        trained = self.build.version(self.agent, system_prompt="Answer with exactly one tool call as JSON.")
        return propose(
            version_eval=self.evaluated(trained, run.task_set, passing=self.passing),
            baseline_eval=EvalRun.objects.get(version=self.first, task_set=run.task_set),
            actor=Actor(self.build.cast.trainer),
        )


@pytest.fixture
def sets(build: Build, agent: Agent) -> list[TaskSet]:
    environment = build.environment(agent=agent)
    return [build.task_set(2, held_out, story_playback.TASK_SET, environment) for held_out in (12, 24)]


@pytest.fixture
def chapter(build: Build, evaluated: Evaluated, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Chapter:
    made = Chapter(build, evaluated, agent)
    for name in ("evaluate", "audit_reward", "start_training", "candidate_of"):
        monkeypatch.setattr(story_playback, name, getattr(made, name))
    return made


@pytest.fixture
def project(build: Build) -> Project:
    return build.cast.project


def test_what_few_failures_have_taught_is_refused_and_both_sets_are_measured(
    project: Project, chapter: Chapter, sets: list[TaskSet]
) -> None:
    said: list[str] = []
    few, many = sets
    demo.finish(project, said.append)
    assert chapter.launched == [(chapter.first, few, "sft", {})]
    assert chapter.measured == chapter.audited == [(chapter.first, few), (chapter.first, many)]
    candidate = Candidate.objects.get()
    assert candidate.state == Candidate.State.REJECTED
    rejected = AuditEntry.objects.get(action="promotions.reject")
    assert rejected.reason == f"not shown to be better: {few} has too few failures to learn from; label more first"
    assert said[0] == f"{chapter.first} succeeds at 17% of {few}"
    assert said[-1].endswith(f"learned from {few}; the gate said {candidate.get_verdict_display()}")

    demo.finish(project, said.append)  # a start that was ended after that
    assert (len(chapter.launched), TrainingRun.objects.count(), Candidate.objects.count()) == (1, 1, 1)


def test_a_candidate_that_the_gate_lets_through_is_left_to_a_person(
    project: Project, chapter: Chapter, sets: list[TaskSet]
) -> None:
    chapter.passing = 22
    demo.finish(project, lambda _: None)
    candidate = Candidate.objects.get()
    assert (candidate.verdict, candidate.state) == ("eligible", "waiting")
