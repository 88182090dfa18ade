"""The registry of relations between kinds of objects, each written once for both directions.

A relation goes from what was there (`source`) to what was made of it (`target`). A new one is a line here, and where a
foreign key does not say it, a step in `relation_steps.py`.
"""

from dataclasses import dataclass
from enum import IntFlag

from flywheel.agents.models import RewardModel, Version
from flywheel.environments.models import Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.models import QueueItem
from flywheel.promotions.lineage import relation_steps
from flywheel.promotions.lineage.relation_steps import Step, having, linked, named_by
from flywheel.promotions.models import Candidate, Promotion
from flywheel.training.models import Dataset, FixTrial, TrainingRun
from flywheel.trajectories.models import Trajectory


class Reach(IntFlag):
    """The way in which a relation is followed in one direction."""

    NEAR = 1
    """Shown at the object whose lineage it is."""
    ON = 2
    """What it leads to is followed further."""
    FAR = 4
    """Followed, and shown, from what other relations led to."""
    THROUGH = NEAR | ON | FAR


NEAR, ON, FAR, THROUGH = Reach.NEAR, Reach.ON, Reach.FAR, Reach.THROUGH


@dataclass(frozen=True, slots=True)
class Direction:
    title: str
    """Of what it leads to."""
    step: Step
    reach: Reach = NEAR


@dataclass(frozen=True, slots=True)
class Relation:
    name: str
    source: str
    target: str
    down: Direction | None
    """From sources to targets."""
    up: Direction | None
    """From targets to sources."""


