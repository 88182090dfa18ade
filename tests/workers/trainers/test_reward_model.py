"""A reward model learns from pairs which answer is preferred, and what it makes judges as it was measured."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import NAMES, Make, Start, owned, pair_row, slow
from workers.engines.reward_scorer import RewardScorer
from workers.trainers import reward_model
from workers.trainers.run import run_spec

LORA = {"mode": "lora", "rank": 4, "alpha": 8}
each_tuning = pytest.mark.parametrize("tuning", [{"mode": "full"}, LORA], ids=["full", "lora"])


@each_tuning
def test_it_learns_the_order_of_pairs_and_leaves_a_whole_model(
    tuning: dict[str, Any], make: Make, start: Start, trained: Path
) -> None:
    settings = {"batch_size": 4, "learning_rate": 3e-3, "validation_share": 0.25}
    fields = {"names": NAMES, "steps": 12, "eval_every": 6, "tuning": tuning, "held_out": False}
    run = make("reward_model", on=trained, settings=settings, **fields)
    assert start(run).wait() == 0, run.errors()
    first, last = run.metrics()[1], run.metrics()[12]
    assert last["loss"] < first["loss"] - 0.2
    assert (last["pair_accuracy"], last["margin"] > 1) == (1, True)
    assert run.events("training_start")[0]["train_rows"] == 9
    found = {row["step"]: row for row in run.events("validation")}
    assert set(found) == {0, 6, 12}
    assert (found[12]["n"], found[12]["pair_accuracy"]) == (3, 1)

    facts = json.loads((run.path / "final/reward.json").read_text())
    assert facts["pairs"] | {"low": 0} == {
        "mean": 1, "low": 0, "high": 1, "n": 3, "unscored": 0, "sources": 3,
    }  # fmt: skip
    gap = facts["chosen"] - facts["rejected"]
    assert gap == pytest.approx(found[12]["margin"], abs=0.5), "the saved model says what the live one said"
    rows = [pair_row(name) for name in NAMES[:2]]
    told: list[Any] = [([*row["prompt"], *row[side]], []) for row in rows for side in ("chosen", "rejected")]
    scores = RewardScorer.load(run.path / "final").score(told)
    assert scores[0] > scores[1]  # type: ignore[operator]
    assert scores == pytest.approx([RewardScorer.load(run.path / "final", 1).score([one])[0] for one in told], abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_its_loss_is_the_pairwise_logistic_loss(make: Make) -> None:
    """Against a slow reference: one conversation at a time, Bradley and Terry's likelihood by hand."""
    from workers.trainers.weights import trained_policy

    settings = {"batch_size": 4, "center_rewards": 0.05}
    run = owned(make("reward_model", names=NAMES[:4], settings=settings, held_out=False))
    env, data = run_spec.opened(run.spec)
    loaded = trained_policy.load(run)
    trainer = reward_model.build(run, loaded, env, data)
    ours = trainer.compute_loss(trainer.model.train(), trainer.data_collator(list(trainer.train_dataset))).item()
    losses = []
    scorer = RewardScorer(trainer.model.eval(), loaded.tokenizer, batch_size=1)
    for row, tools in zip(data.train, trained_policy.tools_shown(data.train, env), strict=True):
        better, worse = scorer.score([([*row["prompt"], *row[name]], tools) for name in ("chosen", "rejected")])
        assert isinstance(better, float)
        assert isinstance(worse, float)
        losses.append(-math.log(1 / (1 + math.exp(worse - better))) + 0.05 * (better + worse) ** 2)
    assert ours == pytest.approx(sum(losses) / len(losses), abs=1e-5)


@each_tuning
def test_cancelled_and_resumed_is_as_uninterrupted(
    tuning: dict[str, Any], make: Make, start: Start, trained: Path
) -> None:
    fields = {"on": trained, "steps": 5, "checkpoint_every": 2, "names": NAMES[:5], "held_out": False, "tuning": tuning}
    whole, broken = (make("reward_model", name=name, **fields) for name in ("whole", "broken"))
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.3)
    broken.until(lambda run: len(run.events("step")) >= 2)
    (broken.path / "CANCEL").touch()
    assert trainer.wait() == 0, broken.errors()
    assert broken.result["status"] == "cancelled"
    (broken.path / "CANCEL").unlink()
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    assert broken.events("training_start")[1]["resumed_from"] in (2, 3, 4)
    assert broken.result["digest"] == whole.result["digest"], "weights, reference and canaries, bit by bit"


def test_pairs_of_one_source_are_refused(make: Make, start: Start) -> None:
    rows = [pair_row(name) | {"cluster": "one"} for name in NAMES[:4]]
    run = make("reward_model", train=rows, held_out=False)
    assert start(run).wait() == 1
    assert (run.result["kind"], run.result["message"]) == (
        "data",
        "all pairs are of one source: some are kept aside to measure the reward model by",
    )
