"""Submitting an eval run, and going on with it."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.agents.version_content import DEFAULT_SAMPLING, check_sampling
from flywheel.core import verifiers
from flywheel.core.evidence.statistics.eval_scope import BASELINE_SAMPLES, SAMPLES
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused, at_field
from flywheel.environments.models import MEASURED, Split, Task, TaskSet
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.runs import run_budget, unanswered_attempts
from flywheel.evals.runs.void_scores import void_of
from flywheel.evals.serving import loaded_adapters
from flywheel.system import env

MAX_SAMPLES = 64
MAX_SEED = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings by which a version is asked."""

    samples: int = SAMPLES
    """Attempts at each task."""
    seed: int = 1
    sampling: Mapping[str, Any] | None = None
    """The version's own where nothing else is said."""
    engine: str = Engine.ENDPOINT
    budget: Mapping[str, Any] | None = None
    """What it may take at most (`run_budget.py`)."""

    @classmethod
    def of(cls, run: EvalRun) -> "RunSettings":
        """As this eval was asked, whatever it may take."""
        sampling = sampling_of(run.version, run.sampling)
        return cls(samples=run.samples, seed=run.seed, sampling=sampling, engine=run.engine)


USUAL = RunSettings()


def usual_samples(version: Version, split: str) -> int:
    """Return how often a version is asked each task where nobody says it: a live one more often on held-out tasks,
    unless its answers are always the same."""
    is_baseline = version.agent.live_id == version.pk and split == Split.HELD_OUT
    return BASELINE_SAMPLES if is_baseline and sampling_of(version)["temperature"] > 0 else SAMPLES


def submit(
    *,
    key: uuid.UUID,
    version: Version,
    task_set: TaskSet,
    actor: Actor,
    split: str = Split.HELD_OUT,
    settings: RunSettings = USUAL,
    is_final: bool = False,
) -> tuple[EvalRun, bool]:
    """Queue the version's attempts at a split: n tasks × samples. Returns the run and whether it is new.

    The sealed split is asked by a candidate's final comparison alone, `is_final`. Raises Refused.
    """
    if version.agent.project_id != task_set.project_id:
        raise Refused(f"{version} belongs to another project than {task_set}", field="version")
    if split == Split.SEALED and not is_final:
        raise Refused("sealed tasks run only in a candidate's final comparison, from its page", field="split")
    if split not in (Split.TRAIN, *MEASURED):
        raise Refused(f"{split!r} is unknown; use {Split.TRAIN} or {Split.HELD_OUT}", field="split")
    if not 1 <= settings.samples <= MAX_SAMPLES:
        raise Refused(f"{settings.samples} is not between 1 and {MAX_SAMPLES}", field="samples")
    if not 0 <= settings.seed <= MAX_SEED:
        raise Refused(f"{settings.seed} is not between 0 and {MAX_SEED}", field="seed")
    _check_engine(settings.engine, version)
    _check_program(version)
    attempts = task_set.members.filter(split=split).count() * settings.samples
    if not attempts:
        raise Refused(f"{task_set} has no {Split(split).label} task", field="task_set")
    verifier = task_set.environment_version.verifier
    sampling = sampling_of(version, settings.sampling)
    budget = run_budget.check(settings.budget or {}, version, task_set.environment_version)
    about = {"version": str(version), "task_set": str(task_set), "split": split, "engine": settings.engine}
    return EvalRun.submit(
        key=key,
        actor=actor,
        entry="evals.submit",
        about=about | {"attempts": attempts},
        project=task_set.project,
        version=version,
        task_set=task_set,
        split=split,
        samples=settings.samples,
        sampling=sampling,
        seed=settings.seed,
        engine=settings.engine,
        budget=budget,
        total=attempts,
        verifier_digest=verifiers.digest(verifier),
    )


def sampling_of(version: Version, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a run's complete sampling: the version's own unless another is given. Raises Refused."""
    return {**DEFAULT_SAMPLING, **check_sampling({**version.sampling, **(given or {})})}


def _check_engine(engine: str, version: Version) -> None:
    if engine not in Engine.values:
        raise Refused(f"{engine!r} is unknown; use {Engine.VLLM} or nothing", field="engine")
    if engine == Engine.VLLM:
        if not env.vllm_url():
            raise Refused("no vLLM server is set here; make serve starts one, and says how to set it", field="engine")
        with at_field("engine"):
            loaded_adapters.check(version)


def _check_program(version: Version) -> None:
    """Raise Refused for a program that nobody here may start."""
    if version.is_program and version.endpoint["way"] == "command" and env.commands() is None:
        problem = "is a command, and workers here start none: the operator sets FLYWHEEL_COMMANDS to a directory"
        raise Refused(f"{version} {problem}", field="version")


def resume(*, run: EvalRun, actor: Actor, budget: Mapping[str, Any] | None = None) -> None:
    """Queue a failed or cancelled run again; it goes on with the attempts that have no result. Raises StaleState.

    Those for which the server was away are asked again, also of a run that ended well (`unanswered_attempts.py`). With
    `budget`, under that one from now on: what was spent of tokens and dollars stays spent, and one that is spent
    already raises Refused; a run that ended well has no use for one. A run whose judge passed a canary stays as
    it is: another go might hide it.
    """
    if void_of(run.judges):
        raise StaleState(f"{run} is void; submit it anew, or have another verifier judge its rollouts")
    has_ended = run.state == State.SUCCEEDED
    if has_ended and budget:
        raise Refused(f"{run} ended well; what is asked again of it has no budget", field="budget")
    with transaction.atomic():
        run.requeue(*([State.SUCCEEDED] if has_ended else []))
        # Now that the row is locked: nothing comes to rest on it meanwhile.
        if has_ended and (problem := unanswered_attempts.refusal(run)):
            raise StaleState(problem)
        if budget is not None and not has_ended:
            run.budget = run_budget.check(budget, run.version, run.task_set.environment_version)
            run.save(update_fields=["budget"])
        again: dict[str, Any] = {"asked_again": count} if (count := unanswered_attempts.take_back(run)) else {}
        if spent := run_budget.spent(run, timedelta(0)):
            raise Refused(f"{spent}; resume it with a greater budget, or with none", field="budget")
        actor.record(
            project=run.project,
            action="evals.resume",
            subject=run,
            **({} if budget is None else {"budget": run.budget}) | again,
        )


def attempt_seed(run: EvalRun, task: Task, sample: int) -> int:
    """The seed of one attempt: the same for every version that is asked with the run's seed, so arms are paired."""
    text = f"{run.seed}/{task.digest}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
