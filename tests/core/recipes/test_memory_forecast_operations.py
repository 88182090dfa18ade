"""The arithmetic of a step beside the operations that torch itself counts while it learns."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from flywheel.core.recipes.memory_forecast import Lengths, Shapes, forecast
from tests.core.recipes.test_memory_forecast import LORA, plan

ROWS, LENGTH = 4, 64


def counted(tuning: dict[str, Any], *, is_checkpointed: bool) -> tuple[int, Shapes]:
    """Of one step on a small model, and its shapes."""
    sizes: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32}
    config = Qwen3Config(vocab_size=2048, hidden_size=128, intermediate_size=384, tie_word_embeddings=True, **sizes)
    model: Any = Qwen3ForCausalLM(config)
    tensors = {name: list(tensor.shape) for name, tensor in model.named_parameters()}
    if tuning["mode"] == "lora":
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        model.enable_input_require_grads()
    if is_checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    ids = torch.randint(0, 2048, (ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return counter.get_total_flops(), Shapes.of(config.to_dict(), tensors)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("tuning", [{"mode": "full"}, LORA], ids=["full", "lora"])
def test_checkpointing_costs_what_torch_computes_once_more(tuning: dict[str, Any]) -> None:
    (plain, shapes), (twice, _) = (counted(tuning, is_checkpointed=value) for value in (False, True))
    found = []
    for is_checkpointed in (False, True):
        asked = plan(tuning=tuning, batch_size=ROWS, micro_batch_size=ROWS, gradient_checkpointing=is_checkpointed)
        found.append(forecast(replace(asked, shapes=shapes, lengths=Lengths(LENGTH, LENGTH))).operations)
    assert found[1] / found[0] == pytest.approx(twice / plain, rel=0.03)
    assert found[0] == pytest.approx(plain, rel=0.1)
