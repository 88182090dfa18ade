"""Run directories for tests, what is read back from them, and the process that a test trainer is."""

import hashlib
import importlib
import json
import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.core import recipes
from flywheel.core.traces.tooling import call_text
from tests.waiting import PATIENCE_S, wait_for
from workers.trainers.run import checkpoints

TOOLS: list[dict[str, Any]] = [
    {
        "name": "remind",
        "description": "Remind a person.",
        "parameters": {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]},
    },
    {
        "name": "erase",
        "description": "Erase a person's data.",
        "parameters": {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]},
        "x-unsafe": True,
    },
]
NAMES = ["Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal", "Ida", "Jo", "Kit", "Lu"]
QLORA = pytest.mark.skipif(bool(recipes.lacking("qlora")), reason="bitsandbytes is not installed")
"""Of tests that train on a base in 4 bits; run with flywheel[qlora] installed."""
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def task(name: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    row = {
        "id": f"{name}-{number}",
        "prompt": f"remind {name}",
        "target": {"tool": "remind", "arguments": {"who": name}},
        "state": {},
        "cluster": f"c-{name}",
        "slice": "",
    }
    return row | fields


def sft_row(name: str, number: int = 0) -> dict[str, Any]:
    answer = call_text("remind", {"who": name})
    return {
        "task_id": f"{name}-{number}",
        "prompt": [{"role": "user", "content": f"remind {name}"}],
        "completion": [{"role": "assistant", "content": answer}],
    }


def pair_row(name: str, number: int = 0) -> dict[str, Any]:
    row = sft_row(name, number)
    rejected = [{"role": "assistant", "content": call_text("erase", {"who": name})}]
    return {"task_id": row["task_id"], "prompt": row["prompt"], "chosen": row["completion"], "rejected": rejected}


def thumb_row(name: str, number: int = 0) -> dict[str, Any]:
    """A good answer to every other name, a bad one to the others."""
    pair, label = pair_row(name, number), NAMES.index(name) % 2 == 0
    completion = pair["chosen" if label else "rejected"]
    return {"task_id": pair["task_id"], "prompt": pair["prompt"], "completion": completion, "label": label}


def scored_row(name: str, number: int = 0) -> dict[str, Any]:
    """The same answers as attempts of one group."""
    row = thumb_row(name, number)
    return row | {"score": float(row.pop("label")), "group": "all", "attempt": row["task_id"]}


ROWS: dict[str, Callable[[str], dict[str, Any]]] = {
    "sft": sft_row,
    "dpo": pair_row,
    "kto": thumb_row,
    "awr": scored_row,
    "reward_model": pair_row,
}
TRAINER = {"sft": "sft", "dpo": "dpo", "kto": "kto", "awr": "sft", "reward_model": "reward_model"}


class Directory:
    """A run directory and what is read back from it."""

    def __init__(
        self,
        path: Path,
        base: Path,
        algorithm: str = "sft",
        *,
        names: Sequence[str] = NAMES[:8],
        train: Sequence[dict[str, Any]] | None = None,
        held_out: bool | Sequence[dict[str, Any]] = True,
        validation: Sequence[dict[str, Any]] = (),
        replay: Sequence[dict[str, Any]] = (),
        steps: int = 3,
        settings: dict[str, Any] | None = None,
        eval_every: int = 100,
        checkpoint_every: int = 100,
        teacher: Path | None = None,
        **fields: Any,
    ) -> None:
        self.path = path
        self.trainer = TRAINER.get(algorithm, "grpo")
        path.mkdir(parents=True)
        rows = list(train) if train is not None else [ROWS.get(algorithm, task)(name) for name in names]
        asked = [task(name) for name in NAMES[8:]] if held_out is True else list(held_out or ())
        sizes: dict[str, dict[str, Any]] = {
            "sft": {"batch_size": 8, "learning_rate": 5e-3},
            "dpo": {"batch_size": 4},
            "kto": {"batch_size": 4},
            "awr": {"batch_size": 4, "learning_rate": 5e-3},
            "reward_model": {"batch_size": 4},
        }
        chosen = sizes.get(algorithm, {"batch_size": 8, "num_generations": 4, "max_completion_length": 24})
        self.spec: dict[str, Any] = {
            "run": "r-1",
            "algorithm": algorithm,
            "seed": 1,
            "base": {"path": str(base), "digest": checkpoints.directory_digest(base)},
            "adapter": None,
            "environment": {"kind": "tool_call", "config": {"system_prompt": "", "tools": TOOLS}, "verifier": {}},
            "tuning": {"mode": "full"},
            "settings": {
                "steps": steps,
                **({} if algorithm == "reward_model" else {"max_completion_length": 24}),
                "eval_batch_size": 8,
                **chosen,
                **(settings or {}),
            },
            "eval": {"every": eval_every, "limit": 64},
            "checkpoint_every": checkpoint_every,
            "data": {
                "train": self.write("data/train.jsonl", rows),
                "held_out": self.write("data/held_out.jsonl", asked) if asked else None,
            },
            **fields,
        }
        if algorithm == "distillation" and teacher is not None:
            weights = {"path": str(teacher), "digest": checkpoints.directory_digest(teacher)}
            self.spec["teacher"] = {"base": weights, "adapter": None}
        if algorithm == "reward_model":
            self.spec["validation"] = {"every": eval_every, "limit": 64}
        if replay:
            self.spec["data"]["replay"] = self.write("data/replay.jsonl", replay)
        if validation:
            self.spec["data"]["validation"] = self.write("data/validation.jsonl", validation)
            self.spec["validation"] = {"every": eval_every, "limit": 64}
            self.spec["settings"]["validation_share"] = 0.2
        self.save()

    @classmethod
    def read(cls, path: Path) -> "Directory":
        """A run that is there already."""
        run = cls.__new__(cls)
        run.path, run.spec = path, json.loads((path / "spec.json").read_text())
        return run

    def write(self, name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_bytes(content)
        return {"path": name, "sha256": hashlib.sha256(content).hexdigest(), "rows": len(rows)}

    def save(self) -> None:
        (self.path / "spec.json").write_text(json.dumps(self.spec))

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        path = self.path / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        rows = [json.loads(line, parse_constant=_refuse) for line in lines]
        return [row for row in rows if not kind or row["event"] == kind]

    def metrics(self) -> dict[int, dict[str, float]]:
        """By step; where a resume repeated a step, the last."""
        return {row["step"]: row["metrics"] for row in self.events("step")}

    @property
    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "result.json").read_text()))

    @property
    def steps_kept(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in (self.path / "checkpoints").glob("step-*"))

    def errors(self) -> str:
        path = self.path / "stderr"
        return path.read_text()[-4000:] if path.exists() else ""

    def until(self, found: Callable[["Directory"], bool]) -> None:
        wait_for(lambda: found(self), "the run comes to it", self.errors)


