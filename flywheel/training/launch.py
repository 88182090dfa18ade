"""Launch a training run: check everything a person chose, freeze it, queue it."""

import uuid
from typing import Any

from django.db import transaction

from flywheel.accounts.models import User, record
from flywheel.agents.models import Version
from flywheel.core import recipes
from flywheel.core.digests import digest
from flywheel.core.fixes import Fix
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.jobs import State
from flywheel.training import dataset as datasets
from flywheel.training.models import Dataset, Recommendation, TrainingRun

FIX_OF: dict[str, Fix] = {"sft": "sft", "dpo": "dpo", **dict.fromkeys(recipes.REINFORCED, "rlvr")}
"""Which step of the fix ladder an algorithm carries out."""


class CannotLaunch(ValueError):
    """The run cannot be launched; the message names the field and what would be right."""


def baseline_of(version: Version, task_set: TaskSet) -> EvalRun | None:
    """The newest finished eval of the version on the set's held-out split."""
    return (
        EvalRun.objects.filter(version=version, task_set=task_set, split=Split.HELD_OUT, state=State.SUCCEEDED)
        .order_by("-pk")
        .first()
    )


def launch(
    *,
    key: uuid.UUID,
    base: Version,
    algorithm: str,
    task_set: TaskSet,
    actor: User,
    dataset: Dataset | None = None,
    settings: dict[str, Any] | None = None,
    tuning: dict[str, Any] | None = None,
    seed: int = 1,
    slot: str = "local-0",
    recommendation: Recommendation | None = None,
    override_reason: str = "",
    through: str = "",
) -> tuple[TrainingRun, bool]:
    """Freeze every reference and queue the run. Returns it and whether it is new.

    Without a dataset the fitting one is built from the set's corrected failures. Raises CannotLaunch, and
    training.dataset.CannotBuild when there is nothing to train on.
    """
    if algorithm not in recipes.ALGORITHMS:
        raise CannotLaunch(f"algorithm: {algorithm!r} is unknown, one of {', '.join(recipes.ALGORITHMS)} is wanted")
    if base.weights is None:
        raise CannotLaunch(f"base: {base} has no weights here; only a version with its own weights can be trained")
    try:
        chosen = recipes.validate(algorithm, settings or {})
    except ValueError as error:
        raise CannotLaunch(f"settings: {error}") from error
    tuned = _tuning(tuning or {"mode": "full"})
    baseline = baseline_of(base, task_set)
    if baseline is None:
        raise CannotLaunch(
            f"base: evaluate {base} on the held-out tasks of {task_set} first; without it nothing compares"
        )
    _check_override(algorithm, recommendation, override_reason)
    kind = recipes.ALGORITHMS[algorithm].data
    if dataset is None:
        dataset = datasets.build(
            name=f"{task_set.name}-{kind}", kind=kind, task_set=task_set, actor=actor, through=through
        )
    if dataset.kind != kind or dataset.task_set_id != task_set.pk:
        raise CannotLaunch(
            f"dataset: {dataset} holds {dataset.kind} rows of {dataset.task_set}; {algorithm} wants {kind}"
        )
    content = {
        "base": base.digest,
        "algorithm": algorithm,
        "dataset": dataset.digest,
        "task_set": task_set.digest,
        "settings": chosen,
        "tuning": tuned,
        "seed": seed,
    }
    with transaction.atomic():
        run, made = TrainingRun.submit(
            key=key,
            project=task_set.project,
            created_by=actor,
            base=base,
            dataset=dataset,
            task_set=task_set,
            baseline=baseline,
            algorithm=algorithm,
            tuning=tuned,
            settings=chosen,
            seed=seed,
            slot=slot,
            spec_digest=digest(content),
            recommendation=recommendation,
            override_reason=override_reason,
            total=chosen["steps"],
        )
        if made:
            record(
                project=task_set.project,
                actor=actor,
                action="training.launch",
                subject=run,
                reason=override_reason,
                through=through,
                spec=content,
            )
    return run, made


def _tuning(value: dict[str, Any]) -> dict[str, Any]:
    mode = value.get("mode")
    if mode == "full":
        return {"mode": "full"}
    if mode != "lora":
        raise CannotLaunch(f"tuning.mode: {mode!r} is unknown, full or lora is wanted")
    tuned = {"mode": "lora", "rank": value.get("rank", 8), "alpha": value.get("alpha", 16)}
    for name in ("rank", "alpha"):
        if isinstance(tuned[name], bool) or not isinstance(tuned[name], int) or not 1 <= tuned[name] <= 512:
            raise CannotLaunch(f"tuning.{name}: {tuned[name]!r} is not a whole number from 1 to 512")
    return tuned


def _check_override(algorithm: str, recommendation: Recommendation | None, reason: str) -> None:
    if recommendation is None or not recommendation.ladder:
        return
    lightest = recommendation.ladder[0]["fix"]
    if FIX_OF[algorithm] != lightest and not reason.strip():
        raise CannotLaunch(
            f"override_reason: {lightest} is recommended and {algorithm} was chosen; say why, it is kept with the run"
        )
