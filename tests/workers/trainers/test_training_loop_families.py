"""The families of models that teams train: each of its own architecture, in random weights, with its own chat template.

Of each: prompts tell of tools where the template can, an adapter learns by SFT and by GRPO, plain PEFT and the embedded
engine put it on the base to the same effect, and the engine answers with it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trl

from flywheel.core.envs.policy_rollouts import ChatRequest, Sampling
from flywheel.core.traces import Message, ToolCall
from tests.workers.trainers.attempts.test_live_engine import tokenizer_of
from tests.workers.trainers.cast import NAMES, TOOLS, Make, Start, sft_row

TEMPLATES = (Path(trl.__file__).parent / "chat_templates", Path(__file__).parent / "files")
LORA = {"mode": "lora", "rank": 2, "alpha": 4}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
}


@dataclass(frozen=True)
class Family:
    name: str
    model: str
    """The class of its configuration, without the ending."""
    template: str
    """The name of its file, of TRL's or of those beside this one."""
    end: str
    calls: bool = True
    """Whether the template tells of tools and writes calls."""
    config: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        files = (folder / f"{self.template}.jinja" for folder in TEMPLATES)
        return next(file.read_text() for file in files if file.is_file())


FAMILIES = [
    Family("Qwen 2.5", "Qwen2", "qwen2_5", "<|im_end|>"),
    Family("Qwen 3", "Qwen3", "qwen3", "<|im_end|>"),
    Family(
        "Qwen 3.5",
        "Qwen3_5Text",
        "qwen3_5_nothink",
        "<|im_end|>",
        config={
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
        },
    ),
    Family("Llama 3", "Llama", "llama3_1", "<|eot_id|>"),
    Family("Mistral", "Mistral", "mistral_v3", "</s>"),
    Family("Gemma", "Gemma3Text", "gemma3", "<end_of_turn>", calls=False, config={"query_pre_attn_scalar": 16}),
    Family("gpt-oss", "GptOss", "gptoss", "<|return|>", config={"num_local_experts": 2, "num_experts_per_tok": 1}),
    Family("SmolLM", "Llama", "smollm2", "<|im_end|>", calls=False),
]


def built(family: Family, path: Path) -> Path:
    import torch
    import transformers

    tokenizer = tokenizer_of(family.text, [family.end])
    config = getattr(transformers, f"{family.model}Config")(
        **TINY
        | {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
        | family.config
    )
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM
    model.from_config(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def rows(family: Family) -> list[dict[str, Any]]:
    """Answers in the family's own calls where it has some, else in our text."""
    if not family.calls:
        return [sft_row(name) for name in NAMES[:4]]
    calls = [Message("assistant", "", (ToolCall("c00000000", "remind", {"who": name}),)) for name in NAMES[:4]]
    return [sft_row(name) | {"completion": [call.to_openai()]} for name, call in zip(NAMES[:4], calls, strict=True)]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_family_learns_and_its_adapter_means_the_same_everywhere(
    family: Family, make: Make, start: Start, tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workers.engines.tool_calls import prompt_tokens
    from workers.engines.transformers_engine import TransformersEngine

    base = built(family, tmp_path / "base")
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    tool = {"type": "function", "function": TOOLS[0]}
    asked = [{"role": "user", "content": "remind Ada"}]
    prompt = prompt_tokens(tokenizer, asked, [tool])
    assert prompt == tokenizer.apply_chat_template(asked, tools=[tool], add_generation_prompt=True)["input_ids"]
    assert ("Remind a person." in tokenizer.decode(prompt)) is family.calls

    fields = {"on": base, "tuning": LORA, "held_out": False}
    settings = {"batch_size": 4, "learning_rate": 1e-2}
    runs = [
        make("sft", name="sft", train=rows(family), settings=settings, steps=2, **fields),
        make("grpo", name="grpo", settings={**settings, "max_completion_length": 8}, steps=1, **fields),
    ]
    assert [trainer.wait() for trainer in map(start, runs)] == [0, 0], "".join(run.errors() for run in runs)
    losses = [metrics["loss"] for metrics in runs[0].metrics().values()]
    assert losses[1] < losses[0]
    assert 0 < runs[1].metrics()[1]["completion_length_mean"] <= 8

    adapter = runs[0].path / "final"
    ids = torch.tensor([prompt])
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    engine = TransformersEngine(base, adapter, dtype="float32")
    with torch.no_grad():
        theirs, ours = (model(input_ids=ids).logits.log_softmax(-1) for model in (plain, engine._model))
        with plain.disable_adapter():
            start_at = plain(input_ids=ids).logits.log_softmax(-1)
    assert torch.allclose(theirs, ours, atol=1e-4), f"{(theirs - ours).abs().max()}"
    assert (theirs - start_at).abs().max() > 1e-2, "the adapter does something"
    tools = tuple(TOOLS)
    request = ChatRequest((Message("user", "remind Ada"),), Sampling(0.0, max_tokens=4), tools=tools, seed=1)
    (answer,) = engine.chat([request])
    assert answer.error == ""
    assert answer.tokens_out in range(1, 5)
    engine.close()
