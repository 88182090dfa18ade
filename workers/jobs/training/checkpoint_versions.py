"""Make versions of kept checkpoints: the worker's side of `flywheel.training.runs.kept_checkpoints`.

A checkpoint has the weights as they learn, in 32 bits, and the state of the training. A process of its own writes them
as the run would have at its end (`workers.trainers.weights.checkpoint_weights`).
"""

import json
import os
import shutil
from pathlib import Path

from flywheel.core import digests
from flywheel.edge.jobs import Lease
from flywheel.training.models import CheckpointVersion
from workers.jobs.training import side_processes, training_runs
from workers.jobs.training.trainer_process import TrainingFailed
from workers.trainers.run import checkpoints


def make(lease: Lease) -> None:
    """Make the version that the lease holds."""
    of = ("project", "created_by", "run__base__agent", "run__base__weights", "run__base__adapter", "run__dataset")
    job = CheckpointVersion.objects.select_related(*of).get(pk=lease.job.pk)
    with side_processes.directory(lease, "checkpoint") as place:
        _prepare(job, place)
        side_processes.result(lease, "workers.trainers.weights.checkpoint_weights", place)
        artifact = training_runs.store_weights(job.run, place)
    with lease.guard():
        version = training_runs.make_version(job.run, artifact, job.created_by, job.step)
        lease.update(version=version)
        job.run.note(f"made {version} of the checkpoint of step {job.step}")


def _prepare(job: CheckpointVersion, place: Path) -> None:
    """Put the run's spec and the checkpoint, verified, into a directory. Raises TrainingFailed.

    Its files are linked first: the run's trainer may go on, and removes old checkpoints at any time.
    """
    run = job.run
    source = run.directory / checkpoints.PLACE / f"step-{job.step}"
    kept = place / checkpoints.PLACE / source.name
    try:
        training_runs.check_spec(run, run.directory)
        shutil.copytree(source, kept, copy_function=_link)
        spec = (run.directory / "spec.json").read_bytes()
        checkpoints.verify(run.directory, kept, job.step, digests.digest(json.loads(spec)))
        (place / "spec.json").write_bytes(spec)
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is damaged: {error}" if source.is_dir() else "is not kept any more"
        raise TrainingFailed("checkpoint", f"the checkpoint of step {job.step} of {run} {problem}") from error


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
