"""Training on a GPU, beside bare TRL, in under ten minutes: `python -m tests.gpu [--cpu] [--only WORD] [--json]`.

Each row is a real run of a few steps by the trainer's own command, on the reference policy and on random weights in the
shape of Qwen2.5-0.5B, and a bare TRL script of the same configuration beside it. The ratio is of tokens a second,
without the first step. What a row has made is loaded into plain PEFT, and into the vLLM server that samples the later
rows: it shares the GPU with the trainer. The table replaces the one in docs/design/gpu.md.

Without a GPU it says so and ends with 2. `--cpu` rehearses every line that can run without one, on a model of a few
thousand weights in place of the large one, and writes no table. Rows whose parts are not installed are left out and
named: QLoRA without bitsandbytes, vLLM without `.venv-serve`.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flywheel.core import recipes
from tests.workers.trainers.cast import NAMES, Directory, sft_row, task

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "gpu.md"
BEGIN, END = "<!-- table: python -m tests.gpu -->\n", "\n<!-- end of table -->"
REFERENCE = ROOT / "workers" / "reference" / "policy"
NO_GPU = 2
BUDGET_S = {True: 3600.0, False: 570.0}
"""In all, by whether it is a rehearsal."""
PATIENCE_S = 0.25
"""Share of it for one run."""
STEPS = 6
LORA = {"mode": "lora", "rank": 16, "alpha": 32}
SERVED = {"rollouts": recipes.VLLM}
OWN = {"rollouts": recipes.COLOCATE}
LARGE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
"""The shape of Qwen2.5-0.5B."""
SMALL = LARGE | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: str
    mode: str = "lora"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        """Whether a server that stays samples it, beside the trainer."""
        return self.settings.get("rollouts") == recipes.VLLM

    @property
    def lacks(self) -> str:
        """The part that is not installed here; empty where all are."""
        if recipes.lacking(self.mode):
            return "bitsandbytes"
        return "vLLM" if "rollouts" in self.settings and recipes.lacking(recipes.COLOCATE) else ""


CASES = [
    Case("SFT, LoRA", "sft"),
    Case("SFT, QLoRA", "sft", "qlora"),
    Case("GRPO, LoRA", "grpo"),
    Case("GRPO, QLoRA", "grpo", "qlora"),
    Case("GRPO, vLLM", "grpo", settings=SERVED),
    Case("GRPO, own vLLM that sleeps", "grpo", settings=OWN),
    Case("GRPO, vLLM, one step off", "grpo", settings=SERVED | {"execution": "one_step_off_async"}),
    Case("GRPO, vLLM, fully async", "grpo", settings=SERVED | {"execution": "fully_async", "max_staleness": 2}),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="rehearse without a GPU; writes no table")
    parser.add_argument("--only", default="", help="rows whose model and name have this in them")
    parser.add_argument("--json", action="store_true", help="the last line is the result as JSON")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(json.loads(Path(options.bare).read_text()))
        return
    import torch

    if not options.cpu and not torch.cuda.is_available():
        sys.stderr.write("no GPU is here, so nothing was measured; --cpu rehearses without one\n")
        raise SystemExit(NO_GPU)
    device = "CPU" if options.cpu else torch.cuda.get_device_name(0)
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="flywheel-gpu-") as scratch:
        rows, left_out = measure(Path(scratch), options, time.monotonic() + BUDGET_S[options.cpu])
    found = {"device": device, "versions": versions(), "rows": rows, "left_out": left_out}
    sys.stdout.write(text := table(found))
    if not options.cpu and not options.only:
        page = PAGE.read_text()
        PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + text + page[page.index(END) :])
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
    if any(row["problem"] for row in rows):
        raise SystemExit(1)


def measure(scratch: Path, options: argparse.Namespace, until: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Run every case that is asked for; return its rows, and which were left out and why."""
    rows, left_out = [], []
    bases = {"0.5 B": random_base(scratch / "base", SMALL if options.cpu else LARGE), "reference": REFERENCE}
    for model, base in bases.items():
        asked = [case for case in CASES if options.only.lower() in f"{model} {case.name}".lower()]
        left_out += [f"{model}, {case.name}: {case.lacks} is not installed" for case in asked if case.lacks]
        can = [case for case in asked if not case.lacks]
        place = scratch / model.replace(" ", "")
        own = [case for case in can if not case.is_served]
        rows += [row_of(model, case, base, place / str(CASES.index(case)), options.cpu, until) for case in own]
        if not any(case.is_served for case in can):
            continue
        with served(base, place, is_cpu=options.cpu, until=until) as (url, name):
            for case in can:
                if case.is_served:
                    run = place / str(CASES.index(case))
                    rows.append(row_of(model, case, base, run, options.cpu, until, url, name))
            for row in rows:
                if row["model"] == model and not row["problem"]:
                    row["in_vllm"], row["problem"] = loads_in_vllm(url, row["final"])
    return rows, left_out


