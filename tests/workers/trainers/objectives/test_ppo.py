"""PPO beside a slow reference: the same episodes, the same two steps, gradients of policy and value head."""

from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from flywheel.core import recipes
from flywheel.core.verifiers import Verdict
from tests.workers.trainers.attempts.test_step_attempts import EPISODES, played
from tests.workers.trainers.cast import NAMES, Make, Start, slow
from tests.workers.trainers.objectives.test_critic import reference
from tests.workers.trainers.reused_attempts import SETTINGS, built, episodes, logps
from workers.reference import story
from workers.trainers.objectives.critic import FILE

LORA = {"mode": "lora", "rank": 4, "alpha": 8}


def ppo(make: Make, on: Path, **fields: Any) -> Any:
    from workers.trainers.objectives.ppo import PPOTrainer, Values

    values = Values.of(recipes.validate("ppo", {**SETTINGS, **fields.get("settings", {})}))
    return built("ppo", make, on, partial(PPOTrainer, values=values), **fields)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_policy_and_value_head_learn_as_the_reference_does(make: Make, trained: Path) -> None:
    clip, gamma, lam, weight = 0.01, 0.99, 0.9, 0.5
    chosen = {
        "epsilon": clip, "epsilon_high": clip, "value_clip": clip, "gamma": gamma, "gae_lambda": lam,
        "value_coef": weight,
    }  # fmt: skip
    trainer, of, watched = ppo(make, trained, settings=chosen)
    torch.nn.init.normal_(trainer.head.layer.weight, std=0.05, generator=torch.Generator().manual_seed(1))
    trainer.train()

    (before, after), (head, head_after) = watched.models, watched.heads
    said = episodes(of)
    torch.nn.init.constant_(head.bias, sum(each.reward for each in said) / len(said))
    others = sum(place not in each.own for each in said for place in range(each.own[0], each.own[-1]))
    assert others > 0, "tools have spoken in between"
    values = [_values(before, head, each).detach() for each in said]
    found = [
        torch.tensor(reference(each.reward, own.numpy(), gamma, lam)) for each, own in zip(said, values, strict=True)
    ]
    every = torch.cat(found)
    policy_loss = value_loss = torch.zeros(())
    cuts = [0, 0]
    for each, own, advantages in zip(said, values, found, strict=True):
        scaled = (advantages - every.mean()) / every.std()
        ratio = (logps(after, each) - logps(before, each).detach()).exp()
        kept = ratio.clamp(1 - clip, 1 + clip)
        policy_loss = policy_loss - torch.min(ratio * scaled, kept * scaled).sum()
        predicted = _values(after, head_after, each)
        near = own + (predicted - own).clamp(-clip, clip)
        returns = each.reward * gamma ** torch.arange(len(own) - 1, -1, -1)
        value_loss = value_loss + 0.5 * torch.max((predicted - returns) ** 2, (near - returns) ** 2).sum()
        cuts = [cuts[0] + int((kept != ratio).sum()), cuts[1] + int((near != predicted).sum())]
    assert min(cuts) > 0, "both clips do something"
    loss = (policy_loss + weight * value_loss) / len(every)
    after.zero_grad()
    head_after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    named = {**dict(after.named_parameters()), **{f"head.{name}": it for name, it in head_after.named_parameters()}}
    wanted = {name: it.grad for name, it in named.items() if it.grad is not None}
    assert wanted.keys() == watched.gradients.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-3, atol=1e-5)
    assert trainer.state.log_history[1]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert trainer.state.log_history[1]["value_loss"] == pytest.approx(value_loss.item() / len(every), abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_with_rewards_of_turns_each_comes_at_the_end_of_its_turn(
    make: Make, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gamma, lam = 0.99, 0.9
    chosen = {"step_rewards": True, "gamma": gamma, "gae_lambda": lam, "normalize_advantages": False}
    trainer, of, _ = ppo(make, trained, settings=chosen)
    monkeypatch.setattr(of.judge, "earned", lambda rollouts, _: [Verdict(_worth(each), "") for each in rollouts])
    batches: list[Any] = []
    made = trainer._generate_and_score_completions

    def kept(rows: Any) -> Any:
        batches.append(made(rows))
        return batches[-1]

    monkeypatch.setattr(trainer, "_generate_and_score_completions", kept)
    trainer.train()
    (batch,) = batches
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert max(len(each.sizes) for each in of.turns) > 1, "tools have spoken in between"
    for at, each in enumerate(of.turns):
        assert each.rewards is not None
        by_token = [[0.0] * (size - 1) + [reward] for size, reward in zip(each.sizes, each.rewards, strict=True)]
        values = batch["values"][at][mask[at]]
        wanted = reference([reward for turn in by_token for reward in turn], values.numpy(), gamma, lam)
        assert batch["advantages"][at][mask[at]].tolist() == pytest.approx(wanted, abs=1e-5)


def _worth(rollout: Any) -> float:
    """A score that goes up and down as an attempt goes on."""
    return sum(len(message.content) for message in rollout.messages) % 7 / 7


def _values(model: Any, head: Any, said: Any) -> torch.Tensor:
    """Values of the states before each token that the policy wrote."""
    hidden = model(said.ids, output_hidden_states=True).hidden_states[-1]
    values: torch.Tensor = head(hidden[0, [place - 1 for place in said.own]])[:, 0]
    return values


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_unscored_episodes_have_no_advantage_and_teach_no_value(make: Make, trained: Path) -> None:
    unreadable = played(NAMES[1]) | {"target": {"wanted": [{"type": "no such check", "text": "x"}]}}
    trainer, of, _ = ppo(make, trained, train=[played(NAMES[0]), unreadable])
    trainer.train()
    totals = of.totals()
    assert totals.count(None) == 8
    (batch,) = trainer._buffered_inputs
    learnt = batch["value_weights"].sum(1) > 0
    assert int(learnt.sum()) == 8
    assert not batch["advantages"][~learnt].any()
    assert float(batch["value_weights"].sum()) == pytest.approx(1)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_it_goes_on_after_a_stop_as_if_there_had_been_none(mode: str, make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {
        "on": trained, "environment": EPISODES, "train": [played(name) for name in NAMES[:3]], "held_out": False,
        "steps": 5, "checkpoint_every": 2, "tuning": LORA if mode == "lora" else {"mode": "full"},
        "settings": {"learning_rate": 3e-3},
    }  # fmt: skip
    whole, broken = make("ppo", name="whole", **fields), make("ppo", name="broken", **fields)
    other = start(whole)
    trainer = start(broken, hook=slow, given=0.3)
    broken.until(lambda run: len(run.events("step")) >= 2)
    (broken.path / "CANCEL").touch()
    assert trainer.wait() == 0, broken.errors()
    (broken.path / "CANCEL").unlink()
    assert start(broken).wait() == 0, broken.errors()
    assert other.wait() == 0, whole.errors()
    assert broken.result["digest"] == whole.result["digest"]
    kept = [(run.path / f"checkpoints/step-5/{FILE}").read_bytes() for run in (broken, whole)]
    assert kept[0] == kept[1]
    plain = make("grpo", name="plain", **{**fields, "steps": 1})
    assert start(plain).wait() == 0, plain.errors()
    assert whole.result["files"].keys() == plain.result["files"].keys(), "the head stays behind"
    sizes = [run.result["files"][_weights(mode)]["size"] for run in (whole, plain)]
    assert sizes[0] == sizes[1]


def _weights(mode: str) -> str:
    return "adapter_model.safetensors" if mode == "lora" else "model.safetensors"


def test_a_part_of_the_batch_at_a_time_learns_the_same(make: Make, start: Start, trained: Path) -> None:
    fields: dict[str, Any] = {
        "on": trained, "environment": EPISODES, "train": [played(name) for name in NAMES[:4]], "held_out": False,
        "steps": 2,
    }  # fmt: skip
    whole = make("ppo", name="whole", **fields)
    parts = make("ppo", name="parts", settings={"micro_batch_size": 2, "gradient_checkpointing": True}, **fields)
    for run in (whole, parts):
        assert start(run).wait() == 0, run.errors()
    for name in ("reward_mean", "value_loss", "loss", "grad_norm", "explained_variance"):
        assert whole.metrics()[2][name] == pytest.approx(parts.metrics()[2][name], rel=1e-3, abs=1e-5), name


def test_it_stays_near_the_start_where_that_is_asked_for(make: Make, start: Start, trained: Path) -> None:
    run = make("ppo", on=trained, steps=2, settings={"beta": 0.1}, held_out=False)
    assert start(run).wait() == 0, run.errors()
    assert run.metrics()[2]["kl"] > 0


def test_the_policy_that_ships_learns_to_leave_a_retired_tool_alone(make: Make, start: Start) -> None:
    """It calls that tool for every second reminder, which earns -1; the right tool earns 0.4, with its arguments 1."""
    asked = [each for each in story.sessions(400, 5) if each.wording == "remind"][:16]
    run = make(
        "ppo",
        on=Path(story.__file__).parent / "policy",
        train=[request.to_task().to_json() for request in asked],
        environment={
            "kind": "tool_call",
            "config": story.environment_config(),
            "verifier": {},
            "agent": story.AGENT_CONFIG.to_json(),
        },
        held_out=False,
        steps=20,
        settings={"batch_size": 32, "num_generations": 2, "max_completion_length": 48, "lr_schedule": "constant"},
    )
    assert start(run).wait() == 0, run.errors()
    rewards = [metrics["reward_mean"] for _, metrics in sorted(run.metrics().items())]
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.15
