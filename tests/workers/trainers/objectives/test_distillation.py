"""Distillation beside a slow reference: the same episodes, each token judged by the teacher; and that it learns."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.workers.trainers.cast import NAMES, Directory, Make, Start
from tests.workers.trainers.reused_attempts import built, episodes, logps
from workers.trainers.run import checkpoints


@pytest.fixture(scope="session")
def teacher(base: Path, tmp_path_factory: pytest.TempPathFactory, start: Start) -> Path:
    """A version that was trained a little longer than the one that learns."""
    path = tmp_path_factory.mktemp("teacher") / "run"
    run = Directory(path, base, "sft", names=NAMES[:4], steps=30, held_out=False, checkpoint_every=60)
    assert start(run).wait() == 0, run.errors()
    return run.path / "final"


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_it_learns_as_the_reference_does(make: Make, trained: Path, teacher: Path) -> None:
    from workers.trainers.objectives.distillation import DistillationTrainer

    taught = AutoModelForCausalLM.from_pretrained(teacher)
    trainer, of, watched = built(
        "distillation", make, trained, partial(DistillationTrainer, teacher=taught), settings={"beta": 0.0}
    )
    trainer.train()

    before, after = watched.models
    said = episodes(of)
    others = sum(place not in each.own for each in said for place in range(each.own[0], each.own[-1]))
    assert others > 0, "tools have spoken in between"
    tokens = sum(len(each.own) for each in said)
    loss, distance = torch.zeros(()), 0.0
    for each in said:
        old = logps(before, each).detach()
        advantages = logps(taught, each).detach() - old
        distance -= advantages.sum().item()
        ratio = (logps(after, each) - old).exp()
        loss = loss - torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum() / tokens
    after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: it.grad for name, it in after.named_parameters() if it.grad is not None}
    assert wanted.keys() == watched.gradients.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-3, atol=1e-5)
    assert trainer.state.log_history[0]["teacher_kl"] == pytest.approx(distance / tokens, abs=1e-5)
    assert trainer.state.log_history[1]["loss"] == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("tuning", [{"mode": "full"}, {"mode": "lora", "rank": 4, "alpha": 8}], ids=["full", "lora"])
def test_the_policy_comes_nearer_to_its_teacher(
    tuning: dict[str, Any], make: Make, start: Start, trained: Path, teacher: Path
) -> None:
    rate = 3e-3 if tuning["mode"] == "full" else 2e-2
    settings = {"batch_size": 16, "num_generations": 2, "learning_rate": rate}
    fields: dict[str, Any] = {"steps": 15, "settings": settings, "held_out": False, "tuning": tuning}
    run = make("distillation", on=trained, teacher=teacher, **fields)
    assert start(run).wait() == 0, run.errors()
    distances = [metrics["teacher_kl"] for metrics in run.metrics().values()]
    assert sum(distances[-3:]) < 0.5 * sum(distances[:3]), distances


def test_a_teacher_of_its_own_weights_is_at_no_distance(make: Make, start: Start, trained: Path) -> None:
    run = make("distillation", on=trained, teacher=trained, steps=1, held_out=False)
    assert start(run).wait() == 0, run.errors()
    assert run.metrics()[1]["teacher_kl"] == pytest.approx(0, abs=1e-5)


def test_a_teacher_with_other_tokens_is_refused(make: Make, start: Start, trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    written = json.loads((other / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    (first, last) = sorted(vocabulary, key=lambda text: vocabulary[text])[-2:]
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(written))
    run = make("distillation", on=trained, teacher=other, steps=1, held_out=False)
    assert start(run).wait() == 1
    place = vocabulary[last]
    assert (run.result["kind"], run.result["message"]) == (
        "model",
        f"teacher.base: its token {place} is {last!r}, and the policy's is {first!r}; probabilities are compared token "
        "by token, so both must have one tokenizer",
    )


def test_nobody_is_distilled_without_a_teacher(make: Make, start: Start, trained: Path) -> None:
    run = make("distillation", on=trained, teacher=None, steps=1, held_out=False)
    assert start(run).wait() == 1
    assert run.result["message"] == "teacher: is missing; Distillation learns from one"
    run.spec["teacher"] = {"base": {"path": "here", "digest": checkpoints.directory_digest(trained)}}
    run.save()
    assert start(run).wait() == 1
    assert run.result["message"] == "teacher.base.path: 'here': an absolute path is wanted"
