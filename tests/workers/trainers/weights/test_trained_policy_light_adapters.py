"""Adapters whose entries lie below the rounding of a base in 16 bits: whoever reads them must not lose them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from tests.workers.trainers.cast import Make, owned
from workers.trainers.run import checkpoints
from workers.trainers.weights import reward_weights, trained_policy

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated:FutureWarning")
IDS = torch.tensor([[5, 9, 4, 7, 6]])


@pytest.fixture
def light(base: Path, tmp_path: Path) -> Path:
    """An adapter that moves no weight of 16 bits by half of its last place."""
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, lora_alpha=2, target_modules="all-linear")
    )
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=2e-5)
    model.save_pretrained(str(tmp_path / "light"))
    return tmp_path / "light"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not learn is kept in 16 bits, as it is on a GPU."""
    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda path, **of: load(path, **(of | {"dtype": torch.bfloat16}))
    )


def base_of(path: Path) -> Any:
    """Its weights rounded to 16 bits, in 32."""
    base: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    return base.float()


def source(path: Path) -> dict[str, str]:
    return {"path": str(path), "digest": checkpoints.directory_digest(path)}


@pytest.mark.usefixtures("on_gpu")
def test_a_teacher_says_what_its_light_adapter_makes_it_say(make: Make, base: Path, light: Path) -> None:
    directory = make("distillation", teacher=base, held_out=False)
    directory.spec["teacher"]["adapter"] = source(light)
    directory.save()
    found = trained_policy.teacher(owned(directory)).float()
    with torch.no_grad():
        plain = base_of(base)(IDS).logits
        wanted = PeftModel.from_pretrained(base_of(base), light)(IDS).logits
        moved, wrong = (wanted - plain).norm(), (found(IDS).logits - wanted).norm()
    assert wrong < 0.05 * moved
    assert not any(weight.requires_grad for weight in found.parameters())


@pytest.mark.usefixtures("on_gpu")
def test_a_reward_model_begins_with_its_policys_light_adapter(make: Make, base: Path, light: Path) -> None:
    tuning = {"mode": "lora", "rank": 2, "alpha": 2}
    run = owned(make("reward_model", held_out=False, tuning=tuning, adapter=source(light)))
    found = reward_weights.scoring(run, trained_policy.load(run)).model
    with torch.no_grad():
        plain = base_of(base).base_model(IDS).last_hidden_state
        merged = PeftModel.from_pretrained(base_of(base), light).merge_and_unload()
        wanted = merged.base_model(IDS).last_hidden_state
        moved, wrong = (wanted - plain).norm(), (found.model(IDS).last_hidden_state - wanted).norm()
    assert wrong < 0.05 * moved
