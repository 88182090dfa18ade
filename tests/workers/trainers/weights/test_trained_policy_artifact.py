"""What leaves a run directory: weights, configuration and tokenizer, named by their digest, and they load."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.workers.trainers.cast import QLORA, TOOLS, Directory, Make, Start, owned
from workers.trainers.run import checkpoints

LORA = {"mode": "lora", "rank": 4, "alpha": 8}


def check(run: Directory) -> None:
    final = run.path / "final"
    assert {path.suffix for path in final.iterdir()} <= {".safetensors", ".json", ".jinja", ".txt"}
    assert set(run.result["files"]) == {path.name for path in final.iterdir()}
    for name, entry in run.result["files"].items():
        content = (final / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert run.result["digest"] == checkpoints.directory_digest(final)


def test_a_full_model(make: Make, start: Start) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = make(held_out=False)
    assert start(run).wait() == 0, run.errors()
    check(run)
    AutoModelForCausalLM.from_pretrained(run.path / "final")
    assert AutoTokenizer.from_pretrained(run.path / "final").chat_template
    first = run.events("training_start")[0]
    assert first["parameters"] == first["trainable_parameters"] > 10_000
    assert first["versions"].keys() == {"torch", "transformers", "trl", "peft"}


def test_a_full_model_leaves_in_the_bits_of_its_base(make: Make, start: Start, base: Path, tmp_path: Path) -> None:
    """Twice as large, it would be compared with a base that computes in another way."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(base).save_pretrained(half)
    run = make(on=half, held_out=False)
    assert start(run).wait() == 0, run.errors()
    sizes = [(place / "model.safetensors").stat().st_size for place in (half, run.path / "final")]
    assert sizes[0] == sizes[1]
    assert AutoModelForCausalLM.from_pretrained(run.path / "final").dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_and_what_is_trained_on_it(make: Make, start: Start, base: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    first = make(name="first", tuning=LORA, held_out=False)
    assert start(first).wait() == 0, first.errors()
    check(first)
    began = first.events("training_start")[0]
    assert 0 < began["trainable_parameters"] < began["parameters"]
    final = first.path / "final"
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(first.result["files"])
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), final)

    adapter = {"path": str(final), "digest": first.result["digest"]}
    fields = {"adapter": adapter, "steps": 2, "held_out": False}
    onward = make("grpo", name="onward", tuning=LORA, settings={"beta": 0.1}, **fields)
    merged = make("dpo", name="merged", **fields)
    grouped = make("grpo", name="grouped", settings={"beta": 0.1}, **fields)
    judged = make("kto", name="judged", **fields)
    runs = (onward, merged, grouped, judged)
    assert [trainer.wait() for trainer in map(start, runs)] == [0] * 4, "".join(run.errors() for run in runs)
    for run in runs:
        check(run)
    assert "adapter_model.safetensors" in onward.result["files"]
    assert "model.safetensors" in merged.result["files"]
    # The reference is where the run began, adapter and all: at the first step nothing has moved away from it.
    assert onward.metrics()[1]["kl"] == pytest.approx(0, abs=1e-5)
    assert grouped.metrics()[1]["kl"] == pytest.approx(0, abs=1e-5)
    assert merged.metrics()[1]["margin"] == pytest.approx(0, abs=1e-5)
    assert judged.metrics()[1]["margin"] == pytest.approx(0, abs=1e-5)


@QLORA
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_adapter_learnt_on_a_base_in_four_bits_is_a_plain_one(
    algorithm: str, make: Make, start: Start, trained: Path
) -> None:
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    settings = {"gradient_checkpointing": algorithm == "sft", "learning_rate": 1e-3}
    run = make(algorithm, on=trained, tuning={**LORA, "mode": "qlora"}, settings=settings, steps=4)
    assert start(run).wait() == 0, run.errors()
    check(run)
    weights = load_file(run.path / "final" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}, "it learnt in 32 bits"
    assert any(weight.any() for name, weight in weights.items() if "lora_B" in name)
    assert "quantization" not in (run.path / "final" / "adapter_config.json").read_text()
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(trained), run.path / "final")


def test_base_in_four_bits_is_refused_by_a_trainer_that_has_none(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.trainers.run.run_failures import TrainingError
    from workers.trainers.weights import trained_policy

    run = owned(make(tuning={**LORA, "mode": "qlora"}))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(TrainingError, match=r"tuning.mode: QLoRA needs bitsandbytes, which is not installed"):
        trained_policy.load(run)


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_tools_in_the_prompt(algorithm: str, make: Make, start: Start, trained: Path, tmp_path: Path) -> None:
    """Where the agent is shown its tools, it is trained and evaluated seeing them too."""
    shown = tmp_path / "shown"
    shutil.copytree(trained, shown)
    template = (shown / "chat_template.jinja").read_text()
    (shown / "chat_template.jinja").write_text("{% if tools %}{{ tools | tojson }}{% endif %}" + template)
    run = make(algorithm, on=shown, steps=1)
    assert start(run).wait() == 0, run.errors()
    tools = sum(len(json.dumps(tool)) for tool in TOOLS)
    answered = 8 if algorithm != "dpo" else 4
    assert run.metrics()[1]["tokens"] > answered * tools / 4


def test_training_teaches(trained: Path) -> None:
    """The policy that the other tests stand on learnt its job in sixty steps of ours."""
    run = trained.parent
    losses = [row["metrics"]["loss"] for row in Directory.read(run).events("step")]
    assert losses[-1] < losses[0] / 5


def test_samples_are_of_the_same_tasks_each_time(make: Make, start: Start, trained: Path) -> None:
    run = make(on=trained, eval_every=1, steps=2)
    assert start(run).wait() == 0, run.errors()
    samples = [row["samples"] for row in run.events("samples")]
    assert len(samples) == 3
    assert len({tuple(sample["task_id"] for sample in batch) for batch in samples}) == 1
    assert samples[0][0].keys() == {"task_id", "prompt", "completion", "score", "parts", "reason"}
    assert samples[0][0]["parts"].keys() >= {"exact", "unsafe"}
