"""Credit by turn beside a slow reference, and a step of it by the trainer."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.core import recipes
from flywheel.core.envs import build
from flywheel.core.envs.policy_rollouts import ChatRequest, Rollout
from flywheel.core.envs.tictactoe import generate
from flywheel.core.errors import FieldError
from flywheel.core.verifiers import Verdict, unscored
from tests.workers.trainers.attempts.test_step_attempts import ENV, TASKS, attempts, step
from tests.workers.trainers.cast import Make
from tests.workers.trainers.reused_attempts import built, episodes, logps
from workers.trainers.attempts.step_attempts import Turns
from workers.trainers.objectives.turn_credit import EPSILON, TurnTrainer, advantages, returns

Earned = list[list[float] | None]


def reference(earned: Earned, discount: float, scale: str, others: Earned = []) -> list[list[float]]:  # noqa: B006
    """The advantages of one group, number by number. `others`: the rest of the batch."""

    def gains(rewards: list[float]) -> list[float]:
        return [
            sum(discount**later * reward for later, reward in enumerate(rewards[turn:])) for turn in range(len(rewards))
        ]

    scored = [gains(rewards) for rewards in earned if rewards is not None]
    pool = scored + [gains(rewards) for rewards in (others if scale == "batch" else []) if rewards is not None]
    every = [gain for each in pool for gain in each]
    spread = 1.0 if scale == "none" else (stdev(every) if len(every) > 1 else 0.0) + EPSILON
    found = []
    for rewards in earned:
        own = []
        for turn, gain in enumerate(gains(rewards) if rewards else []):
            own.append((gain - fmean(each[turn] if turn < len(each) else 0.0 for each in scored)) / spread)
        found.append(own)
    return found


REWARDS = st.none() | st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=5)


@settings(deadline=None)
@given(
    earned=st.lists(REWARDS, min_size=8, max_size=8),
    discount=st.floats(0, 1),
    scale=st.sampled_from(["group", "batch", "none"]),
)
def test_advantages_are_those_of_the_reference(earned: Earned, discount: float, scale: str) -> None:
    turns = [Turns([1] * len(each or [0]), each) for each in earned]
    found = advantages(turns, 4, discount, scale)
    for start in (0, 4):
        rest = earned[:start] + earned[start + 4 :]
        for at, own in enumerate(reference(earned[start : start + 4], discount, scale, rest), start):
            told = found[at].tolist()
            assert told[: len(own)] == pytest.approx(own, abs=1e-5, rel=1e-5)
            assert not any(told[len(own) :])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_hand_made_groups_are_those_of_the_reference_to_five_places(scale: str) -> None:
    earned: Earned = [[0.2, -0.5, 1.3], [1.0], None, [-1.0, 0.25], [0.0, 0.0], [0.5, 0.5, 0.5, -2.0], [0.75], [0.1]]
    turns = [Turns([2] * len(each or [0]), each) for each in earned]
    found = advantages(turns, 4, 0.9, scale)
    for start in (0, 4):
        rest = earned[:start] + earned[start + 4 :]
        for at, own in enumerate(reference(earned[start : start + 4], 0.9, scale, rest), start):
            assert found[at, : len(own)].tolist() == pytest.approx(own, abs=1e-5)
    assert not found[2].any(), "what was not scored teaches nothing"


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_without_a_discount_the_first_turn_earns_the_episode(rewards: list[float]) -> None:
    assert returns(rewards, 1.0)[0] == pytest.approx(sum(rewards), abs=1e-9)
    assert returns(rewards, 0.0) == rewards


def test_of_one_turn_it_is_grpo() -> None:
    earned = [0.0, 1.0, 0.5, 0.5]
    found = advantages([Turns([3], [each]) for each in earned], 4, 1.0, "group")
    rewards = torch.tensor(earned)
    torch.testing.assert_close(found[:, 0], (rewards - rewards.mean()) / (rewards.std() + EPSILON))


def test_a_move_that_cannot_be_made_costs_its_own_turn() -> None:
    moves = ["<think></think><move>4</move>", "<think></think><move>4</move>", "no move"]
    games = [replace(game, state={**game.state, "starts": "X"}) for game in generate(2, seed=1)]

    def say(request: ChatRequest) -> str:
        return moves[min(2, sum(message.role == "assistant" for message in request.messages))]

    of = attempts(build("tictactoe", {}, {"kind": "tictactoe"}), games, say, step_rewards=True)
    step(of, 0, 1)
    (verdict, *_), (turns, *_) = of.groups[0].verdicts, of.turns
    assert turns.rewards is not None
    assert len(turns.rewards) == 8, "it is asked again and again"
    assert turns.rewards[0] > 0 > max(turns.rewards[1:3]), "a taken cell, and then no form either"
    assert sum(turns.rewards) == pytest.approx(verdict.score)


def test_an_attempt_without_a_score_earns_nothing_by_turns() -> None:
    of = attempts(ENV, TASKS, lambda _: "x", step_rewards=True)
    of.judge.verdicts = lambda rollouts: [unscored("away") for _ in rollouts]  # type: ignore[method-assign]
    step(of, 0, 1)
    assert {turns.rewards for turns in of.turns} == {None}
    assert of.figures["unscored"] == 1.0


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_the_trainer_gives_each_token_what_its_turn_and_its_episode_earned(
    make: Make, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"step_rewards": True, "discount": 0.8, "scale_rewards": "none"}
    chosen |= {"num_iterations": 2, "epsilon": 0.01, "epsilon_high": 0.01}
    class_ = partial(TurnTrainer, discount=0.8, weight=0.75)
    trainer, of, watched = built("grpo", make, trained, class_, settings=chosen)
    monkeypatch.setattr(of.judge, "earned", lambda rollouts, _: [Verdict(_worth(each), "") for each in rollouts])
    trainer.train()
    said = episodes(of)
    earned, sizes = [], [each.sizes for each in of.turns]
    for group in of.groups:
        for rollout in group.rollouts:
            totals = [0.0, *map(_worth, _parts(rollout))]
            earned.append([now - before for before, now in pairwise(totals)])
    assert [sum(each) for each in earned] == pytest.approx(of.totals())
    assert max(map(len, sizes)) > 1, "tools have spoken in between"
    assert any(reward < 0 for each in earned for reward in each), "a turn has cost something"
    before, after = watched.models
    loss = torch.zeros(())
    for start in range(0, len(said), 8):
        those = earned[start : start + 8]
        by_turn, mean = reference(list(those), 0.8, "none"), fmean(map(sum, those))
        for at, own in enumerate(by_turn, start):
            each = said[at]
            whole = sum(earned[at]) - mean
            told = torch.tensor([gain for gain, size in zip(own, sizes[at], strict=True) for _ in range(size)])
            told = 0.75 * told + 0.25 * whole
            ratio = (logps(after, each) - logps(before, each).detach()).exp()
            loss = loss - torch.min(ratio * told, ratio.clamp(0.99, 1.01) * told).mean() / len(said)
    after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for name, weight in after.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(watched.gradients[name], weight.grad, rtol=1e-3, atol=1e-5)


def _parts(rollout: Rollout) -> list[Rollout]:
    """The attempt up to each of its answers and what was replied, the whole one last; nothing was recorded before."""
    places = [at for at, message in enumerate(rollout.messages) if message.role == "assistant"]
    cuts = [*places[1:], len(rollout.messages)]
    return [
        Rollout(rollout.task, 0, 1, rollout.messages[:cut], rollout.responses[: turn + 1])
        for turn, cut in enumerate(cuts)
    ]


def _worth(rollout: Rollout) -> float:
    """A score that goes up and down as an attempt goes on."""
    return sum(len(message.content) for message in rollout.messages) % 7 / 7


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"discount": 0.9}, "discount: 0.9 discounts rewards of turns; set step_rewards too"),
        ({"step_weight": 0.5}, "step_weight: 0.5 weighs rewards of turns; set step_rewards too"),
        ({"step_rewards": True, "processes": 2, "batch_size": 128}, "processes: 2 does not go with step_rewards"),
        (
            {"step_rewards": True, "reward_aggregation": "normalize_then_sum"},
            "reward_aggregation: 'normalize",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(chosen: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        recipes.validate("grpo", chosen)
    assert "step_rewards" not in recipes.defaults("rloo")
