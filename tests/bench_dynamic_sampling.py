"""Time until validation reaches a score, with dynamic sampling and without it:
`python -m tests.bench_dynamic_sampling [--seeds 5] [--learning-rate 1e-4] [--iterations 4]`, about 4
minutes.

The policy that ships first learns the corrected requests of 200 of the story's customers by SFT, but for three of 26
wordings, a seventh of the requests, which nobody has corrected. Then GRPO practises all tasks of these customers, at
the temperature of production: most of them it knows by heart, so that all attempts at one earn the same. It does so
twice with each seed, with `dynamic_sampling` and without it, all else alike. Validation asks requests of the three
wordings from other customers, greedily, every few steps.

What is compared is processor time of the steps alone, validation and checkpoints left out, until validation first has
the score; a run that never has it in so many steps is counted as one that takes longer than any (censored). Beside it
the attempts that were sampled until then, replaced ones too.

A batch of attempts is small, as it is for whoever has few to spend: of its four groups one teaches something without
dynamic sampling. Batches of many groups have enough that teach, and learn hardly faster from more of them. Each batch
is learnt from four times (`num_iterations`), so that replacing groups is a smaller part of a step.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benching import story_runs
from tests.workers.trainers.cast import Directory
from workers.reference import story

WANTED = 0.67
CUSTOMERS, OTHERS = range(200), range(300, 600)
"""Those that are learnt from, and those that are asked in validation."""
UNCORRECTED = {"remind", "takes-over", "up-to"}
"""Wordings that SFT has no rows of."""
EVERY, MOST = 2, 60
SETTINGS: dict[str, Any] = {
    "steps": MOST,
    "batch_size": 32,
    "num_generations": 8,
    "lr_schedule": "constant",
    "max_completion_length": 64,
    "temperature": 0.7,
    "max_resamples": 6,
    "final_weights": "last",
}


@dataclass(frozen=True)
class Reached:
    """How far a run had come when validation had the score; not at all where it never had it."""

    seconds: float = math.inf
    """Of processor time."""
    attempts: float = math.inf
    step: float = math.inf


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_dynamic_sampling")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gain", type=float, default=0.1, help="the score to reach, above that after SFT")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--iterations", type=int, default=4, help="how often a batch of attempts is learnt from")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flywheel-bench-dynamic-") as scratch:
        SETTINGS.update(learning_rate=options.learning_rate, num_iterations=options.iterations)
        found = measured(Path(scratch), options.seeds, options.gain)
    sys.stdout.write(words(found) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg()[0], **found}, indent=1))


def measured(scratch: Path, seeds: int, gain: float) -> dict[str, Any]:
    """Ratios of time and attempts for each seed, and the curves that they come from."""
    base = story_runs.after_sft(scratch / "sft", corrected(), steps=100)
    arms: dict[int, dict[bool, Directory]] = {}
    for seed in range(1, seeds + 1):
        # By turns first, so that what else the machine does hits both alike.
        for is_dynamic in (True, False) if seed % 2 else (False, True):
            run = practised(scratch / f"{seed}-{is_dynamic}", base, seed, gain, is_dynamic=is_dynamic)
            arms.setdefault(seed, {})[is_dynamic] = run
            sys.stderr.write(f"seed {seed}, {'with' if is_dynamic else 'without'}: {curve(run)}\n")
    pairs = {seed: {is_dynamic: reached(run, gain) for is_dynamic, run in own.items()} for seed, own in arms.items()}
    return {
        "gain": gain,
        "settings": SETTINGS,
        "pairs": {seed: {"on": vars_of(own[True]), "off": vars_of(own[False])} for seed, own in pairs.items()},
        "curves": {seed: {str(arm): curve(run) for arm, run in own.items()} for seed, own in arms.items()},
        "dull": {seed: {str(arm): dull(run) for arm, run in own.items()} for seed, own in arms.items()},
        "ratios": {
            name: [ratio(vars_of(own[True])[name], vars_of(own[False])[name]) for own in pairs.values()]
            for name in ("seconds", "attempts", "step")
        },
    }


def corrected() -> list[story.Request]:
    return [request for request in story_runs.requests(CUSTOMERS) if request.wording not in UNCORRECTED]


def practised(place: Path, base: Path, seed: int, gain: float, *, is_dynamic: bool) -> Directory:
    """A run of GRPO that ends once validation has the score, or with its steps."""
    others = [request for request in story_runs.requests(OTHERS) if request.wording in UNCORRECTED]
    tasks, asked = (story_runs.rows("grpo", each) for each in (story_runs.requests(CUSTOMERS), others))
    run = story_runs.directory(
        place, base, "grpo", tasks, steps=MOST, seed=seed, checkpoint_every=MOST, keep_attempts=0, validation=asked,
        settings={**SETTINGS, "dynamic_sampling": is_dynamic},
    )  # fmt: skip
    run.spec["validation"] = {"every": EVERY, "limit": 512}
    run.save()
    log = run.path / "trainer.log"
    trainer = story_runs.started(
        "tests.benching.step_clock", "0", str(run.path / "clock"), "workers.trainers.grpo", str(run.path), log=log
    )
    while trainer.poll() is None and reached(run, gain) == Reached():
        time.sleep(1)
    ended = trainer.poll()
    trainer.kill()
    trainer.wait()
    if ended:
        raise SystemExit(log.read_text()[-4000:])
    return run


def reached(run: Directory, gain: float) -> Reached:
    scores = curve(run)
    steps = [step for step, score in scores.items() if step and score >= scores[0] + gain]
    if not steps:
        return Reached()
    step, metrics = steps[0], run.metrics()
    seconds = [float(line) for line in (run.path / "clock.steps").read_text().split()][:step]
    attempts = [
        SETTINGS["batch_size"] + SETTINGS["num_generations"] * metrics[number].get("resampled_groups", 0.0)
        for number in range(1, step + 1, SETTINGS["num_iterations"])
    ]
    return Reached(sum(seconds), sum(attempts), step)


def curve(run: Directory) -> dict[int, float]:
    """Validation's mean score by step."""
    return {row["step"]: round(row["score"], 4) for row in run.events("validation")}


def dull(run: Directory) -> float:
    """The mean share of groups that taught nothing, of those that were learnt from."""
    told = [metrics.get("zero_variance_groups") for metrics in run.metrics().values()]
    return statistics.fmean(share for share in told if share is not None)


def vars_of(found: Reached) -> dict[str, float]:
    return {"seconds": found.seconds, "attempts": found.attempts, "step": found.step}


def ratio(on: float, off: float) -> float:
    """Infinite where it was reached with neither, since that is no gain."""
    return on / off if on < math.inf else math.inf


def words(found: dict[str, Any]) -> str:
    lines = [f"time to {found['gain']:+.2f} of validation reward, dynamic sampling on ÷ off (wanted: {WANTED}):"]
    for name, each in found["ratios"].items():
        spread = ", ".join(f"{value:.2f}" for value in sorted(each))
        lines.append(f"  {name:<8} {statistics.median(each):.2f}  (seeds: {spread})")
    for arm, said in (("on", "True"), ("off", "False")):
        censored = sum(own[arm]["step"] == math.inf for own in found["pairs"].values())
        share = statistics.fmean(own[said] for own in found["dull"].values())
        lines.append(f"  {arm:<8} {censored} of {len(found['pairs'])} never reached it; {share:.0%} of groups dull")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