RELATIONS = (
    Relation(
        "answered",
        "version",
        "trajectory",
        Direction("Traffic that it answered", relation_steps.answered),
        Direction("Versions that answered", relation_steps.answerers),
    ),
    Relation(
        "answered_in_part",
        "version",
        "trajectory",
        Direction("Traffic that it answered in part", relation_steps.answered_in_part),
        None,  # `answered` leads back to all of them
    ),
    Relation(
        "reported",
        "version",
        "trajectory",
        Direction("Traffic that only its sender calls its own", relation_steps.reported),
        Direction("Version by its sender's word", relation_steps.reported_versions),
    ),
    Relation(
        "attempted_by",
        "version",
        "trajectory",
        None,  # its evals and runs lead to its attempts
        Direction("Version that ran", relation_steps.run_versions),
    ),
    Relation(
        "gave",
        "version",
        "trajectory",
        Direction("Traffic", relation_steps.gave, ON),
        Direction("Versions that the failures are from", relation_steps.givers, ON | FAR),
    ),
    Relation(
        "queue",
        "trajectory",
        "queue_item",
        Direction("Queues", having(QueueItem, "trajectory")),
        Direction("Trajectory", named_by(Trajectory, "trajectory")),
    ),
    Relation(
        "decision",
        "trajectory",
        "failure",
        Direction("Decision", relation_steps.decisions),
        Direction("Trajectory", named_by(Trajectory, "trajectory"), NEAR | ON),
    ),
    Relation(
        "review",
        "queue_item",
        "failure",
        Direction("Decision", relation_steps.decisions_of_items),
        Direction("Queues", relation_steps.items_of_decisions),
    ),
    Relation(
        "correction",
        "failure",
        "task",
        Direction("Tasks", relation_steps.tasks_of_failures, NEAR | ON),
        Direction("Failures", relation_steps.failures_of_tasks, NEAR | FAR),
    ),
    Relation(
        "source",
        "trajectory",
        "task",
        Direction("Tasks", relation_steps.tasks_of_trajectories, THROUGH),
        Direction("Source trajectories", relation_steps.trajectories_of_tasks, THROUGH),
    ),
    Relation(
        "variant",
        "task",
        "task",
        Direction("Variants", having(Task, "generation__origin")),
        Direction("Task that it varies", named_by(Task, "generation__origin")),
    ),
    Relation(
        "attempt",
        "task",
        "trajectory",
        Direction("Rollouts", having(Trajectory, "result__task")),
        Direction("Task that it attempts", linked(Task, Result, "task", "trajectory")),
    ),
    Relation(
        "member",
        "task",
        "task_set",
        Direction("Task sets", relation_steps.sets_of_tasks, NEAR | FAR),
        Direction("Tasks", relation_steps.tasks_of_sets, NEAR | ON),
    ),
    Relation(
        "test",
        "task",
        "eval_run",
        Direction("Evals of these tasks", relation_steps.runs_of_tasks, NEAR | FAR),
        Direction("Tasks", relation_steps.tasks_of_runs),
    ),
    Relation(
        "test_set",
        "task_set",
        "eval_run",
        Direction("Evals", having(EvalRun, "task_set")),
        Direction("Task set", named_by(TaskSet, "task_set")),
    ),
    Relation(
        "tested_version",
        "version",
        "eval_run",
        Direction("Evals", having(EvalRun, "version")),
        Direction("Version", named_by(Version, "version"), NEAR | ON),
    ),
    Relation(
        "rollout",
        "eval_run",
        "trajectory",
        Direction("Rollouts", having(Trajectory, "result__run")),
        Direction("Eval", linked(EvalRun, Result, "run", "trajectory")),
    ),
    Relation(
        "lesson",
        "task",
        "dataset",
        Direction("Datasets", relation_steps.datasets_of_tasks, THROUGH),
        Direction("Tasks trained on", relation_steps.tasks_of_datasets, THROUGH),
    ),
    Relation(
        "lesson_set",
        "task_set",
        "dataset",
        Direction("Datasets", relation_steps.datasets_of_sets, NEAR | ON),
        Direction("Task sets", relation_steps.sets_of_datasets, NEAR | FAR),
    ),
    Relation(
        "demonstration",
        "trajectory",
        "dataset",
        Direction("Datasets that show it", relation_steps.datasets_of_trajectories, NEAR | ON),
        Direction("Trajectories learned from directly", relation_steps.trajectories_of_datasets),
    ),
    Relation(
        "collection",
        "eval_run",
        "dataset",
        Direction("Datasets", relation_steps.datasets_of_runs, NEAR | ON),
        Direction("Eval with the rollouts", relation_steps.runs_of_datasets),
    ),
    Relation(
        "mix",
        "dataset",
        "dataset",
        Direction("Mixed datasets", relation_steps.mixes_of),
        Direction("Parts of the mix", relation_steps.parts_of),
    ),
    Relation(
        "data",
        "dataset",
        "training_run",
        Direction("Training runs", having(TrainingRun, "dataset", "replay"), THROUGH),
        Direction("Datasets", named_by(Dataset, "dataset", "replay"), THROUGH),
    ),
    Relation(
        "base",
        "version",
        "training_run",
        Direction("Training runs from it", having(TrainingRun, "base", "teacher")),
        Direction("Versions that it began with", named_by(Version, "base", "teacher")),
    ),
    Relation(
        "try",
        "training_run",
        "trajectory",
        Direction("Attempts while it trained", having(Trajectory, "training_attempt__run")),
        Direction("Training run", named_by(TrainingRun, "training_attempt__run")),
    ),
    Relation(
        "product",
        "training_run",
        "version",
        Direction("Versions", relation_steps.versions_of_runs, THROUGH),
        Direction("Training runs", relation_steps.runs_of_versions, THROUGH),
    ),
    Relation(
        "judge",
        "training_run",
        "reward_model",
        Direction("Reward models", named_by(RewardModel, "reward_model"), NEAR | FAR),
        Direction("Training runs", having(TrainingRun, "reward_model"), NEAR | ON),
    ),
    Relation(
        "change",
        "version",
        "version",
        Direction("Versions changed from it", having(Version, "parent")),
        Direction("Version before the change", named_by(Version, "parent")),
    ),
    Relation(
        "trial",
        "version",
        "fix_trial",
        Direction("Fix trials", having(FixTrial, "parent")),
        Direction("Version", named_by(Version, "parent"), NEAR | ON),
    ),
    Relation(
        "draft",
        "fix_trial",
        "version",
        Direction("Drafts", having(Version, "fix_drafts__trial"), NEAR | ON),
        Direction("Fix trials", having(FixTrial, "drafts__version"), NEAR | FAR),
    ),
    Relation(
        "proposal",
        "version",
        "candidate",
        Direction("Candidates", having(Candidate, "version"), THROUGH),
        Direction("Version", named_by(Version, "version"), THROUGH),
    ),
    Relation(
        "baseline",
        "version",
        "candidate",
        Direction("Candidates compared with it", having(Candidate, "baseline")),
        Direction("Version that was live", named_by(Version, "baseline")),
    ),
    Relation(
        "evidence",
        "eval_run",
        "candidate",
        Direction("Candidates", having(Candidate, "version_eval", "baseline_eval")),
        Direction("Evals of the comparison", named_by(EvalRun, "version_eval", "baseline_eval")),
    ),
    Relation(
        "approval",
        "candidate",
        "promotion",
        Direction("Promotions", having(Promotion, "candidate"), THROUGH),
        Direction("Candidate", named_by(Candidate, "candidate"), THROUGH),
    ),
    Relation(
        "move",
        "version",
        "promotion",
        Direction("Promotions", having(Promotion, "after")),
        Direction("Version", named_by(Version, "after"), NEAR | ON),
    ),
)
