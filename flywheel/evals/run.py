"""Submit an eval run, and read what came of it."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from flywheel import env
from flywheel.accounts.models import User, record
from flywheel.agents.content import DEFAULT_SAMPLING, BadContent, check_sampling
from flywheel.agents.lora import NotServable
from flywheel.agents.models import Version
from flywheel.core import verifiers
from flywheel.core.errors import FieldError
from flywheel.core.metrics import Row, clusters_of, pass_at_k, pass_hat_k, slices, solve_rates, summarise
from flywheel.core.stats import Estimate, clustered_rate
from flywheel.environments import ledger
from flywheel.environments.models import MEASURED, Opening, Split, Task, TaskSet
from flywheel.evals import budget as budgets
from flywheel.evals import served, unanswered
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.void import void_of
from flywheel.jobs import StaleState, State

SUMMARY_SEED = 1
"""Of the bootstraps in a summary, so that the same results always give the same numbers."""
TRAINED_ON, NEVER_TRAINED_ON = "wording trained on", "wording never trained on"
REAL, SYNTHETIC = "real", "synthetic"
"""Tasks that come of something that happened, and those that were made."""
GUARDS = "guards a success"
"""Stands for the bucket of a task that was made of a success."""
MAX_SAMPLES = 64
MAX_SEED = 2**31 - 1


class CannotEvaluate(FieldError):
    """The run cannot be submitted; `field` says where, the message what would be right."""


class Sealed(PermissionDenied):
    """Nobody sees what came of single tasks of a sealed part; the message says where the numbers stand."""


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
    engine: str = Engine.ENDPOINT,
    budget: Mapping[str, Any] | None = None,
    is_final: bool = False,
    through: str = "",
) -> tuple[EvalRun, bool]:
    """Queue the version's attempts at a split: n tasks × `samples`. Returns the run and whether it is new.

    `sampling` is the version's own unless another is given; `engine`, what its endpoint says; `budget`, what it may
    take at most (`budget.py`). The sealed split is asked by a candidate's final comparison alone, `is_final`. Raises
    CannotEvaluate.
    """
    if version.agent.project_id != task_set.project_id:
        raise CannotEvaluate("version", f"{version} belongs to another project than {task_set}")
    if split == Split.SEALED and not is_final:
        raise CannotEvaluate("split", "sealed tasks are asked by a candidate's final comparison alone, from its page")
    if split not in (Split.TRAIN, *MEASURED):
        raise CannotEvaluate("split", f"{split!r} is unknown, {Split.TRAIN} or {Split.HELD_OUT} is wanted")
    if not 1 <= samples <= MAX_SAMPLES:
        raise CannotEvaluate("samples", f"{samples} is not between 1 and {MAX_SAMPLES}")
    if not 0 <= seed <= MAX_SEED:
        raise CannotEvaluate("seed", f"{seed} is not between 0 and {MAX_SEED}")
    _check_engine(engine, version)
    tasks = task_set.members.filter(split=split).count()
    if not tasks:
        raise CannotEvaluate("task_set", f"{task_set} has no {Split(split).label} task")
    try:
        chosen = sampling_of(version, sampling)
        limits = budgets.check(budget or {}, version, task_set.environment_version.verifier)
    except (BadContent, budgets.BadBudget) as error:
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
            engine=engine,
            budget=limits,
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
                engine=engine,
            )
    return run, made


def sampling_of(version: Version, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """How a run samples: the version's own way unless another is given, complete. Raises BadContent."""
    return {**DEFAULT_SAMPLING, **check_sampling({**version.sampling, **(given or {})})}


def _check_engine(engine: str, version: Version) -> None:
    if engine not in Engine.values:
        raise CannotEvaluate("engine", f"{engine!r} is unknown, {Engine.VLLM} is wanted or nothing")
    if engine == Engine.VLLM:
        if not env.vllm_url():
            raise CannotEvaluate("engine", "no vLLM server is set here; make serve starts one, and says how to set it")
        try:
            served.check(version)
        except NotServable as error:
            raise CannotEvaluate("engine", str(error)) from error


def cancel(*, run: EvalRun, actor: User, through: str = "") -> None:
    """Ask for an end; what was attempted is kept. Raises StaleState when the run is over already."""
    with transaction.atomic():
        run.cancel()
        record(project=run.project, actor=actor, action="evals.cancel", subject=run, through=through)


def resume(*, run: EvalRun, actor: User, budget: Mapping[str, Any] | None = None, through: str = "") -> None:
    """Queue a failed or cancelled run again; it goes on with the attempts that have no result. Raises StaleState.

    Those for which the server was away are asked again, also of a run that ended well (`unanswered.py`). With `budget`,
    under that one from now on: what was spent of tokens and dollars stays spent, and one that is spent already raises
    CannotEvaluate; a run that ended well has no use for one. A run whose judge passed a canary stays as it is: another
    go might hide it.
    """
    if void_of(run.judges):
        raise StaleState(f"{run} is void; submit it anew, or have another verifier judge its rollouts")
    has_ended = run.state == State.SUCCEEDED
    if has_ended and budget:
        raise CannotEvaluate("budget", f"{run} ended well; what is asked again of it has no budget")
    with transaction.atomic():
        run.requeue(*([State.SUCCEEDED] if has_ended else []))
        # Now that the row is locked: nothing comes to rest on it meanwhile.
        if has_ended and (problem := unanswered.refusal(run)):
            raise StaleState(problem)
        if budget is not None and not has_ended:
            _give_budget(run, budget)
        again: dict[str, Any] = {"asked_again": count} if (count := unanswered.take_back(run)) else {}
        if spent := budgets.spent(run, timedelta(0)):
            raise CannotEvaluate("budget", f"{spent}; resume it with a greater budget, or with none")
        record(
            project=run.project,
            actor=actor,
            action="evals.resume",
            subject=run,
            through=through,
            **({} if budget is None else {"budget": run.budget}) | again,
        )


