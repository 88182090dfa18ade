"""`python -m tests.benching.step_clock FROM FILE MODULE ARGUMENTS…` runs a module that trains by transformers' loop
and writes what its steps from FROM on took, checkpoints between and after them too: how many they were, seconds by the
clock, and seconds of processor time, its children's too. Beside it, in FILE.steps, a line for each step: what it alone
took of processor time, without evaluations and checkpoints."""

import json
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import transformers.trainer
from transformers import TrainerCallback


class Clock(TrainerCallback):
    def __init__(self, first: int, to: Path) -> None:
        self.first, self.to = first, to

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step_began = now()
        if state.global_step == self.first:
            self.began = self.step_began

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.to.with_name(f"{self.to.name}.steps").open("a") as file:
            file.write(f"{now()[1] - self.step_began[1]}\n")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wall, processor = (after - before for after, before in zip(now(), self.began, strict=True))
        logs = [row for row in state.log_history if "loss" in row][self.first :]
        told = {name: mean(logs, name) for name in ("completions/mean_length", "num_tokens")}
        self.to.write_text(
            json.dumps({"steps": state.global_step - self.first, "wall": wall, "processor": processor, **told})
        )


def mean(logs: list[dict[str, Any]], name: str) -> float | None:
    found = [row[name] for row in logs if name in row]
    return sum(found) / len(found) if found else None


def now() -> tuple[float, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time() + children.ru_utime + children.ru_stime


def main() -> None:
    first, to, module, *arguments = sys.argv[1:]
    # Trainers take this list when they are made; its callbacks come before any of their own.
    transformers.trainer.DEFAULT_CALLBACKS.append(Clock(int(first), Path(to)))  # type: ignore[arg-type]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
