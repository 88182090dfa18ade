"""Versions of kept checkpoints as workers make them, with the policy that ships."""

from pathlib import Path

import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.training.models import CheckpointVersion, TrainingRun
from flywheel.training.runs import kept_checkpoints
from tests.workers.jobs.training.test_training_runs import Launch, launched
from workers.jobs.training import checkpoint_versions, training_runs

__all__ = ["launched"]
pytestmark = pytest.mark.django_db(transaction=True)


def made(run: TrainingRun, step: int) -> CheckpointVersion:
    job, _ = kept_checkpoints.make_version(run, step, Actor(run.created_by))
    lease = CheckpointVersion.claim(job.pk)
    assert lease is not None
    with lease:
        checkpoint_versions.make(lease)
    job.refresh_from_db()
    return job


def test_any_kept_checkpoint_becomes_a_version(launched: Launch) -> None:
    run = launched(steps=2)
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        training_runs.train(lease)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED, run.error

    last = made(run, 2)
    assert last.version == run.produced, "the same weights are the same version"
    first = made(run, 1)
    assert (first.state, first.error) == (State.SUCCEEDED, "")
    assert first.version is not None
    assert first.version not in (run.base, run.produced)
    assert (first.version.parent, first.version.note) == (run.base, f"SFT, run {run}, step 1")
    assert run.events.filter(text=f"made {first.version} of the checkpoint of step 1").exists()
    assert not list(Path(settings.RUNS_DIR).glob("checkpoint-*"))
    assert (run.directory / "checkpoints/step-1/optimizer.pt").exists(), "the run keeps its own"


def test_a_checkpoint_that_was_changed_or_is_gone_makes_no_version(launched: Launch) -> None:
    """Nobody knows what such weights have learnt."""
    run = launched(steps=2)
    training_runs.prepare(run, run.directory)
    place = run.directory / "checkpoints/step-1"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text('{"files": {}, "hmac": "0", "spec": "0", "step": 1}')
    (run.directory / "checkpoint.key").write_bytes(b"k" * 32)
    job = made(run, 1)
    assert (job.state, job.error_kind) == (State.FAILED, "checkpoint")
    assert job.error.endswith("is damaged: its manifest was not signed by this run")
    CheckpointVersion.objects.update(state=State.QUEUED)
    (place / "manifest.json").unlink()
    place.rmdir()
    assert made(run, 1).error == f"the checkpoint of step 1 of {run} is not kept any more"