def row_of(
    model: str, case: Case, base: Path, place: Path, is_cpu: bool, until: float, url: str = "", served_base: str = ""
) -> dict[str, Any]:
    """Run a case and its bare twin."""
    size = sizes(case, is_cpu or model == "reference")
    names = [NAMES[number % len(NAMES)] for number in range(size["batch_size"])]
    words = 4 if is_cpu else 200 if model != "reference" else 30
    rows = [
        long(sft_row(name, number) if case.algorithm == "sft" else task(name, number), words)
        for number, name in enumerate(names)
    ]
    run = Directory(place / "run", base, case.algorithm, train=rows, held_out=False, checkpoint_every=10_000)
    run.spec["settings"] = {"steps": STEPS, "learning_rate": 1e-5, **size, **case.settings}
    run.spec["tuning"] = LORA | {"mode": case.mode}
    if "rollouts" in case.settings:
        run.spec["served_base"] = served_base or "base-of-its-own"
    run.save()
    environ = os.environ | ({"FLYWHEEL_VLLM_URL": url} if url else {})
    found: dict[str, Any] = {"model": model, "name": case.name, "final": str(run.path / "final"), "in_vllm": None}
    problem = carry_out(
        [f"workers.trainers.{run.trainer}", str(run.path)], environ, place / "trainer.log", until, is_cpu
    )
    ours = speed(run.metrics()) if not problem else None
    about = {
        "base": str(base),
        "rows": rows,
        "size": size,
        "mode": case.mode,
        "algorithm": case.algorithm,
        "cpu": is_cpu,
    }
    (place / "bare.json").write_text(json.dumps(about | {"out": str(place / "bare")}))
    bare_problem = carry_out(
        ["tests.gpu", "--bare", str(place / "bare.json")], dict(os.environ), place / "bare.log", until, is_cpu
    )
    told = place / "bare" / "steps.json"
    theirs = speed({int(step): row for step, row in json.loads(told.read_text()).items()}) if told.exists() else None
    if not problem:
        problem = loads_in_peft(base, run.path / "final")
    found |= {"ours": ours, "bare": theirs, "ratio": ours / theirs if ours and theirs else None}
    found["problem"] = problem or (f"bare TRL: {bare_problem}" if bare_problem else "")
    sys.stderr.write(f"{model}, {case.name}: {found['problem'] or 'done'}\n")
    return found


def sizes(case: Case, is_small: bool) -> dict[str, Any]:
    """Batch and lengths."""
    if case.algorithm == "sft":
        return {"batch_size": 8 if is_small else 32, "micro_batch_size": 8, "max_length": 1024}
    size = {"batch_size": 8 if is_small else 32, "micro_batch_size": 8, "num_generations": 4}
    return size | {"max_completion_length": 16 if is_small else 128}


def long(row: dict[str, Any], words: int) -> dict[str, Any]:
    """The row with a request of so many words."""
    if isinstance(row["prompt"], str):
        return row | {"prompt": " ".join([row["prompt"]] * words)}
    return row | {"prompt": [{"role": "user", "content": " ".join([row["prompt"][0]["content"]] * words)}]}


def random_base(path: Path, shape: dict[str, Any]) -> Path:
    """Random weights with the reference policy's tokenizer, kept in 16 bits."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(REFERENCE)
    config = Qwen2Config(
        **shape | {"vocab_size": max(shape["vocab_size"], len(tokenizer))},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def carry_out(words: Sequence[str], environ: dict[str, str], log: Path, until: float, is_cpu: bool) -> str:
    """Run one of our modules; return why it failed, empty if it did not."""
    patience = min(PATIENCE_S * BUDGET_S[is_cpu], until - time.monotonic())
    if patience <= 0:
        return "no time was left"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=environ,
                stdout=file,
                stderr=file,
                timeout=patience,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"not done in {patience:.0f} s"
    lines = log.read_text(errors="replace").strip().splitlines()
    return (lines or ["it said nothing"])[-1][:300] if done.returncode else ""


def speed(steps: dict[int, dict[str, float]]) -> float:
    """Tokens a second without the first step, in which kernels are chosen."""
    first, last = min(steps), max(steps)
    seconds = sum(row["step_time_s"] for step, row in steps.items() if step > first)
    return float((steps[last]["tokens"] - steps[first]["tokens"]) / seconds)


def bare(about: dict[str, Any]) -> None:
    """TRL alone, of the same configuration: its own loop, its own generation, or vLLM in its process where a GPU and
    vLLM are in this environment."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback

    steps: dict[int, dict[str, float]] = {}

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "num_tokens" in logs and "loss" in logs:
                seconds = time.perf_counter() - self.began
                steps[state.global_step] = {"step_time_s": seconds, "tokens": logs["num_tokens"]}

    cuda, size = not about["cpu"], about["size"]
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    kind: Any = BitsAndBytesConfig
    quantised = kind(**four, bnb_4bit_compute_dtype=torch.bfloat16) if about["mode"] == "qlora" else None
    dtype = torch.bfloat16 if cuda or quantised else torch.float32
    model = AutoModelForCausalLM.from_pretrained(about["base"], dtype=dtype, quantization_config=quantised)
    shared: dict[str, Any] = {
        "output_dir": about["out"],
        "max_steps": STEPS,
        "per_device_train_batch_size": size["micro_batch_size"],
        "gradient_accumulation_steps": size["batch_size"] // size["micro_batch_size"],
        "learning_rate": 1e-5,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not cuda,
        "bf16": cuda,
    }
    common: dict[str, Any] = {
        "model": model,
        "processing_class": AutoTokenizer.from_pretrained(about["base"]),
        "callbacks": [Clock()],
    }
    common["peft_config"] = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer: Any
    if about["algorithm"] == "sft":
        from trl.trainer.sft_config import SFTConfig
        from trl.trainer.sft_trainer import SFTTrainer

        rows = [{name: row[name] for name in ("prompt", "completion")} for row in about["rows"]]
        args: Any = SFTConfig(**shared, max_length=size["max_length"])
        trainer = SFTTrainer(args=args, train_dataset=Dataset.from_list(rows), **common)
    else:
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        own: dict[str, Any] = {
            "num_generations": size["num_generations"],
            "max_completion_length": size["max_completion_length"],
        }
        if cuda and importlib.util.find_spec("vllm"):
            own |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}

        def halves(completions: list[Any], **_: Any) -> list[float | None]:
            return [float(place % 2) for place in range(len(completions))]

        prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}]} for row in about["rows"]]
        args = GRPOConfig(**shared, **own)
        trainer = GRPOTrainer(
            reward_funcs=halves,
            args=args,
            train_dataset=Dataset.from_list(prompts),
            **common,
        )
    trainer.create_model_card = lambda *_, **__: None
    trainer.train()
    Path(about["out"]).mkdir(exist_ok=True)
    (Path(about["out"]) / "steps.json").write_text(json.dumps(steps))


