"""What a job puts into the storage while its trainer goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.trainers.run import checkpoints
from workers.trainers.stored.run_storage import Storage
from workers.trainers.stored.stored_job import StoredJob

FOLDER = "runs/r/a1-ff"


def publish(run: Path, step: int) -> None:
    aside = run / "aside"
    aside.mkdir(parents=True)
    for name in ("model", "optimizer"):
        (aside / name).write_text(f"{name} of step {step}")
    checkpoints.publish(aside, run, step, "s")


def test_a_checkpoint_that_is_removed_while_it_is_put_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storage").mkdir()
    storage = Storage(f"file://{tmp_path}/storage")
    job = StoredJob(storage, FOLDER, tmp_path)
    publish(job.place, 2)
    put = storage.put

    def late(source: Path, name: str) -> None:
        """The trainer saves another one, and has removed a file of the first so far."""
        if not (job.place / "checkpoints" / "step-4").exists():
            with monkeypatch.context() as midway:
                midway.setattr("shutil.rmtree", lambda directory: (directory / "model").unlink())
                publish(job.place, 4)
                checkpoints.prune(job.place, 1)
        put(source, name)

    with monkeypatch.context() as slow:
        slow.setattr(storage, "put", late)
        job.keep_trees()
    job.keep_trees()
    made: dict[str, Any] = json.loads(storage.read(f"{FOLDER}/made.json") or b"")
    assert list(made["trees"]) == ["checkpoints/step-4"]
