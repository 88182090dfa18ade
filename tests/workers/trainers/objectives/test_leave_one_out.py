"""RLOO beside TRL's RLOOTrainer on single answers, and beside a slow reference on episodes that are used again."""

from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from flywheel.core.verifiers import Verdict, unscored
from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, TOOLS, Make, Start, task
from tests.workers.trainers.reused_attempts import SETTINGS, TEMPERATURE, Said, built, episodes, logps
from tests.workers.trainers.run.test_ranks import both
from workers.trainers.objectives.leave_one_out import LeaveOneOutTrainer, advantages

SINGLE = {
    "environment": {"kind": "tool_call", "config": {"system_prompt": "", "tools": TOOLS}, "verifier": {}},
    "train": [task(name) for name in NAMES[:4]],
}


def reference(rewards: list[float | None]) -> list[float | None]:
    """The advantages of one group, number by number."""
    found: list[float | None] = []
    for at, own in enumerate(rewards):
        others = [each for other, each in enumerate(rewards) if other != at and each is not None]
        found.append(own - fmean(others) if own is not None and others else None)
    return found


@given(st.lists(st.none() | st.floats(-3, 3, width=32), min_size=8, max_size=8))
def test_advantages_are_those_of_the_reference(rewards: list[float | None]) -> None:
    found = advantages(torch.tensor([float("nan") if each is None else each for each in rewards]), 4).tolist()
    wanted = [float("nan") if each is None else each for at in (0, 4) for each in reference(rewards[at : at + 4])]
    assert found == pytest.approx(wanted, abs=1e-5, nan_ok=True)


def rloo(make: Make, on: Path, *, normalize: bool = False, **fields: Any) -> Any:
    """A trainer as `built` makes it, whose policy has left its start already."""
    made = built("rloo", make, on, partial(LeaveOneOutTrainer, normalize=normalize), **fields)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made[0].model.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=noise)
    return made


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(("beta", "normalize"), [(0.0, False), (0.3, False), (0.3, True)])
def test_on_single_answers_it_is_trls(
    beta: float, normalize: bool, make: Make, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"num_iterations": 1, "beta": beta, "epsilon": 0.2, "epsilon_high": 0.2}
    trainer, of, watched = rloo(make, trained, normalize=normalize, settings=chosen, **SINGLE)
    monkeypatch.setattr(of.judge, "earned", lambda rollouts, _: [_earned(each) for each in rollouts])
    trainer.args.max_steps = 1
    trainer.train()
    rewards = of.totals()
    assert None in rewards, "some have no score"
    theirs, gradients = _trls(trained, tmp_path, watched.models[0], episodes(of), rewards, beta, normalize)
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 0.01
    assert watched.gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-4, atol=1e-5)
    ours = trainer.state.log_history[0]
    assert ours.get("kl") == (pytest.approx(theirs["kl"], abs=1e-5) if beta else None)
    assert not beta or abs(ours["kl"]) > 1e-3


def _trls(
    start: Path, out: Path, policy: Any, said: list[Said], rewards: list[float | None], beta: float, normalize: bool
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """What TRL's own trainer logs of a step on the same answers, and its gradients."""
    from datasets import Dataset
    from trl.trainer.rloo_config import RLOOConfig
    from trl.trainer.rloo_trainer import RLOOTrainer

    args = RLOOConfig(
        output_dir=str(out), per_device_train_batch_size=len(said), num_generations=int(SETTINGS["num_generations"]),
        max_steps=1, beta=beta, normalize_advantages=normalize, temperature=TEMPERATURE, max_grad_norm=99,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False,
        dataloader_pin_memory=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer: Any = RLOOTrainer(
        model=AutoModelForCausalLM.from_pretrained(start),
        reward_funcs=lambda **_: rewards,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "x"} for _ in said]),
        processing_class=AutoTokenizer.from_pretrained(start),
    )
    trainer.model.load_state_dict(policy.state_dict())
    ids = [each.ids[0].tolist() for each in said]
    trainer._tokenize_prompts = lambda _: ([row[: each.own[0]] for row, each in zip(ids, said, strict=True)], None, {})
    trainer._generate_single_turn = lambda *_: [row[each.own[0] :] for row, each in zip(ids, said, strict=True)]
    found: dict[str, torch.Tensor] = {}
    step = trainer.training_step

    def watched(model: Any, *given: Any) -> Any:
        loss = step(model, *given)
        found.update({name: it.grad.clone() for name, it in model.named_parameters() if it.grad is not None})
        return loss

    trainer.training_step = watched
    trainer.train()
    return trainer.state.log_history[0], found


