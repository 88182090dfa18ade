"""A trainer that makes a step when a file of a folder allows it, with run directory and checkpoints as a real one."""

import shutil
import sys
import time
from pathlib import Path

from workers.trainers.run import checkpoints, kept_attempts
from workers.trainers.run.run_directory import FINAL, Run, main


def train(run: Run) -> None:
    resumed, _ = checkpoints.newest(run.path, run.spec.digest)
    run.step = resumed.step if resumed else 0
    steps, go = run.spec.settings["steps"], Path(run.spec.environment["go"])
    weight = (run.spec.base.path / "weight").read_text()
    run.event("training_start", total_steps=steps, resumed_from=run.step or None)
    while run.step < steps and not run.cancelled:
        if not (go / f"step-{run.step + 1}").exists():
            time.sleep(0.02)
            continue
        run.step += 1
        print(f"step {run.step} from {weight}", flush=True)
        _keep_attempt(run)
        run.event("step", step=run.step, metrics={"loss": 1.0 / run.step})
        if run.step % run.spec.checkpoint_every == 0:
            _save(run)
    if run.step < steps:
        _save(run)
        run.write_result(status="cancelled", step=run.step)
        return
    aside = run.work / FINAL
    aside.mkdir(parents=True)
    (aside / "weights").write_text(f"{weight} after {run.step}")
    checkpoints.move(aside, run.path / FINAL)
    run.write_result(status="completed", step=run.step, final=FINAL)


def _save(run: Run) -> None:
    aside = run.work / "checkpoint"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    (aside / "weights").write_text(f"of step {run.step}")
    saved = checkpoints.publish(aside, run.path, run.step, run.spec.digest)
    checkpoints.prune(run.path, 2)
    run.event("checkpoint", step=run.step, digest=saved.digest)


def _keep_attempt(run: Run) -> None:
    folder = run.path / kept_attempts.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f".step-{run.step}").write_text(f'{{"step": {run.step}}}\n')
    (folder / f".step-{run.step}").rename(folder / f"step-{run.step}.jsonl")


if __name__ == "__main__":
    sys.exit(main("sft", train))
