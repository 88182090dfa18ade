"""Lineage of every kind of object, in both directions: all of it, each a link that leads somewhere, in bounded time."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.agents.models import Version
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing
from flywheel.environments.models import TaskSetMember
from flywheel.evals.models import Result
from flywheel.failures.labels.decisions import decide
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.promotions.lineage import levels as lineage_levels
from flywheel.promotions.lineage.levels import level_of, levels_of
from flywheel.promotions.lineage.passport_kinds import KINDS, find, passport
from flywheel.promotions.lineage.relations import RELATIONS
from flywheel.promotions.live_version import promote
from flywheel.promotions.models import Candidate
from flywheel.training.models import CheckpointVersion, Dataset, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]


def dataset(cast: Cast, name: str = "mail-sft", **fields: Any) -> Dataset:
    defaults: dict[str, Any] = {"kind": "sft", "digest": "d" * 64, "rows": 2, "recipe": {}, "file": "x", "version": 1}
    return Dataset.objects.create(project=cast.project, name=name, created_by=cast.trainer, **{**defaults, **fields})


def trained(cast: Cast, base: Version, data: Dataset, produced: Version | None = None, **fields: Any) -> TrainingRun:
    return TrainingRun.objects.create(
        project=cast.project,
        created_by=cast.trainer,
        base=base,
        dataset=data,
        task_set=data.task_set or fields.pop("task_set"),
        algorithm="sft",
        settings={},
        tuning={"mode": "full"},
        spec_digest="s" * 64,
        state=State.SUCCEEDED,
        produced=produced,
        finished_at=timezone.now(),
        **fields,
    )


def used(cast: Cast, candidate: Candidate, row: Trajectory) -> TrainingRun:
    """The trajectory in a queue, decided, made into two tasks of the candidate's set, trained on, put forward."""
    queue = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name="odd <b>ones</b>"))
    intake.add(queue=queue, keys=[row.pk], actor=Actor(cast.builder))
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    task_set = candidate.version_eval.task_set
    for split in ("held_out", "train"):
        task = TaskSetMember.objects.filter(task_set=task_set, split=split).order_by("task__number")[0].task
        type(task).objects.filter(pk=task.pk).update(source=row)
    run = trained(cast, candidate.baseline, dataset(cast, task_set=task_set), candidate.version)
    Candidate.objects.filter(pk=candidate.pk).update(run=run)
    return run


def shown(cast: Cast, kind: str, ref: object, way: str) -> dict[str, list[str]]:
    """Title of each level that has anything, and the titles in it."""
    known, row = find(kind, str(ref), cast.project)
    return {
        level.title: [passport(level.kind, each, cast.project).title for each in level.kind.shown(level.rows).order_by("pk")]
        for level in levels_of(known, row, cast.project)
        if level.direction == way and level.counted().number
    }


def test_down_from_a_trajectory_to_what_went_live(cast: Cast, build: Build, candidate: Candidate) -> None:
    row = build.trajectory(version=candidate.baseline)
    run = used(cast, candidate, row)
    candidate.refresh_from_db()
    task_set = candidate.version_eval.task_set
    assert shown(cast, "trajectory", row.trace_id, "up") == {"Version by its sender's word": [str(candidate.baseline)]}
    assert shown(cast, "trajectory", row.trace_id, "down") == {
        "Queues": [f"odd <b>ones</b>, item {row.queue_items.get().pk}"],
        "Decision": ["wrong tool"],
        "Tasks": [f"{task} of mail" for task in row.tasks.order_by("pk")],
        "Task sets": [str(task_set)],
        "Evals of these tasks": [str(candidate.version_eval), str(candidate.baseline_eval)],
        "Datasets": ["mail-sft@1"],
        "Training runs": [str(run)],
        "Versions": [str(candidate.version)],
        "Candidates": [f"{candidate.version} against {candidate.baseline}"],
    }


def test_up_from_a_trajectory_to_the_tasks_that_trained_the_version_which_gave_it(
    cast: Cast, build: Build, candidate: Candidate
) -> None:
    source = build.trajectory(version=candidate.baseline)
    run = used(cast, candidate, source)
    answer = build.trajectory(claims={"answered_by": [f"{candidate.version}:{candidate.version.digest}"]})
    train = TaskSetMember.objects.filter(task_set=candidate.version_eval.task_set, split="train")
    assert shown(cast, "trajectory", answer.trace_id, "up") == {
        "Versions that answered": [str(candidate.version)],
        "Training runs": [str(run)],
        "Datasets": ["mail-sft@1"],
        "Task sets": [str(candidate.version_eval.task_set)],
        "Tasks trained on": [f"{each.task} of mail" for each in train.order_by("task__pk")],
        "Source trajectories": [source.title],
    }
    assert shown(cast, "version", candidate.version, "down")["Traffic that it answered"] == [answer.title]