def _earned(rollout: Any) -> Verdict:
    """A score that differs from attempt to attempt, and for some none."""
    worth = sum(map(ord, "".join(message.content for message in rollout.messages))) % 7
    return unscored("away") if worth == 6 else Verdict(worth / 6, "", {"exact": worth / 6})


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_episodes_that_are_used_again_teach_what_the_reference_does(
    make: Make, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip, beta = 0.01, 0.3
    chosen = {"epsilon": clip, "epsilon_high": clip, "beta": beta, "micro_batch_size": 4}
    trainer, of, watched = rloo(make, trained, settings=chosen)
    monkeypatch.setattr(of.judge, "earned", lambda rollouts, _: [_earned(each) for each in rollouts])
    trainer.train()

    before, after = watched.models
    begun = AutoModelForCausalLM.from_pretrained(trained)
    said, totals = episodes(of), of.totals()
    others = sum(place not in each.own for each in said for place in range(each.own[0], each.own[-1]))
    assert others > 0, "tools have spoken in between"
    assert 0 < totals.count(None) < len(totals)
    rewards = [
        None if total is None else total - beta * (logps(before, each) - logps(begun, each)).sum().item()
        for total, each in zip(totals, said, strict=True)
    ]
    found = [each for at in range(0, len(said), 8) for each in reference(rewards[at : at + 8])]
    loss, cut = torch.zeros(()), 0
    for each, advantage in zip(said, found, strict=True):
        ratio = (logps(after, each) - logps(before, each).detach()).exp()
        kept = ratio.clamp(1 - clip, 1 + clip)
        loss = loss - torch.min(ratio * (advantage or 0.0), kept * (advantage or 0.0)).sum() / len(said)
        cut += int((kept != ratio).sum())
    assert cut > 0
    after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: weight.grad for name, weight in after.named_parameters() if weight.grad is not None}
    assert wanted.keys() == watched.gradients.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_it_takes_what_the_family_does_on_episodes_of_several_turns(make: Make, start: Start, trained: Path) -> None:
    chosen = {"dynamic_sampling": True, "curriculum": True, "entropy_coef": 0.01}
    rows = [played(name) for name in NAMES[:6]]
    run = make("rloo", on=trained, environment=EPISODES, train=rows, held_out=False, steps=2, settings=chosen)
    assert start(run).wait() == 0, run.errors()
    metrics = run.metrics()
    assert metrics[1]["turns_mean"] > 1
    assert {"resampled_groups", "resting_tasks", "zero_variance_groups", "kl"} <= metrics[2].keys()
    assert sum(each["resampled_groups"] for each in metrics.values()) > 0


def test_two_processes_learn_what_one_does(make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {"on": trained, "train": SINGLE["train"], "held_out": False, "steps": 2}
    settings = {"batch_size": 16, "beta": 0.1, "normalize_advantages": True, "learning_rate": 3e-3}
    alone = make("rloo", name="alone", settings=settings, **fields)
    two = make("rloo", name="two", settings={**settings, "processes": 2, "sharding": "fsdp2"}, **fields)
    assert start(alone).wait() == 0, alone.errors()
    assert [trainer.wait() for trainer in both(two, start)] == [0, 0], two.errors()
    for name in ("reward_mean", "grad_norm", "kl"):
        assert [two.metrics()[at][name] for at in (1, 2)] == pytest.approx(
            [alone.metrics()[at][name] for at in (1, 2)], rel=1e-3, abs=1e-5
        ), name