def owned(directory: Directory) -> Any:
    """The run of a directory without its process, for a test that is the trainer; what it tells is in `events`."""
    from workers.trainers.run import run_spec

    events: list[dict[str, Any]] = []
    told = {"event": lambda event, **fields: events.append({"event": event, **fields}), "events": events}
    spec = run_spec.read(directory.path, directory.trainer)
    return SimpleNamespace(path=directory.path, work=directory.path / "work", spec=spec, **told)


class Trainer:
    """A trainer that was started."""

    def __init__(self, process: Any) -> None:
        self.process = process

    def wait(self) -> int:
        """Its exit code, negative when a signal ended it. Patient for its whole work."""
        self.process.join(5 * PATIENCE_S)
        assert self.process.exitcode is not None, "still running"
        return int(self.process.exitcode)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


Make = Callable[..., Directory]
"""Makes a run directory of an algorithm; the fixture `make`."""
Start = Callable[..., Trainer]
"""Starts a trainer on a run directory; the fixture `start`."""


def child(trainer: str, path: str, arguments: Sequence[str], hook: Callable[..., Any] | None, given: Any) -> None:
    descriptor = os.open(os.path.join(path, "stderr"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if hook is not None:
        hook(given)
    from workers.trainers.run import run_directory

    module = importlib.import_module(f"workers.trainers.{trainer}")
    raise SystemExit(run_directory.main(trainer, module.train, [path, *arguments]))


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} in events.jsonl")


def slow(seconds: float) -> None:
    """A hook: make every step last, so that a test meets the run half-way."""
    from workers.trainers import training_loop

    begin = training_loop.Recorder.on_step_begin

    def slower(self: Any, *args: Any, **kwargs: Any) -> None:
        time.sleep(seconds)
        begin(self, *args, **kwargs)

    training_loop.Recorder.on_step_begin = slower  # type: ignore[method-assign]


def small_files(limit: int) -> None:
    """A hook: no file may grow beyond so many bytes, as on a disk with no room left."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def hungry(gigabytes: int) -> None:
    """A hook: a step wants twice as much memory as the process may have."""
    os.environ["FLYWHEEL_MODEL_MEMORY"] = f"{gigabytes}G"
    import torch

    from workers.trainers import training_loop

    def hungrier(self: Any, *args: Any, **kwargs: Any) -> None:
        torch.empty(gigabytes * 2**31, dtype=torch.uint8)

    training_loop.Recorder.on_step_begin = hungrier  # type: ignore[method-assign]


def supervised_by(fifo: str) -> None:
    """A hook: stdin is a pipe that a supervisor holds, and steps last."""
    os.environ["FLYWHEEL_SUPERVISED"] = "1"
    os.dup2(os.open(fifo, os.O_RDONLY), 0)
    slow(0.2)
