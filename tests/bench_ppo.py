"""Whether PPO learns the story's tasks: `python -m tests.bench_ppo [--seeds 3] [--algorithm ppo]`, about 10 minutes
on two idle cores.

The policy that ships, made by SFT, mostly fails three wordings of the story: one whose tool was retired, and two that
production brought. PPO practises requests of these wordings from 400 customers, and is asked, greedily, those of 600
customers that it has not seen. Told is the difference of success and of score, task by task, with an interval (95%)
over customers. The whole turn with all wordings is `make turn ALGORITHM=ppo`.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benching import story_runs
from workers.reference import story

WORDINGS = {"remind", "takes-over", "up-to"}
PRACTISED, ASKED = range(400), range(1000, 1600)
"""Customers."""
STEPS = 60
SETTINGS = {"steps": STEPS, "batch_size": 64, "learning_rate": 3e-4, "max_completion_length": 64}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_ppo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithm", default="ppo", help="another one, in its place")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-ppo-") as scratch:
        found = [practised(Path(scratch) / str(seed), seed, options.algorithm) for seed in range(1, options.seeds + 1)]
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], "seeds": found}, indent=1))


def practised(place: Path, seed: int, algorithm: str) -> dict[str, Any]:
    """Carry out a run of a seed, and return what it gained."""
    asked = of_wordings(ASKED)
    tasks, held_out = (story_runs.rows(algorithm, each) for each in (of_wordings(PRACTISED), asked))
    run = story_runs.directory(
        place, story_runs.POLICY, algorithm, tasks, steps=STEPS, seed=seed, held_out=held_out, eval_every=STEPS // 3,
        settings=SETTINGS,
    )  # fmt: skip
    run.spec["eval"]["limit"] = len(held_out)
    run.spec["settings"].pop("num_generations")  # the algorithm's own
    run.save()
    story_runs.trained(f"workers.trainers.{run.trainer}", str(run.path), log=run.path / "trainer.log")
    found: dict[str, Any] = {"seed": seed, "curve": [round(row["success"], 3) for row in run.events("eval")]}
    start, end = (
        {row["task_id"]: row["score"] for row in run.events("samples")[place]["samples"]} for place in (0, -1)
    )
    for what, is_whole in (("success", True), ("score", False)):
        before, after = (
            {task: float(score == 1 if is_whole else score) for task, score in scores.items()}
            for scores in (start, end)
        )
        gain = story_runs.gained(before, after, asked)
        found[what] = {"gain": gain.mean, "low": gain.low, "high": gain.high, "n": gain.n, "customers": gain.clusters}
    sys.stdout.write(f"{found}\n")
    sys.stdout.flush()
    return found


def of_wordings(customers: range) -> list[story.Request]:
    return [request for request in story_runs.requests(customers) if request.wording in WORDINGS]


if __name__ == "__main__":
    main()
