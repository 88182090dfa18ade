"""The forecast of memory and time beside real runs: `python -m tests.bench_forecast [--only "135M sft"] [--steps 2]`.

Each case is a real run of a few steps without held-out tasks, by the trainer's own command, on the reference policy and
on a model of random weights in the shape of SmolLM2-135M. Its forecast is made beforehand, of the model's files, the
settings and the rows' lengths in tokens. Beside the whole process stands what is left without the libraries, which is
the same in every run and flatters the ratio of small models. The peaks are the process's on a CPU.

The seconds of a step are forecast as the product forecasts those of another batch: by its arithmetic, at the speed of a
run before, here the first of the same model, algorithm and tuning. So the first has no such forecast.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from flywheel.core import recipes
from flywheel.core.recipes import memory_forecast
from tests.workers.trainers.cast import ROWS, Directory, task

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "workers" / "reference" / "policy"
WANTED = 0.25
LORA = {"mode": "lora", "rank": 8, "alpha": 16}
QLORA = {**LORA, "mode": "qlora"}
FULL = {"mode": "full"}


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    algorithm: str
    settings: dict[str, Any]
    tuning: dict[str, Any] = field(default_factory=lambda: FULL)
    words: int = 40
    """Of a request: the name in it, repeated."""


CASES = [
    Case("SFT", "reference", "sft", {"batch_size": 32}),
    Case("SFT, batch 128", "reference", "sft", {"batch_size": 128}),
    Case("SFT, checkpointing", "reference", "sft", {"batch_size": 128, "gradient_checkpointing": True}),
    Case("SFT, LoRA", "reference", "sft", {"batch_size": 128}, LORA),
    Case("DPO", "reference", "dpo", {"batch_size": 64}),
    Case("KTO", "reference", "kto", {"batch_size": 64}),
    Case("GRPO", "reference", "grpo", {"batch_size": 64}, words=10),
    Case("PPO", "reference", "ppo", {"batch_size": 64}, words=10),
    Case("SFT", "135M", "sft", {"batch_size": 2}, words=20),
    Case("SFT, LoRA", "135M", "sft", {"batch_size": 4}, LORA, words=20),
    Case("SFT, QLoRA", "135M", "sft", {"batch_size": 4}, QLORA, words=20),
    Case("GRPO, QLoRA", "135M", "grpo", {"batch_size": 4, "num_generations": 4}, QLORA, words=20),
    Case("DPO, LoRA", "135M", "dpo", {"batch_size": 2}, LORA, words=20),
    Case("GRPO, LoRA", "135M", "grpo", {"batch_size": 4, "num_generations": 4}, LORA, words=20),
    Case("SFT, two micro-batches", "135M", "sft", {"batch_size": 4, "micro_batch_size": 2}, words=20),
    Case("SFT, LoRA, checkpointing", "135M", "sft", {"batch_size": 4, "gradient_checkpointing": True}, LORA, words=20),
    Case("PPO, LoRA", "135M", "ppo", {"batch_size": 4, "num_generations": 4}, LORA, words=20),
    Case("KTO", "135M", "kto", {"batch_size": 2}, words=20),
    Case("DPO", "135M", "dpo", {"batch_size": 2}, words=20),
    Case("GRPO", "135M", "grpo", {"batch_size": 4, "num_generations": 4}, words=20),
]
NAMES = ["Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_forecast", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose model and algorithm begin so, such as '135M sft'")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    found = rows(options.only, options.steps)
    for name in ("ratio", "seconds_ratio"):
        known = [row[name] for row in found if row[name] is not None]
        within = sum(abs(ratio - 1) <= WANTED for ratio in known)
        what = "peaks" if name == "ratio" else "times of a step"
        sys.stdout.write(f"{within} of {len(known)} {what} within {WANTED:.0%}\n")


def rows(only: str, steps: int) -> list[dict[str, Any]]:
    """Measure the cases whose model and algorithm begin so, and write a line for each."""
    with tempfile.TemporaryDirectory(prefix="flywheel-forecast-") as scratch:
        chosen = [case for case in CASES if f"{case.model} {case.algorithm}".startswith(only)]
        chosen = [case for case in chosen if not recipes.lacking(case.tuning["mode"])]
        bases = {"reference": REFERENCE}
        if any(case.model == "135M" for case in chosen):
            bases["135M"] = large(Path(scratch) / "base")
        found: list[dict[str, Any]] = []
        for number, case in enumerate(chosen):
            row = measure(case, bases[case.model], Path(scratch) / f"run-{number}", steps)
            first = next((each for each in found if each["kind"] == row["kind"]), None)
            found.append(row | {"seconds_ratio": expected_seconds(row, first) / row["seconds"] if first else None})
            sys.stdout.write(line(found[-1]) + "\n")
            sys.stdout.flush()
    return found


def expected_seconds(row: dict[str, Any], earlier: dict[str, Any]) -> float:
    """Seconds of a step of the row's run, by its arithmetic at the speed of the earlier one."""
    speed = earlier["forecast"]["operations"] / earlier["seconds"]
    return float(row["forecast"]["operations"] / speed)


