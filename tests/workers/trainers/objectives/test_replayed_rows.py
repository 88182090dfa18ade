"""Replayed rows beside a slow reference, after a resume, and where they may not be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.workers.trainers.cast import NAMES, Make, Start, owned, sft_row, slow, task
from tests.workers.trainers.reused_attempts import built
from tests.workers.trainers.run.test_checkpoints_resume import same_training
from workers.trainers.objectives.replayed_rows import Replay
from workers.trainers.run import run_spec

ROWS = [sft_row(name, 7) for name in NAMES[4:9]]
NO_MOVE = {"learning_rate": 1e-9, "micro_batch_size": 8}


def reference(model: Any, tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Gradients of the mean loss of the answers' tokens, a row at a time."""
    total, tokens = torch.zeros(()), 0
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        before = tokenizer(prompt)["input_ids"]
        ids = [*before, *tokenizer(row["completion"][0]["content"] + "<|end|>")["input_ids"]]
        found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for place in range(len(before), len(ids)):
            total, tokens = total - found[place - 1, ids[place]], tokens + 1
    model.zero_grad()
    (total / tokens).backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_they_add_the_gradient_of_their_mean_loss(algorithm: str, make: Make, trained: Path) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    gradients = []
    for name, replay in (("plain", []), ("replayed", ROWS)):
        settings = {**NO_MOVE, "replay_rows": 5, "replay_weight": 0.3}
        making = lambda *of, name=name, **fields: make(*of, name=name, **fields)  # noqa: E731
        trainer, _, watched = built(algorithm, making, trained, GRPOTrainer, settings=settings, replay=replay)
        trainer.train()
        gradients.append(watched.gradients)
    without, beside = gradients
    wanted = reference(watched.models[1], AutoTokenizer.from_pretrained(trained), ROWS)
    assert beside.keys() == wanted.keys()
    for weight, gradient in wanted.items():
        torch.testing.assert_close(beside[weight] - without.get(weight, 0), 0.3 * gradient, rtol=1e-3, atol=1e-5)
    assert trainer.state.log_history[0]["replay_loss"] > 0


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_a_step_has_the_same_rows_whenever_it_is_made(make: Make, trained: Path) -> None:
    run = owned(make("grpo", on=trained, replay=ROWS, settings={"replay_rows": 2}, held_out=False))
    first, again = (Replay(run, *run_spec.opened(run.spec)) for _ in range(2))
    steps = [[ids.tolist() for ids, _ in first.of_step(step)] for step in range(8)]
    assert steps == [[ids.tolist() for ids, _ in again.of_step(step)] for step in range(8)]
    assert {len(rows) for rows in steps} == {2}
    assert len({str(rows) for rows in steps}) > 1


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_cancelled_and_resumed_is_as_uninterrupted(algorithm: str, make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {"on": trained, "steps": 4, "checkpoint_every": 2, "names": NAMES[:3], "held_out": False}
    fields |= {"replay": ROWS, "settings": {"replay_rows": 2, "micro_batch_size": 4}}
    whole, broken = make(algorithm, name="whole", **fields), make(algorithm, name="broken", **fields)
    other, trainer = start(whole), start(broken, hook=slow, given=0.3)
    broken.until(lambda run: len(run.events("step")) >= 1)
    (broken.path / "CANCEL").touch()
    assert trainer.wait() == 0, broken.errors()
    assert broken.result["status"] == "cancelled"
    (broken.path / "CANCEL").unlink()
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    same_training(broken.metrics(), whole.metrics())
    assert broken.result["digest"] == whole.result["digest"]
    assert all(metrics["replay_loss"] > 0 for metrics in broken.metrics().values())


def test_all_passes_together_have_them_once(make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {"on": trained, "steps": 1, "names": NAMES[:3], "held_out": False}
    fields |= {"settings": {"replay_weight": 0.5, "micro_batch_size": 4}}
    plain, beside = make("rloo", name="plain", **fields), make("rloo", name="beside", replay=ROWS, **fields)
    other = start(plain)
    assert start(beside).wait() == other.wait() == 0, beside.errors()
    losses = [run.metrics()[1]["loss"] for run in (plain, beside)]
    assert losses[1] - losses[0] == pytest.approx(0.5 * beside.metrics()[1]["replay_loss"], abs=1e-4)


def test_a_replayed_row_of_a_held_out_task_stops_everything(make: Make, start: Start, trained: Path) -> None:
    run = make("grpo", on=trained, names=NAMES[:3], replay=[sft_row("Kit")], held_out=[task("Kit")])
    assert start(run).wait() == 1
    assert run.result["kind"] == "contamination"


def test_what_imitates_anyway_replays_nothing(make: Make, start: Start) -> None:
    run = make("sft", replay=ROWS)
    assert start(run).wait() == 1
    assert run.result["message"] == "data.replay: SFT imitates rows anyway; add them to its own"


def test_rows_of_tasks_that_are_validated_on_are_not_replayed(make: Make, trained: Path) -> None:
    run = make("grpo", on=trained, replay=ROWS, validation=[task("Ed", 7)], held_out=False)
    _, data = run_spec.opened(run_spec.read(run.path, "grpo"))
    assert [row["task_id"] for row in data.replay] == [row["task_id"] for row in ROWS[1:]]
