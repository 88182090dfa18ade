"""The registry of relations between kinds of objects, each written once for both directions.

A relation goes from what was there (`source`) to what was made of it (`target`). A new one is a line here, and where a
foreign key does not say it, a step in `relation_steps.py`.
"""

from dataclasses import dataclass
from enum import IntFlag

from flywheel.agents.models import RewardModel, Version
from flywheel.environments.models import Environment, Suite, Task, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.failures.models import QueueItem, Recurrence
from flywheel.promotions.lineage import relation_steps
from flywheel.promotions.lineage.relation_steps import Step, having, linked, named_by
from flywheel.promotions.models import Candidate, Promotion, Ramp
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


COUNTED = 10_000
"""Objects, at most; of longer lists it is said that they are longer."""
NEAR, ON, FAR, THROUGH = Reach.NEAR, Reach.ON, Reach.FAR, Reach.THROUGH


@dataclass(frozen=True, slots=True)
class Direction:
    title: str
    """Of what it leads to."""
    step: Step
    reach: Reach = NEAR
    most: int = COUNTED
    """It is counted to; less where a row costs more than a step in an index."""


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
        "category",
        "failure",
        "bucket",
        None,  # a decision is named by it, and a bucket that every project has is no row
        Direction("Decisions", relation_steps.decisions_of_bucket),
    ),
    Relation(
        "labelled",
        "trajectory",
        "bucket",
        None,
        Direction("Trajectories labelled with it", relation_steps.trajectories_of_bucket),
    ),
    Relation(
        "category_task",
        "bucket",
        "task",
        Direction("Tasks", relation_steps.tasks_of_bucket, NEAR | ON),
        None,
    ),
    Relation(
        "category_claim",
        "bucket",
        "version",
        Direction("Versions that claim to have fixed it", relation_steps.claimants_of_bucket),
        None,
    ),
    Relation(
        "coming_back",
        "bucket",
        "recurrence",
        Direction("Recurrences", relation_steps.recurrences_of_bucket),
        None,
    ),
    Relation(
        "world",
        "environment",
        "task",
        Direction("Tasks", relation_steps.tasks_of_environments, NEAR | ON),
        Direction("Environment", named_by(Environment, "environment")),
    ),
    Relation(
        "world_set",
        "environment",
        "task_set",
        Direction("Task sets", having(TaskSet, "environment_version__environment")),
        Direction("Environment", named_by(Environment, "environment_version__environment")),
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
        "guard",
        "task_set",
        "suite",
        Direction("Regression suites", having(Suite, "task_set")),
        Direction("Task set", named_by(TaskSet, "task_set"), NEAR | ON),
    ),
    Relation(
        "guard_run",
        "suite",
        "eval_run",
        Direction("Evals", relation_steps.runs_of_suites),
        Direction("Regression suites", relation_steps.suites_of_runs),
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
        "release",
        "candidate",
        "ramp",
        Direction("Ramps", having(Ramp, "candidate")),
        Direction("Candidate", named_by(Candidate, "candidate"), NEAR | ON),
    ),
    Relation(
        "end",
        "ramp",
        "promotion",
        Direction("Promotion", named_by(Promotion, "promotion")),
        Direction("Ramp", having(Ramp, "promotion")),
    ),
    Relation(
        "met_candidate",
        "ramp",
        "trajectory",
        Direction("Traffic of the candidate's sessions", relation_steps.met(is_candidate=True), most=2_000),
        Direction("Ramps, in the candidate's arm", relation_steps.ramps_met(is_candidate=True)),
    ),
    Relation(
        "met_live",
        "ramp",
        "trajectory",
        Direction("Traffic of the live version's sessions", relation_steps.met(is_candidate=False), most=2_000),
        Direction("Ramps, in the live version's arm", relation_steps.ramps_met(is_candidate=False)),
    ),
    Relation(
        "broken_claim",
        "version",
        "recurrence",
        Direction("Claims that broke", having(Recurrence, "version")),
        Direction("Version whose claim broke", named_by(Version, "version"), NEAR | ON),
    ),
    Relation(
        "sign",
        "trajectory",
        "recurrence",
        Direction("Recurrences", relation_steps.recurrences_of_trajectories),
        Direction("Trajectories that showed it", relation_steps.trajectories_of_recurrences),
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
