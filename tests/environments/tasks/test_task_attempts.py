"""Rollouts of exported tasks come back knowing what must not be learnt from them, and what never happened."""

import json
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.core import envs
from flywheel.core.interop import gym_server
from flywheel.core.interop.bundle import identity
from flywheel.core.traces import tooling
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split, Task
from flywheel.environments.tasks.recorded_tasks import task_from
from flywheel.environments.tasks.task_attempts import Attempt, attempt_of
from flywheel.environments.tasks.task_rows import core_task
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.formats.files.file_formats import parse_jsonl
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}
WRONG = tooling.call_text("calendar.create_event", {"person": "Bako", "day": "monday"})
SAID = {"role": "assistant", "content": WRONG}


def row_of(format: str, task: Task) -> dict[str, Any]:
    """A rollout of the task as that tool writes it, of what our export had it know."""
    environment, version = task.environment, task.environment.latest
    pure = core_task(task)
    about = identity(pure, f"{environment.name}@{version.number}", task.split)
    prompt = [{"role": "user", "content": task.prompt}]
    if format == "nemo_gym":
        env = envs.build(environment.kind, version.config, version.verifier)
        (line,) = gym_server.lines(env, iter([(task.split, pure)]), environment=f"{environment.name}@1", agent="agent")
        output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": WRONG}]}
        return {**json.loads(line), "response": {"output": [output]}, "reward": 0.0}
    if format == "classic":
        about["flywheel_task"] = about.pop("task")
        return {"prompt": prompt, "completion": [SAID], "reward": 0.0, "example_id": 1, "info": about}
    nodes = [{"message": prompt[0], "parent": None}, {"message": SAID, "parent": 0, "sampled": True}]
    data = {"id": pure.id, "name": pure.id, "cluster": task.cluster, **about}
    return {"id": "e", "task": {"key": pure.id}, "traces": [{"id": "t", "task": {"data": data}, "nodes": nodes}]}


def imported(build: Build, format: str, task: Task) -> Trajectory:
    (parsed,) = parse_jsonl([json.dumps(row_of(format, task)).encode()])
    assert parsed.trace, parsed.error
    metadata = {**parsed.trace.metadata, "state": {"people": ["Bako"]}}
    return build.trajectory(task.prompt, WRONG, source=Source.IMPORT, metadata=metadata)


def made_of(cast: Cast, build: Build, source: Trajectory) -> Task:
    failure = decide(trajectory=source, actor=Actor(cast.reviewer), bucket="wrong_arguments", corrected=RIGHT)
    return task_from(failure=failure, environment=build.environment(), actor=Actor(cast.builder))[0]


@pytest.mark.parametrize("split", [Split.HELD_OUT, Split.SEALED])
@pytest.mark.parametrize("format", ["nemo_gym", "verifiers", "classic"])
def test_an_attempt_at_what_is_not_trained_on_is_refused_when_it_comes_back(
    build: Build, cast: Cast, format: str, split: Split
) -> None:
    source = imported(build, format, build.task(split))
    with pytest.raises(Refused, match="an attempt at a task that is not trained on"):
        made_of(cast, build, source)


@pytest.mark.parametrize("format", ["nemo_gym", "verifiers", "classic"])
@pytest.mark.parametrize("is_synthetic", [True, False])
def test_an_attempt_at_a_synthetic_task_is_synthetic_when_it_comes_back(
    build: Build, cast: Cast, format: str, is_synthetic: bool
) -> None:
    source = imported(build, format, build.task(Split.TRAIN, prompt="Meet Bako", is_synthetic=is_synthetic))
    assert made_of(cast, build, source).is_synthetic is is_synthetic


@pytest.mark.parametrize(
    ("about", "is_measured", "is_synthetic"),
    [
        ({"environment": "mail@1", "task": "t-2", "split": "train"}, True, False),  # it is held out here
        ({"environment": "mail@1", "task": "t-1", "split": "train", "synthetic": False}, False, True),
        ({"environment": "elsewhere@4", "task": "t-2", "split": "held_out"}, True, False),
        ({"split": "validation"}, True, False),
        ({"synthetic": True}, False, True),
        ({"synthetic": "no", "split": ["held_out"], "task": {"t-2": 1}, "environment": 5}, True, False),
        ({"environment": "mail@1", "task": "t-999999999999999999999"}, False, False),
        ("held_out", False, False),
    ],
)
def test_what_a_sender_says_of_it_can_only_keep_things_out(
    build: Build, about: Any, is_measured: bool, is_synthetic: bool
) -> None:
    build.task(Split.TRAIN, is_synthetic=True)
    build.task(Split.HELD_OUT)
    source = build.trajectory(source=Source.IMPORT, metadata={"info": about})
    assert attempt_of(source) == Attempt(is_measured, is_synthetic)


def test_whatever_is_said_of_it_a_rollout_of_nobody_knows_what_is_refused(build: Build) -> None:
    about = {"info": {"environment": "mail@1", "task": str(build.task(Split.TRAIN)), "split": "train"}}
    assert attempt_of(build.trajectory(source=Source.ROLLOUT, metadata=about)).is_measured


def test_what_an_agent_did_in_use_is_no_attempt_at_a_task(build: Build, django_assert_num_queries: Any) -> None:
    source = build.trajectory(metadata={"state": {}})
    with django_assert_num_queries(1):
        assert attempt_of(source) == Attempt()
