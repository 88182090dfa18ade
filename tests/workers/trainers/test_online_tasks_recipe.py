"""A run that learns from a reward recipe: what is rewarded is the recipe's, what is measured the verifier's."""

import json
from typing import Any

from flywheel.core.verifiers.rubric import read
from tests.workers.trainers.cast import NAMES, Make, Start, task

TALKS: list[dict[str, Any]] = [
    {"type": "environment", "name": "task"},
    {"type": "length", "name": "long", "weight": -0.25, "free": 2, "most": 6},
]


def test_a_run_is_rewarded_by_its_recipe_and_measured_by_the_verifier(make: Make, start: Start) -> None:
    recipe = {"kind": "reward", "parts": TALKS}
    settings = {"invalid_penalty": 0.0, "best_metric": "reward"}
    aside = {"validation": [task(name) for name in NAMES[6:8]]}
    run = make("grpo", names=NAMES[:4], steps=1, reward=recipe, keep_attempts=8, settings=settings, **aside)
    assert start(run).wait() == 0, run.errors()
    step = run.metrics()[1]
    assert {"reward/task", "reward/long"} <= step.keys()
    assert step["reward_mean"] == step["reward/task"] - 0.25 * step["reward/long"]
    assert 0 < step["reward/long"] <= 1, "an untrained policy babbles"
    (first, *_) = run.events("eval")
    assert first.keys().isdisjoint(("long", "reward"))
    assert "long" not in first["parts"]
    validated = run.events("validation")
    assert [row["step"] for row in validated] == [0, 1]
    assert all(-0.25 <= row["reward"] < row["score"] for row in validated), "shaping is in it"
    assert all(row["rewarded"] == 2 for row in validated)
    assert run.result["chosen"] == 1
    (kept,) = (run.path / "attempts").iterdir()
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert all("long" not in row["parts"] for row in rows)
    assert min(row["reward"] for row in rows) < 0
    assert read(recipe).is_own_verdict


def test_what_no_task_of_the_run_has_stops_it_before_it_begins(make: Make, start: Start) -> None:
    recipe = {"kind": "reward", "parts": [{"type": "exact", "read": "answer", "target": "nowhere"}]}
    run = make("grpo", names=NAMES[:4], steps=1, reward=recipe)
    assert start(run).wait() == 1
    assert run.result["kind"] == "verifier"
    assert "the task's target has no nowhere" in run.result["message"]
    assert task(NAMES[0])["target"].keys() == {"tool", "arguments"}