def large(path: Path) -> Path:
    """A model of random weights in the shape of SmolLM2-135M, with the reference policy's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def measure(case: Case, base: Path, place: Path, steps: int) -> dict[str, Any]:
    """Forecast a run, carry it out, and return both in bytes."""
    run = Directory(
        place,
        base,
        case.algorithm,
        train=rows_of(case),
        names=NAMES,
        held_out=False,
        steps=steps,
    )
    answer = 96 if case.model == "reference" else 16
    settings = {"steps": steps, "max_completion_length": answer, "eval_batch_size": 32}
    run.spec |= {"tuning": case.tuning, "settings": {**settings, **case.settings}}
    run.save()
    from workers.trainers.run import run_spec

    complete = run_spec.read(place, run.trainer).settings
    plan = memory_forecast.Plan(
        shapes=shapes(base),
        algorithm=case.algorithm,
        settings=complete,
        tuning=case.tuning,
        lengths=lengths(run, base),
        held_out=0,
    )
    found = memory_forecast.forecast(plan)
    environ = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    with (place / "trainer.log").open("wb") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", f"workers.trainers.{run.trainer}", str(place)],
            cwd=ROOT,
            env=environ,
            stdout=log,
            stderr=log,
        )
        # Checkpoint and final weights come behind the peak, and take their time on a busy disk.
        while trainer.poll() is None and steps not in run.metrics():
            time.sleep(0.5)
        trainer.kill()
        trainer.wait()
    metrics = run.metrics()
    if steps not in metrics:
        raise SystemExit((place / "trainer.log").read_text()[-3000:])
    peak = max(each["peak_memory"] for each in metrics.values())
    return {
        "kind": (case.model, case.algorithm, case.tuning["mode"]),
        "model": case.model,
        "name": case.name,
        "forecast": found.to_json(),
        "peak": peak,
        "ratio": found.total / peak,
        "without": (found.total - memory_forecast.PROCESS) / max(1, peak - memory_forecast.PROCESS),
        "seconds": metrics[steps]["step_time_s"],
    }


def rows_of(case: Case) -> list[dict[str, Any]]:
    """Rows enough for a batch, each with a request of so many words."""
    make: Any = ROWS.get(case.algorithm, task)
    count = max(len(NAMES), case.settings["batch_size"])
    rows = []
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        row = make(name, number)
        asked = request(name, case.words)
        row["prompt"] = [{"role": "user", "content": asked}] if isinstance(row["prompt"], list) else asked
        rows.append(row)
    return rows


def request(name: str, words: int) -> str:
    return " ".join(["remind", *[name] * words])


def shapes(base: Path) -> memory_forecast.Shapes:
    content = (base / "model.safetensors").read_bytes()[: 2**20]
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return memory_forecast.Shapes.of(json.loads((base / "config.json").read_text()), tensors)


def lengths(run: Directory, base: Path) -> memory_forecast.Lengths:
    """Tokens of the rows as the trainer makes them."""
    from transformers import AutoTokenizer

    from flywheel.core.envs import Task
    from workers.engines.tool_calls import prompt_tokens
    from workers.trainers.run import run_spec

    spec = run_spec.read(run.path, run.trainer)
    env, data = run_spec.opened(spec)
    tokenizer = AutoTokenizer.from_pretrained(base)
    found = []
    for row in data.train:
        if spec.recipe.data == "tasks":
            prompt = [message.to_openai() for message in env.reset(Task.from_json(row), 1)]
        else:
            prompt = row["prompt"]
        ids = prompt_tokens(tokenizer, prompt, run_spec.tools_of(env, ""))
        answers = [row[name] for name in ("completion", "chosen", "rejected") if name in row]
        more = max((len(tokenizer.encode(answer[0]["content"])) + 1 for answer in answers), default=0)
        found.append(len(ids) + more)
    return memory_forecast.Lengths(round(median(found)), max(found))


def line(row: dict[str, Any]) -> str:
    parts = ", ".join(f"{part['name']} {part['bytes'] / 2**20:.0f}" for part in row["forecast"]["parts"])
    seconds = f"{row['seconds']:.1f} s a step"
    if row["seconds_ratio"] is not None:
        seconds += f", forecast {row['seconds_ratio']:.2f} times that"
    return (
        f"{row['model']:<10} {row['name']:<24} {row['forecast']['total'] / 2**20:6.0f} MiB forecast, "
        f"{row['peak'] / 2**20:6.0f} measured, {row['ratio']:.2f}, {row['without']:.2f} without the libraries; "
        f"{seconds}; {row['forecast']['moment']}: {parts}"
    )


if __name__ == "__main__":
    main()
