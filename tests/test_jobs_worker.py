"""Jobs with real workers: what survives the death, the silence and the stop of whoever carries them out."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.evals.models import EvalRun
from flywheel.jobs import State
from tests.conftest import Build
from tests.worker import Worker

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]


def submit(build: Build, **play: Any) -> EvalRun:
    run, _ = EvalRun.submit(
        key=uuid.uuid4(),
        project=build.cast.project,
        created_by=build.cast.builder,
        version=build.version(),
        task_set=build.task_set(train=1, held_out=1),
        verifier_digest="0" * 64,
        sampling=play,
    )
    return run


def test_a_submitted_job_runs_at_once(worker: Worker, build: Build) -> None:
    run = submit(build, play="count", steps=3)
    worker.finish(run)
    assert (run.state, run.done, run.attempt) == (State.SUCCEEDED, 3, 1)
