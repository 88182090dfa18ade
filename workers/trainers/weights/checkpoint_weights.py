"""`python -m workers.trainers.weights.checkpoint_weights RUNDIR`: what the run would have given at a kept checkpoint.

The directory has the run's `spec.json` and one checkpoint, which was verified before it came here. `final/` becomes
what the run itself would have published had it ended at that step, bit by bit: a test compares the two.
"""

import os

from workers.processes import model_process
from workers.trainers.run import checkpoints
from workers.trainers.run.run_directory import FINAL, Run, main
from workers.trainers.run.run_spec import ANY_TRAINER


def write(run: Run) -> None:
    """Write `final/` and the result. Raises TrainingError."""
    with model_process.loading():
        from workers.trainers.weights import trained_policy

    (checkpoint,) = (run.path / checkpoints.PLACE).iterdir()
    files = trained_policy.save_kept(run, checkpoint)
    run.write_result(
        status="completed", final=FINAL, files=files, digest=checkpoints.digest_of(files), seconds=run.seconds
    )


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # weights are only rewritten: no reason to disturb who trains there
    raise SystemExit(main(ANY_TRAINER, write))
