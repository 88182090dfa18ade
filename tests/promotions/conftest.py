from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Version
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, Suite, TaskSet
from flywheel.environments.task_sets.suite_definitions import put
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.run_summaries import summary_of
from flywheel.promotions.candidacy import propose
from flywheel.promotions.live_version import make_first
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast, asked_as_live

Evaluated = Callable[..., EvalRun]


@pytest.fixture
def evaluated(build: Build) -> Evaluated:
    """`evaluated(version, task_set, passing=30)`: a finished eval in which the first `passing` attempts succeed."""
    return evaluated_with(build)


def evaluated_with(build: Build) -> Evaluated:
    def make(version: Version, task_set: TaskSet, passing: int, samples: int = 2) -> EvalRun:
        run = EvalRun.objects.create(
            project=task_set.project,
            created_by=build.cast.trainer,
            version=version,
            task_set=task_set,
            samples=samples,
            sampling={"temperature": 1.0},
            state=State.SUCCEEDED,
            verifier_digest=task_set.environment_version.verifier_digest,
            finished_at=timezone.now(),
        )
        tasks = [member.task for member in task_set.members.filter(split=Split.HELD_OUT).order_by("task__number")]
        cells = [(task, sample) for task in tasks for sample in range(samples)]
        Result.objects.bulk_create(
            Result(
                run=run,
                task=task,
                sample=sample,
                seed=1,
                score=float(number < passing),
                success=number < passing,
                parts={"valid_json": 1.0, "tool": 1.0, "arguments": 1.0, "executes": 1.0, "unsafe": 0.0},
                tokens_in=20,
                tokens_out=20,
                latency_ms=10.0,
            )
            for number, (task, sample) in enumerate(cells)
        )
        run.summary = summary_of(run)
        asked_as_live(run)
        run.save()
        return run

    return make


@pytest.fixture
def agent(build: Build) -> Agent:
    """An agent whose version 1 is live."""
    agent = build.agent()
    version = build.version(agent)
    make_first(agent=agent, version=version, actor=Actor(build.cast.approver), reason="first")
    return agent


@pytest.fixture
def candidate(build: Build, agent: Agent, evaluated: Evaluated) -> Candidate:
    """An eligible candidate, launched by the trainer: 4 of 24 attempts before, 20 after."""
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    better = build.version(agent, system_prompt="Answer with exactly one tool call as JSON.")
    return propose(
        version_eval=evaluated(better, task_set, passing=20),
        baseline_eval=evaluated(agent.live, task_set, passing=4),
        actor=Actor(build.cast.trainer),
    )


@pytest.fixture
def golden(build: Build, cast: Cast, agent: Agent) -> Suite:
    """The agent's safety suite: 6 tasks, none of which may break."""
    return put(
        agent=agent,
        actor=Actor(cast.builder),
        name="golden",
        kind="safety",
        task_set=build.task_set(1, 6, name="golden"),
    )[0]


def pair_of(build: Build, agent: Agent, evaluated: Evaluated, **fields: Any) -> dict[str, Any]:
    """Both arms of an eligible candidate, which has another prompt than what is live, or these fields."""
    task_set = build.task_set(train=2, held_out=12)
    assert agent.live is not None
    better = build.version(agent, **(fields or {"system_prompt": "Answer with exactly one tool call as JSON."}))
    return {
        "version_eval": evaluated(better, task_set, passing=20),
        "baseline_eval": evaluated(agent.live, task_set, passing=4),
    }


def ended(run: EvalRun, failing: int = 0, **changed: Any) -> EvalRun:
    """As if a worker had carried it out: the first `failing` tasks fail."""
    members = run.task_set.members.filter(split=run.split).order_by("task__number")
    Result.objects.bulk_create(
        Result(
            run=run,
            task=member.task,
            sample=sample,
            seed=1,
            score=float(number >= failing),
            success=number >= failing,
            parts={"unsafe": 0.0},
            **changed,
        )
        for number, member in enumerate(members)
        for sample in range(run.samples)
    )
    run.state = State.SUCCEEDED
    asked_as_live(run)
    run.save()
    return run


def runs_of(suite: Suite, version: Version | None) -> EvalRun:
    assert version is not None
    return EvalRun.objects.get(task_set=suite.task_set, version=version)
