"""Generalised advantage estimation over the policy's own tokens, clipped value losses and their figures, each beside a
plain reference."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from workers.trainers.attempts.step_attempts import Turns
from workers.trainers.objectives import critic, turn_credit
from workers.trainers.objectives.critic import ValueHead

B, T = 7, 23


def reference(reward: float | list[float], values: np.ndarray, gamma: float, lam: float) -> list[float]:
    """Advantages of an episode without other people's words, by the sum that defines them. `reward` is that of its end,
    or of each token."""
    n = len(values)
    rewards = reward if isinstance(reward, list) else [0.0] * (n - 1) + [reward]
    following = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values and masks of episodes; the last one has not a word of the policy's."""
    random = torch.Generator().manual_seed(3)
    mask = (torch.rand(B, T, generator=random) < 0.6).long()
    mask[-1] = 0
    return torch.randn(B, generator=random), torch.randn(B, T, generator=random), mask


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0), (0.9, 0.0)])
def test_advantages_are_those_of_the_definition(gamma: float, lam: float) -> None:
    rewards, values, mask = drawn()
    found = critic.advantages(rewards, values, mask, gamma, lam)
    for row in range(B):
        own = mask[row].bool()
        wanted = reference(float(rewards[row]), values[row][own].numpy(), gamma, lam)
        np.testing.assert_allclose(found[row][own].numpy(), wanted, atol=1e-5)
        assert not found[row][~own].any()


def test_rewards_on_the_way_come_with_their_tokens() -> None:
    """Turns of two, no and three tokens beside those that others wrote, one that was not scored, and a masked one."""
    _, values, mask = drawn()
    turns = [Turns([2, 0, 3], [0.5, 0.25, -1.0]), Turns([1, 2], None), Turns([2, 3], [2.0, -0.5])]
    mask = torch.zeros(3, T, dtype=torch.long)
    mask[0, [1, 2, 5, 6, 7]] = mask[1, [0, 4, 5]] = 1
    found = critic.advantages(turn_credit.at_ends(turns, mask), values[:3], mask, 0.9, 0.8)
    for row, rewards in enumerate([[0.0, 0.75, 0.0, 0.0, -1.0], [0.0] * 3, []]):
        own = mask[row].bool()
        wanted = reference(rewards, values[row][own].numpy(), 0.9, 0.8)
        np.testing.assert_allclose(found[row][own].numpy(), wanted, atol=1e-5)


def test_at_lambda_1_every_token_gets_the_reward_less_what_was_predicted() -> None:
    rewards, values, mask = drawn()
    found = critic.advantages(rewards, values, mask, 1.0, 1.0)
    torch.testing.assert_close(found, (rewards[:, None] - values) * mask)


def test_words_of_others_change_nothing() -> None:
    rewards, values, mask = drawn()
    found = critic.advantages(rewards, values, mask, 0.99, 0.9)
    torch.testing.assert_close(critic.advantages(rewards, values + 9 * (1 - mask), mask, 0.99, 0.9), found)


def test_a_value_loss_is_the_larger_of_two_squares() -> None:
    before, values, returns = (torch.tensor([row]) for row in ([0.0, 0.0, 0.0], [0.1, 0.5, -0.5], [0.3, 1.0, 1.0]))
    found = critic.value_losses(values, before, returns, 0.2)
    #                                                 within; cut to 0.2, which is worse; further away than the cut
    torch.testing.assert_close(found, 0.5 * torch.tensor([[0.2**2, 0.8**2, 1.5**2]]))


def test_a_value_that_has_moved_as_far_as_it_may_has_no_gradient() -> None:
    values = torch.tensor([[0.5]], requires_grad=True)
    critic.value_losses(values, torch.zeros(1, 1), torch.ones(1, 1), 0.2).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert not values.grad.any()


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert critic.explained_variance(returns, returns) == pytest.approx(1)
    assert critic.explained_variance(torch.full((4,), 0.3), returns) == pytest.approx(0)
    assert critic.explained_variance(1 - returns, returns) == pytest.approx(-3)
    assert critic.explained_variance(torch.randn(4), torch.ones(4)) is None
    assert critic.explained_variance(torch.zeros(0), torch.zeros(0)) is None


def test_normalised_advantages_have_mean_0_and_spread_1_over_the_policys_tokens() -> None:
    _, found, mask = drawn()
    chosen = critic.normalized(found, mask)[mask.bool()]
    assert float(chosen.mean()) == pytest.approx(0, abs=1e-6)
    assert float(chosen.std()) == pytest.approx(1, abs=1e-5)
    assert not critic.normalized(found, mask)[~mask.bool()].any()
    alone = torch.zeros_like(mask)
    alone[0, 0] = 1
    assert critic.normalized(found, alone).isfinite().all()


def test_a_head_predicts_nothing_at_first_and_is_kept_in_checkpoints(tmp_path: Path) -> None:
    hidden = torch.randn(2, 3, 8)
    head, again = (ValueHead(8, torch.device("cpu")) for _ in range(2))
    assert not head(hidden).any()
    torch.nn.init.normal_(head.layer.weight)
    (tmp_path / "checkpoint-4").mkdir()
    head.on_save(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=4), None)
    again.load(tmp_path / "checkpoint-4")
    assert torch.equal(head(hidden), again(hidden))
