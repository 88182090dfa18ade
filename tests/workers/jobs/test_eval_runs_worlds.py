"""A world of a team's own tools under an eval run, in the rows that train, and in exports that cannot have it."""

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.interop.environment_exports import CannotExport
from flywheel.core.traces import ToolCall
from flywheel.edge.jobs import State
from flywheel.environments.exchange.environment_packages import take
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.models import Environment, Split, Task, TaskSet
from flywheel.environments.pages.world_editor.world_forms import STARTER
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions.environment_versions import environment_version
from flywheel.evals import run_rescores
from flywheel.evals.models import Rescore
from flywheel.training.datasets import dataset_builder
from tests.conftest import Build, Cast
from tests.environments.shop import CANCELLED, OWN, shop, work
from tests.evals.fake import carry_out, submit
from workers.jobs.rescores import judge_again
from workers.judging import attempt_verdicts
from workers.worlds.world_sessions import Worlds

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("sandbox")]


def written(row: Environment, cast: Cast, count: int = 6) -> list[Task]:
    """Tasks that ask for the same in other words, some of them in each split, proved by a worker."""
    actor = Actor(cast.builder)
    for number in range(count):
        prompt = f"I am customer {number}. Cancel my order 1003, please."
        state = {"seed": number, "state": OWN}
        own_tasks.write(environment=row, actor=actor, prompt=prompt, state=state, target=CANCELLED)
    work()
    return list(row.tasks.order_by("number"))


@pytest.fixture
def task_set(cast: Cast, build: Build) -> TaskSet:
    row = shop(cast)
    row.agent = build.agent()
    row.save()
    assert all(task.is_proved for task in written(row, cast))
    assert set(row.tasks.values_list("split", flat=True)) == {Split.TRAIN, Split.HELD_OUT}
    return freeze(environment=row, name="shop", actor=Actor(cast.builder))


def cancels(request: ChatRequest) -> ChatResponse:
    """Cancel what is asked for, and say so."""
    if request.messages[-1].role == "tool":
        return ChatResponse(text="It is cancelled.", tokens_out=3)
    assert {tool["name"] for tool in request.tools} == {"find_orders", "get_order", "refund", "cancel"}
    return ChatResponse(tool_calls=(ToolCall("a", "cancel", {"order_id": "1003"}),), tokens_out=3)


def test_a_version_is_evaluated_in_a_world(task_set: TaskSet, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(build, task_set, samples=1)
    carry_out(run, monkeypatch, cancels)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", "reason")) == {(True, "the wanted state")}
    result = run.results.select_related("trajectory").first()
    assert result is not None
    assert result.trajectory is not None
    assert "Order 1003 is cancelled." in json.dumps([step.body for step in result.trajectory.steps.all()])


def test_a_run_is_judged_again_by_what_is_stored_of_it(
    task_set: TaskSet, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = ToolCall("b", "get_order", {"order_id": "1003"})
    first = ChatResponse(tool_calls=(looks, ToolCall("a", "cancel", {"order_id": "1003"})), tokens_out=3)
    run = submit(build, task_set, samples=1)
    carry_out(run, monkeypatch, lambda request: cancels(request) if request.messages[-1].role == "tool" else first)
    assert set(run.results.values_list("success", flat=True)) == {True}
    monkeypatch.setattr(attempt_verdicts, "RUNNERS", replace(attempt_verdicts.RUNNERS, world=Worlds()))
    parts = [{"type": "environment", "name": "effect"}, {"type": "state", "name": "left"}]
    version = environment_version(
        environment=task_set.environment_version.environment,
        actor=Actor(build.cast.builder),
        config=task_set.environment_version.config,
        verifier={"kind": "rubric", "parts": parts},
    )
    job, _ = run_rescores.submit(run=run, version=version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    lease = Rescore.claim(job.pk)
    assert lease is not None
    with lease:
        judge_again(lease)
    scores = set(job.scores.values_list("score", "reason"))
    assert {score for score, _ in scores} == {1.0}, scores


def test_one_that_only_says_so_fails(task_set: TaskSet, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(build, task_set, samples=1)
    carry_out(run, monkeypatch, lambda _: ChatResponse(text="It is cancelled.", tokens_out=3))
    assert set(run.results.values_list("success", flat=True)) == {False}


def test_a_world_that_raises_in_reset_proves_no_task_and_says_in_which_line(task_set: TaskSet, build: Build) -> None:
    broken = STARTER.replace("dice = random.Random(seed)", "dice = random.Random(seed) if seed > 10**6 else 1 / 0")
    row = task_set.environment_version.environment
    made = environment_version(
        environment=row, actor=Actor(build.cast.builder), config={"source": broken}, verifier={"kind": "world"}
    )
    work()
    assert not row.tasks.filter(is_proved=True).exists()
    check = row.tasks.all()[0].proof["checks"][0]
    assert check["reason"].startswith("its world: reset raised ZeroDivisionError: division by zero (line ")
    assert made.number == 2


def test_rows_that_train_have_what_the_world_answered(task_set: TaskSet, build: Build) -> None:
    version: Version = build.version(system_prompt="You are a clerk.")
    rows = dataset_builder.draft(kind="sft", task_set=task_set, version=version).rows
    train = task_set.members.filter(split=Split.TRAIN).count()
    assert len(rows) == 2 * train
    last: dict[str, Any] = next(row for row in rows if len(row["prompt"]) > 2)
    assert [message["role"] for message in last["prompt"]] == ["system", "user", "assistant", "tool"]
    assert last["prompt"][0]["content"] == "You are a clerk."
    assert last["prompt"][3]["content"] == "Order 1003 is cancelled."
    assert {tool["function"]["name"] for tool in last["tools"]} == {"find_orders", "get_order", "refund", "cancel"}


def test_an_export_cannot_carry_it_and_says_so(task_set: TaskSet, cast: Cast) -> None:
    with pytest.raises(CannotExport, match=r"shop@1 is judged by Python in the sandbox, which no export can carry"):
        take(task_set=task_set, format="verifiers", actor=Actor(cast.builder))


def test_tasks_are_imported_from_a_file(cast: Cast) -> None:
    row = shop(cast)
    lines = [
        json.dumps({"prompt": "Cancel 1003", "state": {"state": OWN}, "target": CANCELLED}).encode(),
        json.dumps({"prompt": "Look", "target": {"wanted": [{"type": "state"}]}}).encode(),
        json.dumps({"prompt": "Look", "answer": '[{"name": "get_order", "arguments": {"order_id": "1001"}}]'}).encode(),
        json.dumps({"prompt": "Look", "state": {"seed": "x"}, "target": CANCELLED}).encode(),
    ]
    report = import_tasks(environment=row, lines=lines, actor=Actor(cast.builder))
    work()
    assert [str(problem) for problem in report.problems] == [
        'line 2: wanted.0.paths: no condition on the state; give paths, a query, or "rest": "same"',
        "line 4: state.seed: x is no whole number from 0 to 2147483647",
    ]
    assert [(task.prompt, task.is_proved) for task in row.tasks.order_by("number")] == [
        ("Cancel 1003", True),
        ("Look", True),
    ]
