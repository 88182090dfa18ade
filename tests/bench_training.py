"""A trainer's steps beside those of a bare TRL script of the same configuration:
`python -m tests.bench_training [--repeats 5] [--only grpo]`, about 12 minutes on two idle cores; with three repeats a
part of `make bench`.

Both train the policy that ships on the story's requests, on one thread each, and save checkpoints as often. Ours is the
command that a worker starts, with what it does by default: signed and flushed checkpoints, events, a heartbeat, kept
attempts, counted repetition, the verifier's rewards. Held-out and validation tasks are left out: a bare script asks
none. What is compared is the median of pairs that ran one after the other, by processor time, which other work on the
machine moves less; by the clock stands beside it, and by the quickest tenth of steps, which other work moves least and
which leaves checkpoints out.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benching import story_runs
from tests.benching.report import table
from workers.reference import story


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: str
    wanted: float
    steps: int
    first: int
    """Steps before it are not counted: memory and libraries warm up."""
    settings: dict[str, Any]
    episodes: bool = False


# So slow a rate that both go on with answers of the same length.
STILL = {"learning_rate": 1e-7, "batch_size": 64, "max_completion_length": 64}
CASES = [
    Case("SFT", "sft", 0.97, 120, 20, {"batch_size": 32, "learning_rate": 1e-3}),
    Case("DPO", "dpo", 0.97, 60, 10, {"batch_size": 16, "beta": 0.5, "learning_rate": 1e-4}),
    Case("GRPO", "grpo", 0.97, 24, 4, STILL),
    Case("GRPO, episodes", "grpo", 0.95, 18, 3, STILL, episodes=True),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_training")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found = rows(options.repeats, options.only)
    sys.stdout.write(table(found) + "\n")
    for row in found:
        sys.stdout.write(f"{row['what']}: {row['words']}\n")
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], "rows": found}, indent=1))


def rows(repeats: int, only: str = "") -> list[dict[str, Any]]:
    """Steps a second of processor time of each case, beside the bare script's."""
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-training-") as scratch:
        chosen = [case for case in CASES if case.name.lower().startswith(only.lower())]
        return [row(case, [pair(case, Path(scratch), number) for number in range(repeats)]) for case in chosen]


def pair(case: Case, scratch: Path, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What steps took ours and the bare script, in two processes one after the other, ours first every other time."""
    found: dict[str, dict[str, Any]] = {}
    rows = story_runs.rows(case.algorithm, story.sessions(120, seed=7), episodes=case.episodes)
    for who in ("ours", "bare")[:: -1 if number % 2 else 1]:
        run = story_runs.directory(
            scratch / f"{case.name}-{number}-{who}", story_runs.POLICY, case.algorithm, rows, episodes=case.episodes,
            steps=case.steps, settings=case.settings,
        )  # fmt: skip
        module = f"workers.trainers.{run.trainer}" if who == "ours" else "tests.benching.bare_trl"
        to = run.path / "clock.json"
        clocked = ("tests.benching.step_clock", str(case.first), str(to), module, str(run.path))
        story_runs.trained(*clocked, log=run.path / "trainer.log")
        each = [float(line) for line in (run.path / "clock.json.steps").read_text().split()][case.first :]
        found[who] = {**json.loads(to.read_text()), "quick": statistics.quantiles(each, n=10)[0]}
    return found["ours"], found["bare"]


def row(case: Case, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    ratios = {by: [bare[by] / ours[by] for ours, bare in pairs] for by in ("processor", "wall", "quick")}
    ours, bare = ([each[place]["steps"] / each[place]["processor"] for each in pairs] for place in (0, 1))
    ratio = statistics.median(ratios["processor"])
    lengths = [statistics.fmean(each[place]["completions/mean_length"] or 0 for each in pairs) for place in (0, 1)]
    written = f"; {lengths[0]:.1f} tokens an attempt, {lengths[1]:.1f} in the bare script" if any(lengths) else ""
    return {
        "what": f"{case.name}, steps a second",
        "unit": "steps/s",
        "value": statistics.median(ours),
        "beside": "bare TRL",
        "beside_value": statistics.median(bare),
        "ratio": ratio,
        "rounds": ratios["processor"],
        "wall": ratios["wall"],
        "words": f"{ratio:.3f} by processor time, {statistics.median(ratios['wall']):.3f} by the clock, "
        f"{statistics.median(ratios['quick']):.3f} by the quickest tenth of steps (wanted: {case.wanted}){written}",
        "ours": [each[0] for each in pairs],
        "bare": [each[1] for each in pairs],
    }


if __name__ == "__main__":
    main()
