"""Submit an eval run, and read what came of it."""

import hashlib
import uuid
from dataclasses import asdict
from typing import Any

from django.db import transaction

from flywheel.accounts.models import User, record
from flywheel.agents.models import Version
from flywheel.core.metrics import Row, slices, summarise
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.models import EvalRun

SUMMARY_SEED = 1
"""Of the bootstraps in a summary, so that the same results always give the same numbers."""


class CannotEvaluate(ValueError):
    """The run cannot be submitted; the message names the field and what would be right."""


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
    if split not in (Split.TRAIN, Split.HELD_OUT):
        raise CannotEvaluate(f"split: {split!r} is unknown, train or held_out is wanted")
    if not 1 <= samples <= 64:
        raise CannotEvaluate(f"samples: {samples} is not between 1 and 64")
    tasks = task_set.members.filter(split=split).count()
    if not tasks:
        raise CannotEvaluate(f"task_set: {task_set} has no {Split(split).label} task")
    chosen = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 128, **version.sampling, **(sampling or {})}
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
            verifier_digest=task_set.environment_version.verifier_digest,
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
            )
    return run, made


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
    members = run.task_set.members.filter(split=run.split).select_related("task")
    trained = set(
        run.task_set.members.filter(split=Split.TRAIN).exclude(task__slice="").values_list("task__slice", flat=True)
    )
    slice_of = {str(m.task): m.task.slice for m in members if m.task.slice}
    bucket_of = {str(m.task): m.task.bucket or "guards a success" for m in members}
    familiar = {
        name: "wording trained on" if value in trained else "wording never trained on"
        for name, value in slice_of.items()
    }
    return {
        "metrics": {name: asdict(estimate) for name, estimate in summarise(rows, SUMMARY_SEED).items()},
        "slices": _by(rows, slice_of),
        "familiar": _by(rows, familiar),
        "buckets": _by(rows, bucket_of),
    }


def times_opened(task_set: TaskSet) -> int:
    """How many eval runs have looked at the set's held-out split."""
    return EvalRun.objects.filter(task_set=task_set, split=Split.HELD_OUT, done__gt=0).count()


def _by(rows: list[Row], key: dict[str, str]) -> dict[str, Any]:
    return {
        name: asdict(summarise(group, SUMMARY_SEED)["success"]) | {"tasks": len({row.task_id for row in group})}
        for name, group in slices(rows, lambda row: key.get(row.task_id)).items()
    }
