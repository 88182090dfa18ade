"""The forecast of a run's memory: which parts it has, which of them grows with what, and what it proposes."""

from dataclasses import replace
from typing import Any

import pytest

from flywheel.core import recipes
from flywheel.core.recipes.memory_forecast import (
    FLOAT,
    Forecast,
    Lengths,
    Plan,
    Shapes,
    UnknownShapes,
    forecast,
    proposal,
)

CONFIG = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
}
LORA = {"mode": "lora", "rank": 8, "alpha": 16}


def tensors(layers: int = 30) -> dict[str, list[int]]:
    """Of SmolLM2-135M."""
    found = {"model.embed_tokens.weight": [49_152, 576], "model.norm.weight": [576]}
    for number in range(layers):
        layer = f"model.layers.{number}."
        found |= {f"{layer}self_attn.{name}_proj.weight": [576, 576] for name in "qo"}
        found |= {f"{layer}self_attn.{name}_proj.weight": [192, 576] for name in "kv"}
        found |= {f"{layer}mlp.{name}_proj.weight": [1536, 576] for name in ("gate", "up")}
        found |= {f"{layer}mlp.down_proj.weight": [576, 1536]}
        found |= {f"{layer}{name}_layernorm.weight": [576] for name in ("input", "post_attention")}
    return found


SHAPES = Shapes.of(CONFIG, tensors())


def plan(algorithm: str = "sft", tuning: dict[str, Any] | None = None, **settings: Any) -> Plan:
    complete = recipes.validate(algorithm, {"batch_size": 8, "micro_batch_size": 4, "eval_batch_size": 8, **settings})
    return Plan(SHAPES, algorithm, complete, tuning or {"mode": "full"}, Lengths(200, 500))


def part(name: str, found: Forecast) -> int:
    return found.parts.get(name, 0)


def test_shapes_are_read_from_the_models_own_files() -> None:
    assert SHAPES.parameters == 134_515_008
    assert (SHAPES.queries, SHAPES.keys, SHAPES.is_tied, SHAPES.has_head_norms) == (576, 192, True, False)
    assert SHAPES.adapter(8) == 2_442_240, "as PEFT counts them"
    assert not SHAPES.is_mixture
    assert Shapes.of({**CONFIG, "num_local_experts": 32}, tensors()).is_mixture, "as gpt-oss names them"
    with pytest.raises(UnknownShapes, match="no vocab_size"):
        Shapes.of({**CONFIG, "vocab_size": None}, tensors())


def test_weights_gradients_and_moments_take_sixteen_bytes_a_weight() -> None:
    found = forecast(plan())
    assert found.moment == "learning"
    kept = sum(part(name, found) for name in ("weights", "gradients", "optimizer"))
    assert kept == 16 * SHAPES.parameters
    assert list(found.parts.values()) == sorted(found.parts.values(), reverse=True)
    lora = forecast(plan(tuning=LORA))
    assert part("optimizer", lora) == 8 * SHAPES.adapter(8)


def test_vllm_takes_its_share_of_a_gpu_while_it_samples() -> None:
    own = plan("grpo", LORA, rollouts="colocate", vllm_memory_share=0.5)
    on_gpu = replace(own, device="cuda", memory=80 * 2**30)
    found = forecast(on_gpu)
    assert (found.moment, part("vLLM", found)) == ("sampling", 40 * 2**30)
    assert part("activations", found) == 0, "the trainer does not learn meanwhile"
    assert forecast(replace(own, memory=80 * 2**30)).moment != "sampling", "on a CPU it is another process"
    assert forecast(replace(on_gpu, settings={**own.settings, "rollouts": "vllm"})).moment != "sampling"


def test_activations_follow_the_micro_batch_and_the_longest_row() -> None:
    two, four = (part("activations", forecast(plan(tuning=LORA, micro_batch_size=size))) for size in (2, 4))
    assert four == pytest.approx(2 * two, rel=0.01)
    long = replace(plan(tuning=LORA, micro_batch_size=2), lengths=Lengths(200, 1000))
    assert part("activations", forecast(long)) > 2 * two
    assert part("activations", forecast(plan(tuning=LORA, micro_batch_size=2, max_length=250))) < 0.6 * two
    saved = part("activations", forecast(plan(tuning=LORA, gradient_checkpointing=True)))
    assert saved < 0.3 * four


