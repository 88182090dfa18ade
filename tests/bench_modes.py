"""Asynchronous sampling beside sync, on a real vLLM server: `python -m tests.bench_modes [--seeds 3]`, about 15 minutes
on two idle cores, after `make serve` has installed vLLM once.

Each mode trains the policy that ships on the story's tasks by GRPO with a LoRA adapter, for the same number of updates
from the same seeds. Compared are the scores of held-out tasks after the last update, task by task, with an interval
over tasks; how long sampler and trainer were idle in a step; and the age of the oldest token. Beforehand 10,000
schedules (`--schedules`) are simulated under the worst delays and kills: no token may be older than its bound.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benching import story_runs
from tests.benching.processes import free_port
from tests.workers.trainers.attempts.test_group_schedule import carried_out
from tests.workers.trainers.cast import Directory

MODES: dict[str, dict[str, Any]] = {
    "sync": {"execution": "sync"},
    "one_step_off_async": {"execution": "one_step_off_async"},
    "fully_async": {"execution": "fully_async", "max_staleness": 2},
}
SETTINGS = {
    "rollouts": "vllm",
    "batch_size": 64,
    "num_generations": 8,
    "learning_rate": 2e-3,
    "lr_schedule": "constant",
    "max_completion_length": 64,
}
LORA = {"mode": "lora", "rank": 8, "alpha": 16}
PRACTISED, ASKED = range(120), range(300, 380)
"""Customers."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_modes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help="updates of each run")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    told: dict[str, Any] = {"schedules": simulated(options.schedules)}
    sys.stdout.write(
        f"{told['schedules']['runs']} schedules simulated, ages within bounds: {told['schedules']['oldest']}\n"
    )
    if options.seeds:
        with tempfile.TemporaryDirectory(prefix="flywheel-bench-modes-") as scratch, served() as (url, base):
            told["modes"] = compared(Path(scratch), url, base, options.seeds, options.steps)
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], **told}, indent=1))


def simulated(count: int) -> dict[str, Any]:
    """The oldest token of all schedules with each bound. Raises AssertionError where one is older than that."""
    oldest: dict[int, int] = {}
    for number in range(count):
        chance = random.Random(number)
        size, bound, steps = chance.randint(1, 8), chance.randint(0, 8), chance.randint(1, 24)
        oldest[bound] = max(oldest.get(bound, 0), carried_out(size, bound, steps, chance))
    return {"runs": count, "oldest": dict(sorted(oldest.items()))}


@contextmanager
def served() -> Iterator[tuple[str, str]]:
    """The address of a vLLM server of the policy that ships, and its base's name. Raises SystemExit without one."""
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        program = subprocess.Popen(
            [sys.executable, "-m", "workers.programs.vllm_server", "--port", str(port)],
            cwd=story_runs.ROOT,
            env={**os.environ, "FLYWHEEL_HOME": home},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            if not line.startswith("vLLM is ready: "):
                raise SystemExit("no vLLM server: see above")
            yield f"http://127.0.0.1:{port}", line.removeprefix("vLLM is ready: ").split()[0].rstrip(",.")
        finally:
            program.send_signal(signal.SIGINT)
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)


def compared(scratch: Path, url: str, base: str, seeds: int, steps: int) -> dict[str, Any]:
    """Figures of each mode, over all seeds, told as they come."""
    os.environ["FLYWHEEL_VLLM_URL"] = url
    runs: dict[str, list[Directory]] = {mode: [] for mode in MODES}
    for seed in range(1, seeds + 1):
        for mode, own in runs.items():
            own.append(trained(scratch / f"{mode}-{seed}", base, mode, seed, steps))
            sys.stderr.write(f"seed {seed}, {mode}: {figures(own[-1:])}\n")
    found = {}
    for mode, own in runs.items():
        found[mode] = figures(own) | difference(own, runs["sync"])
        sys.stdout.write(f"{mode}: {found[mode]}\n")
    return found


def trained(place: Path, base: str, mode: str, seed: int, steps: int) -> Directory:
    tasks, asked = (story_runs.rows("grpo", story_runs.requests(customers)) for customers in (PRACTISED, ASKED))
    run = story_runs.directory(
        place, story_runs.POLICY, "grpo", tasks, steps=steps, seed=seed, eval_every=steps, held_out=asked, tuning=LORA,
        served_base=base,
        settings={**SETTINGS, **MODES[mode]}, run=f"r-{mode}-{seed}",
    )  # fmt: skip
    run.spec["eval"]["limit"] = 1_000
    run.save()
    story_runs.trained("workers.trainers.grpo", str(run.path), log=run.path / "trainer.log")
    return run


def figures(runs: list[Directory]) -> dict[str, Any]:
    steps = [metrics for run in runs for step, metrics in run.metrics().items() if step > 1]
    return {
        "score": [round(run.events("eval")[place]["score"], 3) for run in runs for place in (0, -1)],
        "step_s": round(statistics.median(metrics["step_time_s"] for metrics in steps), 2),
        "sampler_idle": round(statistics.fmean(metrics["sampler_idle"] for metrics in steps), 3),
        "trainer_idle": round(statistics.fmean(metrics["learner_idle"] for metrics in steps), 3),
        "oldest": max(row["oldest"] for run in runs for row in run.events("attempts")),
        "proof": max(row["mean"] for run in runs for row in run.events("proof")),
    }


def difference(runs: list[Directory], others: list[Directory]) -> dict[str, Any]:
    """How much more the tasks score than in the others' runs of the same seeds, with an interval over customers."""
    asked = story_runs.requests(ASKED)
    mine, yours = ([scores(run) for run in each] for each in (runs, others))
    before, after = (
        {task.id: statistics.fmean(own[task.id] for own in each) for task in asked} for each in (yours, mine)
    )
    found = story_runs.gained(before, after, asked)
    return {"apart": found.mean, "low": found.low, "high": found.high, "n": found.n}


def scores(run: Directory) -> dict[str, float]:
    return {row["task_id"]: row["score"] for row in run.events("samples")[-1]["samples"]}


if __name__ == "__main__":
    main()
