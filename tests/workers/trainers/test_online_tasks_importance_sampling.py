"""Importance sampling is TRL's CISPO loss in a configuration of its own; a slow reference holds it to that."""

from pathlib import Path

import pytest
import torch

from flywheel.core import recipes
from flywheel.core.recipes import ALGORITHMS
from tests.workers.trainers.cast import Make
from tests.workers.trainers.reused_attempts import built, episodes, logps


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
def test_the_gradient_is_that_of_reinforce_with_truncated_weights(make: Make, trained: Path) -> None:
    """A token counts as its ratio, at most the cap and never less than it is, times its episode's distance from the
    mean of the group, times the gradient of its log-probability; all over the number of tokens."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    cap = 1.02
    chosen = {"epsilon": 0.0, "epsilon_high": cap}
    trainer, of, watched = built("importance_sampling", make, trained, GRPOTrainer, settings=chosen)
    trainer.train()

    before, after = watched.models
    said = episodes(of)
    tokens = sum(len(each.own) for each in said)
    loss, ratios = torch.zeros(()), list[float]()
    for each in said:
        group = [other.reward for other in said if other.group == each.group]
        new = logps(after, each)
        ratio = (new - logps(before, each)).exp().detach()
        loss = loss - (ratio.clamp(max=cap) * (each.reward - sum(group) / len(group)) * new).sum() / tokens
        ratios += ratio.tolist()
    assert max(ratios) > cap, "some are cut"
    assert min(ratios) < 1 / cap, "and nothing is at the lower end"
    after.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: weight.grad for name, weight in after.named_parameters() if weight.grad is not None}
    assert wanted.keys() == watched.gradients.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(watched.gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_its_baseline_and_its_level_cannot_be_set() -> None:
    fixed = ALGORITHMS["importance_sampling"].fixed
    assert (fixed["scale_rewards"], fixed["importance_sampling_level"]) == ("none", "token")
    assert not fixed.keys() & recipes.defaults("importance_sampling").keys()