def test_a_pair_is_two_sequences_and_its_start_a_second_model() -> None:
    dpo, sft = forecast(plan("dpo")), forecast(plan())
    assert part("reference model", dpo) == FLOAT * SHAPES.parameters
    assert part("activations", dpo) == pytest.approx(2 * part("activations", sft), rel=0.01)
    assert part("reference model", forecast(plan("dpo", LORA))) == 0
    assert part("reference model", forecast(plan("grpo", num_generations=4))) == 0
    assert part("reference model", forecast(plan("grpo", num_generations=4, beta=0.1))) == FLOAT * SHAPES.parameters


def test_many_long_answers_at_once_can_be_the_peak() -> None:
    many = plan("grpo", LORA, batch_size=128, micro_batch_size=1, eval_batch_size=128, max_completion_length=8192)
    found = forecast(replace(many, lengths=Lengths(100, 100)))
    assert found.moment == "answering"
    assert next(iter(found.parts)) == "answers"


def test_least_change_that_fits_is_proposed() -> None:
    asked = plan(batch_size=16, micro_batch_size=16)
    needed = [forecast(plan(batch_size=16, micro_batch_size=size)).total for size in (16, 8, 4)]
    found = proposal(asked, int(needed[1] / 0.89))
    assert found is not None
    assert (found.settings, found.mode, found.total) == ({"micro_batch_size": 8}, "", needed[1])
    long = replace(plan(tuning=LORA, batch_size=1, micro_batch_size=1), lengths=Lengths(200, 500))
    tight = proposal(long, int(forecast(long).total / 0.91))
    assert tight is not None
    assert tight.settings == {"gradient_checkpointing": True}
    small = proposal(asked, 2 * 2**30)
    assert small is not None
    assert small.mode == "lora"
    assert proposal(asked, 2**29) is None


def test_base_in_four_bits_takes_an_eighth_of_its_linear_layers_and_is_proposed_where_lora_is_too_large() -> None:
    four = {**LORA, "mode": "qlora"}
    lora, found = forecast(plan(tuning=LORA)), forecast(plan(tuning=four))
    saved = sum(inputs * outputs for inputs, outputs in SHAPES.projections) * (4 - 0.516)
    assert part("weights", lora) - part("weights", found) == pytest.approx(saved, rel=0.001)
    assert part("optimizer", found) == part("optimizer", lora)
    asked = plan(tuning={**LORA, "rank": 4}, batch_size=1, micro_batch_size=1, gradient_checkpointing=True)
    memory = int(0.99 * forecast(asked).total)
    assert proposal(asked, memory) is None, "nothing here holds it in 4 bits"
    lighter = proposal(asked, memory, ["lora", "qlora"])
    assert lighter is not None
    assert (lighter.mode, lighter.settings) == ("qlora", {})
    assert lighter.total == forecast(plan(tuning={**four, "rank": 4}, **asked.settings)).total


def test_processes_share_a_batch_and_exchange_their_gradients() -> None:
    alone, shared = forecast(plan(micro_batch_size=0)), forecast(plan(micro_batch_size=0, processes=2))
    assert part("activations", shared) == pytest.approx(part("activations", alone) / 2, rel=0.01)
    assert part("gradients to exchange", shared) == FLOAT * SHAPES.parameters
    assert shared.operations == alone.operations / 2


def test_what_processes_divide_is_a_share_of_each_but_the_whole_weights_answer() -> None:
    asked: dict[str, Any] = {"micro_batch_size": 0, "processes": 2}
    alone, by_deepspeed = forecast(plan(**asked)), forecast(plan(**asked, sharding="deepspeed"))
    assert part("optimizer", by_deepspeed) == part("optimizer", alone) // 2
    assert part("weights", by_deepspeed) == part("weights", alone)
    assert "gradients to exchange" not in by_deepspeed.parts
    assert by_deepspeed.moment == alone.moment != "answering"
    divided = forecast(plan(**asked, sharding="fsdp2"))
    assert part("weights", divided) == part("weights", alone) // 2
    answering = forecast(plan(**asked, sharding="fsdp2", eval_batch_size=4096, max_completion_length=100_000))
    assert answering.moment == "answering"
    assert part("weights", answering) == part("weights", alone) * 3 // 2


def test_kto_keeps_two_rows_in_a_micro_batch() -> None:
    asked = plan("kto", batch_size=16, micro_batch_size=16)
    found = proposal(asked, forecast(asked).total // 2)
    assert found is not None
    recipes.validate("kto", {**asked.settings, **found.settings})
    assert found.settings.get("micro_batch_size", 2) >= 2


def test_arithmetic_of_a_step_is_six_operations_a_weight_and_token() -> None:
    found = forecast(plan(batch_size=8))
    wanted = 6 * SHAPES.parameters * 8 * 200
    assert found.operations == pytest.approx(wanted, rel=0.1)
