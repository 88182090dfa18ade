"""Whether PPO learns the story's tasks: `python -m tests.bench_ppo [--seeds 3] [--algorithm ppo]`, about 10 minutes
on two idle cores.

As in `make turn ALGORITHM=ppo`, without Flywheel around it: SFT teaches the policy that ships the corrected requests of
60 customers, then PPO practises tasks of 200 others, and both are asked the tasks of 120 that neither has seen,
greedily. Told is the difference of success, task by task, with an interval (95%) over customers.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benching import story_runs
from tests.workers.trainers.cast import Directory

CORRECTED, PRACTISED, ASKED = range(60), range(60, 260), range(300, 420)
STEPS = 120
SETTINGS = {
    "steps": STEPS,
    "batch_size": 64,
    "num_generations": 2,
    "learning_rate": 3e-4,
    "max_completion_length": 64,
    "normalize_advantages": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_ppo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithm", default="ppo", help="another one, in its place")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-ppo-") as scratch:
        base = story_runs.after_sft(Path(scratch) / "sft", story_runs.requests(CORRECTED))
        found = [
            practised(Path(scratch) / str(seed), base, seed, options.algorithm) for seed in range(1, options.seeds + 1)
        ]
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], "seeds": found}, indent=1))


def practised(place: Path, base: Path, seed: int, algorithm: str) -> dict[str, Any]:
    """Carry out a run of a seed, and return what it gained."""
    tasks, asked = (story_runs.rows(algorithm, story_runs.requests(customers)) for customers in (PRACTISED, ASKED))
    settings = SETTINGS if algorithm == "ppo" else {**SETTINGS, "num_generations": 8}
    if algorithm != "ppo":
        settings.pop("normalize_advantages")
    run = story_runs.directory(
        place, base, algorithm, tasks, steps=STEPS, seed=seed, held_out=asked, eval_every=STEPS // 3, settings=settings,
    )  # fmt: skip
    run.spec["eval"]["limit"] = len(asked)
    run.save()
    story_runs.trained(f"workers.trainers.{run.trainer}", str(run.path), log=run.path / "trainer.log")
    before, after = successes(run, 0), successes(run, -1)
    gain = story_runs.gained(before, after, story_runs.requests(ASKED))
    rates = [round(row["success"], 3) for row in run.events("eval")]
    told = [f"{number:+.3f}" for number in (gain.mean, gain.low, gain.high) if number is not None]
    sys.stdout.write(f"seed {seed}: success {rates}, {told}, {gain.n} tasks of {gain.clusters} customers\n")
    sys.stdout.flush()
    return {"seed": seed, "rates": rates, "gain": gain.mean, "low": gain.low, "high": gain.high, "n": gain.n}


def successes(run: Directory, place: int) -> dict[str, float]:
    return {row["task_id"]: float(row["score"] == 1) for row in run.events("samples")[place]["samples"]}


if __name__ == "__main__":
    main()
