"""A merge in the base's 16 bits is made in 32, says what the type rounds away, and is published only if it answers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.trainers.run.run_failures import TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def adapted(base: Path, place: Path, scale: float, **about: Any) -> Path:
    """An adapter on the base whose changes have this size."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    fields: dict[str, Any] = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
    tuned = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, **{**fields, **about}))
    with torch.no_grad():
        for name, weights in tuned.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name:
                weights.mul_(scale)
    tuned.save_pretrained(str(place))
    return place


def merged(base: Path, adapter: Path, place: Path, dtype: str = "base") -> dict[str, Any]:
    from workers.trainers.weights import whole_model

    place.mkdir()
    (place / "spec.json").write_text(json.dumps({"base": str(base), "adapter": str(adapter), "dtype": dtype}))
    told: dict[str, Any] = {}
    run: Any = SimpleNamespace(path=place, work=place / "work", seconds=0.0, write_result=told.update)
    whole_model.merge(run)
    return told


def test_it_is_summed_in_32_bits_and_saved_in_the_bases(base: Path, tmp_path: Path) -> None:
    """To the last bit what rounding the exact sum gives; a light adapter is mostly rounded away, which is told."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    adapter = adapted(base, tmp_path / "adapter", 1e-4)
    found = merged(half, adapter, tmp_path / "a")
    assert found["status"] == "completed"
    assert 0.5 < found["lost"] < 1
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "a" / "final")
    assert made.dtype == torch.bfloat16
    exact = AutoModelForCausalLM.from_pretrained(half, dtype=torch.float32)
    wanted = PeftModel.from_pretrained(exact, adapter).merge_and_unload().to(torch.bfloat16).state_dict()
    assert all(torch.equal(weights, wanted[name]) for name, weights in made.state_dict().items())
    files = {path.name for path in half.iterdir()}
    assert files <= {path.name for path in (tmp_path / "a" / "final").iterdir()}, "the tokenizer comes along"
    found = merged(half, adapter, tmp_path / "b", "float32")
    assert found["lost"] == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "b" / "final").dtype == torch.float32


@pytest.mark.filterwarnings(
    "ignore:Setting `save_embedding_layers`", "ignore:Model (has|with) `tie_word_embeddings=True`"
)
def test_an_adapter_of_a_shared_output_layer_is_not_published(base: Path, tmp_path: Path) -> None:
    """Merged, it would change the embeddings too: another model than the one that was evaluated."""
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(base).config.tie_word_embeddings
    adapter = adapted(base, tmp_path / "adapter", 1.0, target_modules=["lm_head"])
    with pytest.raises(TrainingError, match="merged, the model answers otherwise"):
        merged(base, adapter, tmp_path / "run")
    assert not (tmp_path / "run" / "final").exists()
