"""A version with weights, a task set, and the version's finished evals, as far as this room looks at them."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact, Version
from flywheel.core.traces import tooling
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.run_summaries import summary_of
from flywheel.training.datasets import build_jobs
from flywheel.training.datasets.demonstrations import Wanted
from flywheel.training.launch.run_control import LaunchRequest, launch
from flywheel.training.models import Dataset, DatasetBuild, Point, TrainingRun
from flywheel.trajectories.import_export import uploads
from tests.conftest import Build, Cast
from workers.jobs.training import dataset_builds
from workers.reference import build as build_policy

WRONG = tooling.call_text("email.send", {"to": "Bako", "subject": "friday"})
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass
class Room:
    """What a launch needs, all of it there."""

    cast: Cast
    build: Build
    base: Version
    task_set: TaskSet
    baseline: EvalRun

    def evaluated(
        self,
        answers: Callable[[Task, int], str | None] | None = None,
        *,
        split: str = Split.HELD_OUT,
        samples: int = 2,
        task_set: TaskSet | None = None,
        state: str = State.SUCCEEDED,
        success: Sequence[bool | None] = (True, False),
    ) -> EvalRun:
        """A finished eval. Sample k passes as `success[k]` says; `answers` also stores what was said."""
        task_set = task_set or self.task_set
        run = EvalRun.objects.create(
            project=self.cast.project,
            created_by=self.cast.trainer,
            version=self.base,
            task_set=task_set,
            split=split,
            samples=samples,
            state=state,
        )
        for member in task_set.members.filter(split=split).select_related("task").order_by("task__number"):
            for sample in range(samples):
                passed = success[sample % len(success)]
                said = answers(member.task, sample) if answers else None
                Result.objects.create(
                    run=run,
                    task=member.task,
                    sample=sample,
                    seed=sample,
                    score=None if passed is None else float(passed),
                    success=passed,
                    parts={} if passed is None else {"valid_json": 1.0},
                    trajectory=self.build.trajectory(member.task.prompt, said, source="rollout") if said else None,
                )
        run.summary = summary_of(run)
        run.save()
        return run

    def launch(self, **fields: Any) -> TrainingRun:
        defaults: dict[str, Any] = {
            "key": uuid.uuid4(),
            "base": self.base,
            "algorithm": "sft",
            "task_set": self.task_set,
            "override_reason": "a test",
        }
        return launch(LaunchRequest(**{**defaults, **fields}), Actor(self.cast.trainer))[0]

    def measured(self, run: TrainingRun, steps: int, **metrics: Callable[[int], float]) -> None:
        """Points of a run's steps, a second apart."""
        Point.objects.bulk_create(
            Point(
                run=run,
                kind=Point.Kind.STEP,
                step=step,
                at=NOON + timedelta(seconds=step),
                values={name.replace("__", "/"): value(step) for name, value in metrics.items()},
            )
            for step in range(1, steps + 1)
        )

    def asked(self, run: TrainingRun, success: dict[int, float | None]) -> None:
        """Held-out evaluations of a run by step."""
        for step, value in success.items():
            Point.objects.create(
                run=run,
                kind=Point.Kind.EVAL,
                step=step,
                at=NOON,
                values={"success": value, "n": 8, "unscored": 0, "seconds": 1.0},
            )


@pytest.fixture
def room(cast: Cast, build: Build) -> Room:
    return _room(cast, build, Artifact.objects.create(digest="a" * 64, manifest={}, kind="model", size=2_800_000))


@pytest.fixture
def weighty(cast: Cast, build: Build) -> Room:
    """The base has the reference policy's weights."""
    return _room(cast, build, artifacts.store(build_policy.POLICY, "model"))


def _room(cast: Cast, build: Build, weights: Artifact) -> Room:
    base = build.version(weights=weights)
    task_set = build.task_set(train=6, held_out=8)
    task_set.tasks.filter(split=Split.TRAIN).update(bucket="wrong_tool")
    room = Room(cast, build, base, task_set, EvalRun())
    room.baseline = room.evaluated()
    build.overridden(base, task_set)
    return room


def built(job: DatasetBuild) -> Dataset:
    """Carry a build out here and now. Raises Refused as it does."""
    lease = DatasetBuild.claim(job.pk)
    assert lease is not None
    dataset_builds.build(lease)
    job.refresh_from_db()
    assert job.dataset is not None
    return job.dataset


def uploaded(room: Room, source: BinaryIO, name: str = "talks", **fields: Any) -> Dataset:
    """The dataset of a file."""
    project, trainer = room.cast.project, room.cast.trainer
    upload = uploads.keep(project, trainer, "talks.jsonl", source)
    about = {"card": {"licence": "MIT"}, "key": uuid.uuid4(), **fields}
    return built(build_jobs.submit_upload(project=project, name=name, upload=upload, actor=Actor(trainer), **about))


def frozen(room: Room, wanted: Wanted, name: str = "good") -> Dataset:
    """The dataset of chosen trajectories."""
    actor = Actor(room.cast.trainer)
    return built(build_jobs.submit_choice(name=name, wanted=wanted, actor=actor, key=uuid.uuid4()))


def right(task: Task) -> str:
    """The answer that a task wants, as its environment writes it."""
    wanted = task.target["arguments"]
    return tooling.call_text(task.target["tool"], {name: wanted[name] for name in ("person", "day")})