def _give_budget(run: EvalRun, budget: Mapping[str, Any]) -> None:
    try:
        run.budget = budgets.check(budget, run.version, run.task_set.environment_version.verifier)
    except budgets.BadBudget as error:
        raise CannotEvaluate(error.field, error.problem) from error
    run.save(update_fields=["budget"])


def attempt_seed(run: EvalRun, task: Task, sample: int) -> int:
    """The seed of one attempt: the same for every version that is asked with the run's seed, so arms are paired."""
    text = f"{run.seed}/{task.digest}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


_MEASURED = ("score", "success", "parts", "tokens_in", "tokens_out", "cost_usd", "latency_ms", "error")


def rows_of(run: EvalRun) -> list[Row]:
    """Every result as `core.metrics` takes it."""
    return _rows(run, _tasks(run))


def summary_of(run: EvalRun) -> dict[str, Any]:
    """Every metric with its interval and n, over all tasks and by slice and bucket; JSON."""
    by_key = _tasks(run)
    rows, tasks = _rows(run, by_key), {str(task): task for task in by_key.values()}
    trained = set(
        run.task_set.members.filter(split=Split.TRAIN).exclude(task__slice="").values_list("task__slice", flat=True)
    )
    slice_of = {name: task.slice for name, task in tasks.items() if task.slice}
    familiar = {name: TRAINED_ON if value in trained else NEVER_TRAINED_ON for name, value in slice_of.items()}
    made = {name: SYNTHETIC if task.is_synthetic else REAL for name, task in tasks.items()}
    return {
        "metrics": {name: asdict(estimate) for name, estimate in summarise(rows, SUMMARY_SEED).items()},
        "slices": _by(rows, slice_of),
        "familiar": _by(rows, familiar),
        "buckets": _by(rows, _buckets(by_key)),
        "origins": _by(rows, made) if SYNTHETIC in made.values() else {},
        "of_k": {"any": asdict(pass_at_k(rows, run.samples)), "all": asdict(pass_hat_k(rows, run.samples))},
    }


def bucket_of(run: EvalRun) -> dict[str, str]:
    """The bucket of each task of the run's split, by the task's name."""
    return _buckets(_tasks(run))


def _tasks(run: EvalRun) -> dict[int, Task]:
    """Those of the run's split by key, with what is told of them beside their results."""
    wanted = (f"task__{name}" for name in ("number", "cluster", "slice", "is_synthetic", "bucket"))
    members = run.task_set.members.filter(split=run.split).select_related("task")
    return {member.task_id: member.task for member in members.only("task_set_id", "split", *wanted)}


def _rows(run: EvalRun, tasks: Mapping[int, Task]) -> list[Row]:
    found = run.results.order_by("task__number", "sample").values_list("task_id", "sample", *_MEASURED)
    return [Row(str(tasks[key]), tasks[key].cluster, sample, *measured) for key, sample, *measured in found]


def _buckets(tasks: Mapping[int, Task]) -> dict[str, str]:
    return {str(task): task.bucket or GUARDS for task in tasks.values()}


def note_look(run: EvalRun, actor: User, kind: Opening.Kind = Opening.Kind.PAGE, *, anew: bool = True) -> None:
    """Somebody is to see rollouts of the run: noted in the ledger where they are held out. Not `anew`: on a page that
    is open and asks again by itself. Raises Sealed for those that nobody may see."""
    refuse_sealed(run)
    if run.split == Split.HELD_OUT and run.done:
        ledger.opened(task_set=run.task_set, kind=kind, subject=run, actor=actor, anew=anew)


def refuse_sealed(run: EvalRun) -> None:
    """Raise Sealed for a run whose single attempts are for nobody's eyes."""
    if run.split == Split.SEALED:
        raise Sealed(f"{run} asked sealed tasks: what came of them together stands with its candidate, and no more")


def _by(rows: list[Row], key: dict[str, str]) -> dict[str, Any]:
    groups = slices(rows, lambda row: key.get(row.task_id))
    return {
        name: asdict(_success(group)) | {"tasks": len({r.task_id for r in group})} for name, group in groups.items()
    }


def _success(rows: list[Row]) -> Estimate:
    means, cluster = solve_rates(rows), clusters_of(rows)
    estimate = clustered_rate(list(means.values()), [cluster[task] for task in means])
    return replace(estimate, unscored=sum(row.success is None for row in rows))