@contextmanager
def served(base: Path, place: Path, *, is_cpu: bool, until: float) -> Iterator[tuple[str, str]]:
    """A vLLM server of the base that shares the device: its address, and the base's name there."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    os.environ.setdefault("FLYWHEEL_HOME", str(place))
    import django

    django.setup()
    from flywheel.agents.artifacts import digest_of
    from flywheel.evals.serving.loaded_adapters import LOADED, SLOTS, base_name
    from workers.processes import vllm_process

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    name = base_name(digest_of(base))
    place.mkdir(parents=True, exist_ok=True)
    words = vllm_process.command(base, name, url, rank=16, slots=SLOTS, kept=LOADED)
    words += [] if is_cpu else ["--gpu-memory-utilization", "0.4"]
    with (
        (place / "vllm.log").open("wb") as log,
        vllm_process.started(words, vllm_process.environment(base), log) as server,
    ):
        while not answers(url):
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"vLLM did not start: {(place / 'vllm.log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.5)
        yield url, name


def answers(url: str) -> bool:
    with suppress(OSError):
        asked("GET", f"{url}/health")
        return True
    return False


def asked(method: str, url: str, body: Any = None) -> bytes:
    """A server of this machine, past any proxy. Raises OSError."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    with direct.open(request, timeout=60) as answer:
        found: bytes = answer.read()
    return found


def loads_in_peft(base: Path, adapter: Path) -> str:
    """Put the adapter on the base by plain PEFT; return why it cannot be, empty if it can."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    try:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
        with torch.no_grad():
            is_finite = bool(model(input_ids=torch.tensor([[1, 2, 3]])).logits.isfinite().all())
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        return f"PEFT: {error}"[:300]
    return "" if is_finite else "PEFT: its answers are no numbers"


def loads_in_vllm(url: str, adapter: str) -> tuple[bool, str]:
    """Have the server load an adapter and answer with it: whether it did, and why not."""
    try:
        asked("POST", f"{url}/v1/load_lora_adapter", {"lora_name": "checked", "lora_path": adapter})
        asked("POST", f"{url}/v1/completions", {"model": "checked", "prompt": [1, 2, 3], "max_tokens": 4})
        asked("POST", f"{url}/v1/unload_lora_adapter", {"lora_name": "checked"})
    except OSError as error:
        return False, f"vLLM: {error}"
    return True, ""


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "trl", "peft", "bitsandbytes"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['device']}; {', '.join(f'{name} {number}' for name, number in found['versions'].items())}",
        "",
        "| model | run | tokens/s | bare TRL | ratio | adapter in PEFT | in vLLM | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        numbers = [f"{row[name]:,.0f}" if row[name] else "–" for name in ("ours", "bare")]
        ratio = f"{row['ratio']:.2f}" if row["ratio"] else "–"
        in_peft = "no" if row["problem"].startswith("PEFT") else "yes" if row["ours"] else "–"
        in_vllm = {None: "–", True: "yes", False: "no"}[row["in_vllm"]]
        cells = [row["model"], row["name"], *numbers, ratio, in_peft, in_vllm, row["problem"]]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"Left out: {words}." for words in found["left_out"])]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    main()
