"""What a policy tried in training becomes trajectories: each once, apart from production, and gone when deleted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.edge.jobs import Lease
from flywheel.environments.tasks.task_attempts import attempt_of
from flywheel.failures.buckets import bucket_counts
from flywheel.failures.detectors.proposals import unread
from flywheel.failures.labels.decisions import decide
from flywheel.training.models import TrainingAttempt, TrainingRun
from flywheel.trajectories.metrics import daily_metrics
from flywheel.trajectories.models import Source, Step, Trajectory
from flywheel.trajectories.operations.deletion import delete
from flywheel.trajectories.search.query import parse
from tests.conftest import Cast
from tests.pages import page_of
from tests.training.conftest import Room, room
from tests.workers.trainers.run.test_kept_attempts import attempt
from workers.jobs.training import training_attempts, training_runs
from workers.trainers.run import kept_attempts
from workers.trainers.run.kept_attempts import Keeper

__all__ = ["room"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def lease(room: Room) -> Lease:
    """Of a run whose trainer left the attempts of two steps, the middle one of which was not scored."""
    run = room.launch()
    run.directory.mkdir(parents=True)
    write(run)
    claimed = TrainingRun.claim(run.pk)
    assert claimed is not None
    return claimed


def write(run: TrainingRun) -> None:
    for step in (1, 2):
        Keeper(run.directory, 2_000, 10)(
            step, [attempt(1.0, 10 * step), attempt(None, 10 * step + 1), attempt(-0.5, 10 * step + 2)]
        )


def store(lease: Lease) -> TrainingRun:
    run = TrainingRun.objects.get(pk=lease.job.pk)
    training_attempts.store_waiting(lease, run, run.directory)
    return run


def test_attempts_are_trajectories_that_know_their_run_step_and_reward(lease: Lease) -> None:
    run = store(lease)
    assert kept_attempts.waiting(run.directory) == []
    found = list(TrainingAttempt.objects.filter(run=run, step=2).select_related("trajectory"))
    assert [(row.reward, row.seed) for row in found] == [(None, 21), (-0.5, 22), (1.0, 20)]
    row = found[2].trajectory
    assert row is not None
    assert (row.source, row.version, row.version_label, row.outcome) == ("training", None, f"{run} step 2", "success")
    assert row.agent == run.base.agent
    assert row.metadata["reward"] == 1.0
    assert row.metadata["ended"] == "broken off"
    assert [step.kind for step in Step.objects.filter(trajectory=row).order_by("position")] == [
        "user",
        "assistant",
        "tool",
    ]


def test_a_policys_words_are_stored_whatever_they_are(room: Room) -> None:
    """A verdict's reason repeats them: here with what PostgreSQL refuses."""
    run = room.launch()
    run.directory.mkdir(parents=True)
    hostile = attempt(1.0, 3)
    verdict = replace(hostile.verdict, reason="called a\x00b \ud800, wanted a")
    Keeper(run.directory, 2_000, 10)(1, [replace(hostile, verdict=verdict, rollout=replace(hostile.rollout, ended=""))])
    claimed = TrainingRun.claim(run.pk)
    assert claimed is not None
    store(claimed)
    kept = TrainingAttempt.objects.get()
    assert kept.reason == "called a\u2400b \ufffd, wanted a"
    assert kept.trajectory is not None
    assert kept.trajectory.metadata["ended"] == "out of turns", "a tool has the last word"


