"""A run that practises tasks of several environments: each is prompted, judged and measured in its own."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs.tictactoe import generate
from flywheel.core.traces.tooling import call_text
from tests.workers.trainers.attempts.test_step_attempts import GAMES
from tests.workers.trainers.cast import NAMES, TOOLS, Make, Start, sft_row, task
from workers.trainers.run import kept_attempts
from workers.trainers.run import run_spec as specs

ASK = {
    "name": "ask",
    "description": "Ask a person.",
    "parameters": {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]},
}
MIXED: dict[str, Any] = {
    "kind": "mixed",
    "config": {
        "environments": {
            "other": {"kind": "tool_call", "config": {"system_prompt": "Ask.", "tools": [ASK]}, "verifier": {}},
            "some": {"kind": "tool_call", "config": {"system_prompt": "", "tools": TOOLS}, "verifier": {}},
        },
        "first": "some",
    },
    "verifier": {},
}
OTHER = {"tool": "ask", "arguments": {"who": "Zed"}}
ROWS = [
    sft_row("Ada") | {"environment": "some"},
    {
        "task_id": "other/Yan-1",
        "environment": "other",
        "prompt": [{"role": "system", "content": "Ask."}, {"role": "user", "content": "ask Yan"}],
        "completion": [{"role": "assistant", "content": call_text("ask", {"who": "Zed"})}],
    },
]


def mixed(name: str, number: int = 0, environment: str = "some", **fields: Any) -> dict[str, Any]:
    other = {} if environment == "some" else {"prompt": f"ask {name}", "target": OTHER}
    return task(name, number, environment=environment, id=f"{environment}/{name}-{number}", **other, **fields)


HELD_OUT = [*(mixed(name) for name in NAMES[8:]), mixed("Zed", 0, "other", cluster="c-other")]


def test_attempts_are_judged_where_their_task_belongs(make: Make, start: Start, trained: Path) -> None:
    train = [*(mixed(name) for name in NAMES[:3]), mixed("Yan", 1, "other"), mixed("Xia", 2, "other")]
    run = make("grpo", on=trained, train=train, held_out=HELD_OUT, steps=2, eval_every=1, environment=MIXED)
    assert start(run).wait() == 0, run.errors()
    figures = run.events("eval")
    assert [row["n"] for row in figures] == [4, 4, 4]
    assert [{name: row["n"] for name, row in each["environments"].items()} for each in figures] == [{"other": 1}] * 3
    assert all("reward_mean" in metrics for metrics in run.metrics().values())


def test_demonstrations_are_told_the_tools_of_their_own_environment(make: Make) -> None:
    env, data = specs.opened(specs.read(make("sft", train=ROWS, held_out=HELD_OUT, environment=MIXED).path, "sft"))
    told = [[tool["name"] for tool in specs.tools_of(env, row["environment"])] for row in data.train]
    assert told == [["remind", "erase"], ["ask"]]


@pytest.mark.parametrize("environment", ["", "third"])
def test_a_row_of_an_unknown_environment_is_refused(environment: str, make: Make, start: Start) -> None:
    run = make("grpo", train=[mixed("Ada") | {"environment": environment}], held_out=HELD_OUT, environment=MIXED)
    assert start(run).wait() == 1
    assert run.result["kind"] == "data"
    assert "is none of the run's environments; some, other are" in run.result["message"]


def test_environments_come_by_their_weights_over_the_run(make: Make, start: Start, trained: Path) -> None:
    train = [*(mixed(name) for name in NAMES[:3]), mixed("Yan", 1, "other"), mixed("Xia", 2, "other")]
    weights = {"some": [1, 0], "other": [0, 1]}
    settings = {"batch_size": 8, "num_generations": 2, "dynamic_sampling": True, "max_resamples": 1}
    fields: dict[str, Any] = {"train": train, "held_out": False, "environment": MIXED, "settings": settings}
    run = make("grpo", on=trained, steps=3, environment_weights=weights, keep_attempts=24, **fields)
    assert start(run).wait() == 0, run.errors()
    files = kept_attempts.waiting(run.path)
    found = {step: {kept.rollout.task.environment for kept in kept_attempts.read(path)} for step, path in files}
    assert found == {1: {"some"}, 2: {"some", "other"}, 3: {"other"}}


def test_whole_games_and_single_calls_are_mixed_by_their_weights(make: Make, start: Start, trained: Path) -> None:
    environments = {"some": MIXED["config"]["environments"]["some"], "game": GAMES}
    games = [game.to_json() | {"environment": "game"} for game in generate(6, seed=3)]
    fields: dict[str, Any] = {
        "environment": {"kind": "mixed", "config": {"environments": environments, "first": "some"}, "verifier": {}},
        "train": [*(mixed(name) for name in NAMES[:3]), *games[:4]],
        "held_out": [*(mixed(name) for name in NAMES[8:]), *games[4:]],
        "environment_weights": {"some": [1, 0], "game": [0, 1]},
        "settings": {"batch_size": 8, "num_generations": 2},
    }
    run = make("grpo", on=trained, steps=3, eval_every=3, keep_attempts=24, **fields)
    assert start(run).wait() == 0, run.errors()
    practised: dict[int, set[str]] = {}
    turns: dict[str, int] = {}
    for step, path in kept_attempts.waiting(run.path):
        for kept in kept_attempts.read(path):
            name = kept.rollout.task.environment
            practised.setdefault(step, set()).add(name)
            said = sum(message.role == "assistant" for message in kept.rollout.messages)
            turns[name] = max(said, turns.get(name, 0))
    assert practised == {1: {"some"}, 2: {"some", "game"}, 3: {"game"}}
    assert turns["some"] == 1 < turns["game"]
    assert all(metrics["unscored"] == 0 for metrics in run.metrics().values())
    assert [row["environments"]["game"]["n"] for row in run.events("eval")] == [2, 2]


def test_weights_that_sum_to_nothing_are_refused_by_the_trainer_too(make: Make, start: Start) -> None:
    weights = {"some": [1, 0], "other": [1, 0]}
    run = make("grpo", train=[mixed("Ada")], held_out=HELD_OUT, environment=MIXED, environment_weights=weights)
    assert start(run).wait() == 1
    assert run.result["message"].startswith("environment_weights: they sum to 0 at the last step")
