"""Versions of kept checkpoints as they are asked for: once for a step, from the page and by API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing
from flywheel.environments.task_sets import leaks
from flywheel.training.datasets import contamination_checks
from flywheel.training.launch import reward_lock
from flywheel.training.models import CheckpointVersion, Point, TrainingRun
from flywheel.training.runs import kept_checkpoints
from tests.training.api.test_runs import call
from tests.training.conftest import NOON, Room
from tests.training.pages.test_runs import HERE, SignIn, text
from tests.training.runs.test_run_files import checkpoint, spec_of, write

__all__ = ["call"]
pytestmark = pytest.mark.django_db
Call = Callable[..., Any]


@pytest.fixture
def run(room: Room, settings: Any, tmp_path: Path) -> TrainingRun:
    """A run that keeps the checkpoints of two steps, and was validated at the first."""
    settings.RUNS_DIR = tmp_path
    run = room.launch()
    write(run, "spec.json", spec_of(run))
    for step in (20, 40):
        checkpoint(run, step, "model.safetensors")
    values = {"success": 0.5, "score": 0.625, "n": 4, "unscored": 0}
    Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=20, at=NOON, values=values)
    return run


def made(run: TrainingRun, version: Version, step: int = 20) -> CheckpointVersion:
    """The job of a step, which has made this version."""
    job, _ = kept_checkpoints.make_version(run, step, Actor(run.created_by))
    CheckpointVersion.objects.update(state=State.SUCCEEDED, version=version)
    return job


def test_each_checkpoint_has_its_score_and_its_version(room: Room, run: TrainingRun) -> None:
    version = room.build.version(system_prompt="of step 20")
    made(run, version)
    found = [(kept.step, kept.score, kept.version, kept.can_be_made) for kept in kept_checkpoints.kept_of(run)]
    assert found == [(40, None, None, True), (20, 0.625, version, False)]
    run.produced, run.done = room.build.version(system_prompt="of the end"), 40
    assert kept_checkpoints.kept_of(run)[0].version == run.produced


def test_asking_twice_gives_one_version_and_a_failed_try_is_tried_again(run: TrainingRun) -> None:
    actor = Actor(run.created_by)
    job, is_new = kept_checkpoints.make_version(run, 20, actor)
    assert is_new
    assert kept_checkpoints.make_version(run, 20, actor) == (job, False)
    CheckpointVersion.objects.update(state=State.FAILED, error="full disk")
    again, is_new = kept_checkpoints.make_version(run, 20, actor)
    assert (again, again.state, again.error, is_new) == (job, State.QUEUED, "", False)
    actions = list(AuditEntry.objects.filter(action__contains="checkpoint").values_list("action", flat=True))
    assert sorted(actions) == ["training.make_checkpoint_version", "training.resume_checkpoint_version"]


def test_a_step_that_is_not_kept_is_refused_with_those_that_are(run: TrainingRun) -> None:
    with pytest.raises(Missing, match="no checkpoint of step 30; it keeps those of steps 20, 40"):
        kept_checkpoints.make_version(run, 30, Actor(run.created_by))


def test_what_a_version_of_a_checkpoint_learnt_from_is_known(room: Room, run: TrainingRun) -> None:
    """It counts as the run's own version does: for contamination, for the reward's audit, for its origin."""
    version = room.build.version(system_prompt="of step 20")
    assert leaks.trained_on([version], run.task_set)[version.pk].verdict == "none"
    made(run, version)
    assert list(TrainingRun.that_made([version])) == [run]
    assert contamination_checks.datasets_of(version) == [run.dataset]
    assert leaks.trained_on([version], run.task_set)[version.pk].verdict != "none"
    assert len(reward_lock.of_version(version)) == 1


def test_a_person_makes_a_version_on_the_runs_page(room: Room, run: TrainingRun, sign_in: SignIn) -> None:
    page = f"{HERE}runs/{run.pk}"
    trainer = sign_in(room.cast.trainer)
    shown = text(trainer.get(f"{page}/"))
    assert shown.count("Create a version") == 2
    assert "62.5%" in shown
    trainer.post(f"{page}/checkpoints/20/version/")
    fragment = trainer.get(f"{page}/checkpoints/")
    assert "being created" in text(fragment)
    assert fragment.status_code == 200, "more is asked for while it is made"
    CheckpointVersion.objects.update(state=State.FAILED, error="<b>no room</b>")
    fragment = trainer.get(f"{page}/checkpoints/")
    assert "Try again" in text(fragment)
    assert b"<b>no room" not in fragment.content
    assert fragment.status_code == 286


def test_a_program_makes_a_version(run: TrainingRun, call: Call) -> None:
    address = f"training-runs/{run.pk}/checkpoints"
    assert call("post", f"{address}/20/version", status=201)["state"] == "queued"
    assert call("post", f"{address}/20/version")["state"] == "queued"
    call("post", f"{address}/7/version", status=404)
    rows = call("get", address)
    assert [(row["step"], row["state"], row["version"]) for row in rows] == [(40, "", None), (20, "queued", None)]
