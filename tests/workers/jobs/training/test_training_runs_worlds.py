"""Worlds of a team's own are trained on: from the environment over its tasks and their rows to a finished run and its
eval, with a real trainer."""

import json
from statistics import mean
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.evals.models import EvalRun
from flywheel.training.datasets.dataset_builder import open_rows
from flywheel.training.models import Point, TrainingRun
from flywheel.trajectories.models import Source
from tests.conftest import Build, Cast
from tests.environments.shop import work
from tests.evals import fake
from tests.shop_server import TOOLS, serve_shop
from tests.workers.conftest import sandbox
from tests.workers.jobs.training.test_training_runs import Launch, carry_out, launched, steps_of, version

__all__ = ["launched", "sandbox"]

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = 2
CANCELLED: dict[str, Any] = {
    "wanted": [{"type": "state", "paths": {"/orders/1003/status": "cancelled"}, "rest": "same"}],
    "solution": [{"tool": "cancel", "arguments": {"order_id": "1003"}}],
}
SOURCE = '''
def reset(seed: int) -> dict:
    return {"orders": {"1003": {"status": "open"}}}

def cancel(state: dict, order_id: str) -> str:
    """Cancel an order."""
    state["orders"][order_id]["status"] = "cancelled"
    return f"Order {order_id} is cancelled."
'''


def train(kind: str, config: dict[str, Any], launched: Launch, build: Build, cast: Cast) -> TrainingRun:
    """Write tasks, have them proved, freeze, launch SFT on their solutions, and evaluate what came of it."""
    builder = Actor(cast.builder)
    base = version(build, tools=TOOLS[:1])
    terms = Terms(kind, agent=base.agent, held_out_share=0.5)
    row = environment_versions.environment(
        project=cast.project, name="shop", actor=builder, config=config, verifier={"kind": kind}, terms=terms
    )
    for number in range(6):
        prompt = f"I am customer {number}. Cancel my order 1003."
        own_tasks.write(environment=row, actor=builder, prompt=prompt, state={"seed": number}, target=CANCELLED)
    work()
    assert all(task.is_proved for task in row.tasks.all())
    assert set(row.tasks.values_list("split", flat=True)) == {Split.TRAIN, Split.HELD_OUT}
    task_set = freeze(environment=row, name="shop", actor=builder)
    run = carry_out(launched(base=base, steps=STEPS, task_set=task_set))
    assert run.state == State.SUCCEEDED, run.error
    with open_rows(run.dataset) as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 2 * task_set.members.filter(split=Split.TRAIN).count()
    assert {rows[1]["prompt"][-1]["content"], rows[1]["prompt"][-1]["role"]} == {"Order 1003 is cancelled.", "tool"}
    assert steps_of(run) == [1, 2]
    assert run.evaluation is not None
    evaluation = EvalRun.objects.get(pk=run.evaluation.pk)
    fake.work(evaluation)
    assert evaluation.state == State.SUCCEEDED, evaluation.error
    assert not evaluation.results.filter(score=None).exists(), evaluation.results.values_list("reason", flat=True)
    return run


def test_a_world_of_python_is_trained_on(launched: Launch, build: Build, cast: Cast, sandbox: None) -> None:
    run = train("world", {"source": SOURCE, "max_turns": 3}, launched, build, cast)
    played = carry_out(launched(algorithm="grpo", base=run.base, steps=STEPS, task_set=run.task_set))
    assert played.state == State.SUCCEEDED, played.error
    figures = played.points.get(kind=Point.Kind.STEP, step=STEPS).values
    assert (figures["unscored"], figures["broken_off_fraction"]) == (0, 0)
    assert 1 <= figures["turns_mean"] <= 3
    assert "reward/state" in figures
    tried = list(played.tried.select_related("trajectory"))
    trained_on = run.task_set.members.filter(split=Split.TRAIN).select_related("task")
    assert [row.step for row in tried] == [1] * 8 + [2] * 8
    assert {row.task for row in tried} <= {str(member.task) for member in trained_on}
    assert {row.trajectory.source for row in tried if row.trajectory} == {Source.TRAINING}
    assert mean(row.reward for row in tried[8:] if row.reward is not None) == pytest.approx(figures["reward_mean"])


def test_an_attached_tool_server_is_trained_on(launched: Launch, build: Build, cast: Cast) -> None:
    with serve_shop() as (shop, url):
        config = {"base_url": url, "tools": TOOLS[:1], "resets": True, "shows_state": True, "max_turns": 3}
        run = train("tool_server", config, launched, build, cast)
        assert run.points.filter(kind=Point.Kind.EVAL, values__unscored=0, values__n__gt=0).exists(), "its curve too"
        before = len(shop.calls())
        played = carry_out(launched(algorithm="grpo", base=run.base, steps=STEPS, task_set=run.task_set))
        assert played.state == State.SUCCEEDED, played.error
        figures = played.points.get(kind=Point.Kind.STEP, step=STEPS).values
        assert (figures["unscored"], "reward/state" in figures) == (0, True)
        assert len(shop.calls()) > before, "at least the right attempts that its parts are learnt from"
        assert played.outside_calls["questions"]["play"] > 0
        assert "unanswered" not in played.outside_calls["questions"]