def test_a_worker_that_dies_at_any_point_neither_loses_nor_doubles_one(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def dying(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        store(lease)  # the first step is stored, and its file still there
    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(TrainingAttempt.objects, "bulk_create", dying)
    with pytest.raises(KeyboardInterrupt):
        store(lease)  # the second one's trajectories are written, and its attempts not
    assert Trajectory.objects.filter(source=Source.TRAINING).count() == 3
    monkeypatch.undo()
    run = store(lease)
    assert Trajectory.objects.filter(source=Source.TRAINING).count() == run.tried.count() == 6


def test_an_attempt_that_another_step_learns_from_after_a_resume_is_stored_once(lease: Lease) -> None:
    run = store(lease)
    Keeper(run.directory, 2_000, 10)(3, [attempt(1.0, 20), attempt(0.5, 30)])
    store(lease)
    assert list(run.tried.filter(step=3).values_list("seed", flat=True)) == [30]
    assert Trajectory.objects.filter(source=Source.TRAINING).count() == run.tried.count() == 7


def test_the_log_says_how_many_groups_a_resumed_run_takes_up(lease: Lease) -> None:
    run = TrainingRun.objects.get(pk=lease.job.pk)
    message = "groups of attempts that had ended and are taken up: 2"
    row = {"time": "2026-01-01T00:00:00+00:00", "event": "taken_up", "step": 2, "groups": [4, 5], "message": message}
    (run.directory / "events.jsonl").write_text(json.dumps(row) + "\n")
    training_runs._read_events(lease, run, run.directory)
    assert run.events.filter(text=message, level="info").count() == 1


def test_a_resumed_run_stores_no_step_twice_and_nothing_that_was_deleted(lease: Lease, cast: Cast) -> None:
    run = store(lease)
    deleted = Trajectory.objects.filter(source=Source.TRAINING).first()
    assert deleted is not None
    delete(trajectory=deleted, actor=Actor(cast.admin))
    write(run)
    store(lease)
    assert Trajectory.objects.filter(source=Source.TRAINING).count() == 5
    assert run.tried.count() == 6
    assert run.tried.filter(trajectory=None).count() == 1


def test_half_a_file_costs_its_step_alone(lease: Lease) -> None:
    run = TrainingRun.objects.get(pk=lease.job.pk)
    (_, path), _ = kept_attempts.waiting(run.directory)
    path.write_bytes(path.read_bytes()[:100])
    store(lease)
    assert set(run.tried.values_list("step", flat=True)) == {2}
    assert "attempts of step 1 are lost" in run.events.get(level="warning").text


def test_they_count_nowhere_as_production(lease: Lease, cast: Cast) -> None:
    run = store(lease)
    row = run.tried.filter(reward=-0.5)[0].trajectory
    assert row is not None
    assert unread() == []  # no detector reads them
    assert len(unread(are_rollouts=True)) == 6
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    assert list(daily_metrics.fresh(cast.project, [row.started_at.date()], ["all"])) == []
    assert not bucket_counts.traffic(cast.project).filter(source=Source.TRAINING).exists()
    assert not bucket_counts.failed(cast.project).exists()
    assert attempt_of(row).is_measured  # nobody learns from a task that is made of one


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0), ("label:none", 0), ("source:training", 6), ("run:{run}", 6), ("run:r-{run}", 6), ("run:999", 0),
        ("reward:>0.5", 2), ("reward:<0", 2), ("source:training -reward:>0.5", 4), ("run:{run} outcome:unknown", 2),
    ],
)  # fmt: skip
def test_they_are_found_by_run_and_reward_when_asked_for(lease: Lease, text: str, count: int) -> None:
    run = store(lease)
    query = parse(text.format(run=run.pk))
    assert query.problems == []
    assert query.apply(Trajectory.objects.filter(project=run.project), run.project_id).count() == count


def test_a_run_that_is_none_is_named(lease: Lease) -> None:
    assert "run:x is no training run" in parse("run:x").problems[0]


@pytest.mark.django_db(transaction=True)  # a lease bounds how long a transaction may idle, and pages take their time
def test_an_attempt_leads_to_its_run_and_can_be_labelled(
    lease: Lease, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    run = store(lease)
    row = run.tried.filter(reward=-0.5)[0].trajectory
    assert row is not None
    page = page_of(sign_in(cast.reviewer).get(f"/p/acme/trajectories/{row.trace_id}/"))
    assert f"/p/acme/training/runs/{run.pk}/" in page
    assert "Attempt in training" in page
    assert f"/review/{row.trace_id}/" in page
    assert "Train from here" not in page
