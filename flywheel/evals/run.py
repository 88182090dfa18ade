"""Submit an eval run, and read what came of it."""

import hashlib
import uuid
from dataclasses import asdict, replace
from typing import Any

from django.db import transaction

from flywheel.accounts.models import User, record
from flywheel.agents.content import DEFAULT_SAMPLING, BadContent, check_sampling
from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.core.metrics import Row, clusters_of, slices, solve_rates, summarise
from flywheel.core.stats import Estimate, clustered_rate
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun

SUMMARY_SEED = 1
"""Of the bootstraps in a summary, so that the same results always give the same numbers."""
TRAINED_ON, NEVER_TRAINED_ON = "wording trained on", "wording never trained on"
GUARDS = "guards a success"
"""Stands for the bucket of a task that was made of a success."""
MAX_SAMPLES = 64
MAX_SEED = 2**31 - 1


class CannotEvaluate(ValueError):
    """The run cannot be submitted; `field` says where, the message what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def submit(
    *,
    key: uuid.UUID,
    version: Version,
    task_set: TaskSet,
    actor: User,
    split: str = Split.HELD_OUT,
    samples: int = 4,
    seed: int = 1,
    sampling: dict[str, Any] | None = None,
    through: str = "",
) -> tuple[EvalRun, bool]:
    """Queue the version's attempts at a split: n tasks × `samples`. Returns the run and whether it is new.

    `sampling` is the version's own unless another is given. Raises CannotEvaluate.
    """
    if version.agent.project_id != task_set.project_id:
        raise CannotEvaluate("version", f"{version} belongs to another project than {task_set}")
    if split not in (Split.TRAIN, Split.HELD_OUT):
        raise CannotEvaluate("split", f"{split!r} is unknown, {Split.TRAIN} or {Split.HELD_OUT} is wanted")
    if not 1 <= samples <= MAX_SAMPLES:
        raise CannotEvaluate("samples", f"{samples} is not between 1 and {MAX_SAMPLES}")
    if not 0 <= seed <= MAX_SEED:
        raise CannotEvaluate("seed", f"{seed} is not between 0 and {MAX_SEED}")
    tasks = task_set.members.filter(split=split).count()
    if not tasks:
        raise CannotEvaluate("task_set", f"{task_set} has no {Split(split).label} task")
    try:
        chosen = {**DEFAULT_SAMPLING, **check_sampling({**version.sampling, **(sampling or {})})}
    except BadContent as error:
        raise CannotEvaluate(error.field, error.problem) from error
    with transaction.atomic():
        run, made = EvalRun.submit(
            key=key,
            project=task_set.project,
            created_by=actor,
            version=version,
            task_set=task_set,
            split=split,
            samples=samples,
            sampling=chosen,
            seed=seed,
            total=tasks * samples,
            verifier_digest=verifiers.digest(task_set.environment_version.verifier),
        )
        if made:
            record(
                project=task_set.project,
                actor=actor,
                action="evals.submit",
                subject=f"eval {run.pk}",
                through=through,
                version=str(version),
                task_set=str(task_set),
                split=split,
                attempts=tasks * samples,
            )
    return run, made


def cancel(*, run: EvalRun, actor: User, through: str = "") -> None:
    """Ask for an end; what was attempted is kept. Raises StaleState when the run is over already."""
    with transaction.atomic():
        run.cancel()
        record(project=run.project, actor=actor, action="evals.cancel", subject=run, through=through)


def resume(*, run: EvalRun, actor: User, through: str = "") -> None:
    """Queue a failed or cancelled run again; it goes on with the attempts that have no result. Raises StaleState."""
    with transaction.atomic():
        run.requeue()
        record(project=run.project, actor=actor, action="evals.resume", subject=run, through=through)


def attempt_seed(run: EvalRun, task: Task, sample: int) -> int:
    """The seed of one attempt: the same for every version that is asked with the run's seed, so arms are paired."""
    text = f"{run.seed}/{task.digest}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def rows_of(run: EvalRun) -> list[Row]:
    """Every result as `core.metrics` takes it."""
    return [
        Row(
            task_id=str(result.task),
            cluster=result.task.cluster,
            sample=result.sample,
            score=result.score,
            success=result.success,
            parts=result.parts,
            tokens_in=result.tokens_in,
            tokens_out=result.tokens_out,
            cost_usd=result.cost_usd,
            latency_ms=result.latency_ms,
            error=result.error,
        )
        for result in run.results.select_related("task").order_by("task__number", "sample")
    ]


def summary_of(run: EvalRun) -> dict[str, Any]:
    """Every metric with its interval and n, over all tasks and by slice and bucket; JSON."""
    rows = rows_of(run)
    members = list(run.task_set.members.filter(split=run.split).select_related("task"))
    trained = set(
        run.task_set.members.filter(split=Split.TRAIN).exclude(task__slice="").values_list("task__slice", flat=True)
    )
    slice_of = {str(m.task): m.task.slice for m in members if m.task.slice}
    familiar = {name: TRAINED_ON if value in trained else NEVER_TRAINED_ON for name, value in slice_of.items()}
    return {
        "metrics": {name: asdict(estimate) for name, estimate in summarise(rows, SUMMARY_SEED).items()},
        "slices": _by(rows, slice_of),
        "familiar": _by(rows, familiar),
        "buckets": _by(rows, bucket_of(run)),
    }


def bucket_of(run: EvalRun) -> dict[str, str]:
    """The bucket of each task of the run's split, by the task's name."""
    members = run.task_set.members.filter(split=run.split).select_related("task")
    return {str(member.task): member.task.bucket or GUARDS for member in members}


def times_opened(task_set: TaskSet) -> int:
    """How many eval runs have looked at the set's held-out split."""
    return EvalRun.objects.filter(task_set=task_set, split=Split.HELD_OUT, done__gt=0).count()


def _by(rows: list[Row], key: dict[str, str]) -> dict[str, Any]:
    groups = slices(rows, lambda row: key.get(row.task_id))
    return {
        name: asdict(_success(group)) | {"tasks": len({r.task_id for r in group})} for name, group in groups.items()
    }


def _success(rows: list[Row]) -> Estimate:
    means, cluster = solve_rates(rows), clusters_of(rows)
    estimate = clustered_rate(list(means.values()), [cluster[task] for task in means])
    return replace(estimate, unscored=sum(row.success is None for row in rows))
