"""What a divided run asks of TRL. That it makes the weights of one process is held in `run/test_ranks.py`."""

import pytest
import torch

from workers.trainers.run.run_failures import TrainingError
from workers.trainers.weights import sharded_weights

ZERO = {"processes": 2, "sharding": "deepspeed"}


def test_gpus_divide_gradients_and_optimizer_by_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"settings.sharding: DeepSpeed is not installed"):
        sharded_weights.fields(ZERO)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)
    with pytest.raises(TrainingError, match=r"settings.sharding: deepspeed needs GPUs, and there are none"):
        sharded_weights.fields(ZERO)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (found,) = sharded_weights.fields(ZERO).values()
    assert found["zero_optimization"] == {"stage": 2}, "each has the weights, so that one alone can evaluate"
    found["zero_optimization"]["stage"] = 3  # accelerate writes into it
    assert sharded_weights.fields(ZERO)["deepspeed"]["zero_optimization"] == {"stage": 2}


def test_a_run_from_before_there_was_a_choice_divides_nothing() -> None:
    assert sharded_weights.fields({"processes": 2}) == {}
