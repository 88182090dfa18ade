"""Carry out an eval run: ask the version, judge its answers, store every rollout as a trajectory.

1. Load the version's engine. What does not load fails the run with its reason.
2. Ask and judge the attempts that have no result yet, a chunk at a time. Results, their trajectories and the progress
   are one transaction under the lease, so that a run which is taken over goes on where it stood and every attempt is
   stored exactly once.
3. An attempt that was not answered, or whose verifier raised, is unscored and says why. When not one was answered, the
   policy cannot be asked at all: that fails the run and stores nothing of the chunk.
4. Write the summary, and put the version forward if a training run made it.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.core import envs, verifiers
from flywheel.core.rollouts import Engine, EngineError, Rollout, Sampling, play
from flywheel.core.traces import Outcome, Trace
from flywheel.core.verifiers import Verdict, unscored
from flywheel.environments.make import core_task
from flywheel.environments.models import Task
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.run import attempt_seed, summary_of
from flywheel.jobs import Lease, State
from flywheel.promotions.propose import propose_for
from flywheel.trajectories.formats.reading import text
from flywheel.trajectories.rollouts import trace_of_rollout
from flywheel.trajectories.store import store_rollouts

CHUNK = 64
"""Attempts asked at once: enough to fill a batch, few enough to show progress and to stop soon."""


class VerifierChanged(RuntimeError):
    """Another revision of the verifier would judge than the run was submitted with."""

    kind = "verifier_changed"


def open_version(version: Version) -> Engine:
    """The engine that answers as this version. Raises EngineError or ArtifactError."""
    from workers.engines import open_engine

    spec: dict[str, Any] = dict(version.endpoint)
    if version.weights:
        spec["path"] = str(artifacts.local(version.weights))
    elif spec.get("kind") == "transformers":
        raise EngineError(f"{version} has no weights here; make a version with weights, or one that names a server")
    if version.adapter:
        spec["adapter"] = str(artifacts.local(version.adapter))
    return open_engine(spec)


def evaluate(lease: Lease) -> None:
    """Carry out the run that the lease holds."""
    run = EvalRun.objects.select_related(
        "version__agent",
        "version__weights",
        "version__adapter",
        "task_set__environment_version__environment",
        "project",
    ).get(pk=lease.job.pk)
    environment = run.task_set.environment_version
    if verifiers.digest(environment.verifier) != run.verifier_digest:
        raise VerifierChanged(
            f"the verifier's code changed since eval {run.pk} was submitted; submit it anew, so that one judge scores"
        )
    env = envs.build(environment.environment.kind, environment.config, environment.verifier)
    if _ask_and_judge(lease, run, env):
        _conclude(lease, run)


def _ask_and_judge(lease: Lease, run: EvalRun, env: envs.Environment) -> bool:
    """Whether every attempt has its result now; not when the lease was lost or a person asked for an end."""
    members = run.task_set.members.filter(split=run.split).select_related("task").order_by("task__number")
    tasks = [member.task for member in members]
    done = set(run.results.values_list("task_id", "sample"))
    waiting = [(task, k) for k in range(run.samples) for task in tasks if (task.pk, k) not in done]
    lease.progress(len(done), len(tasks) * run.samples, f"loading {run.version}" if waiting else "")
    asked = f"{run.version} at {run.task_set} ({run.get_split_display().lower()}): {len(tasks)} tasks × {run.samples}"
    lease.log(f"{asked}, {len(done)} attempts are done already" if done else asked)
    if not waiting:
        return True
    engine = open_version(run.version)
    try:
        for start in range(0, len(waiting), CHUNK):
            if lease.lost:
                return False
            if lease.cancelled:
                lease.log("stopped as asked; what was attempted is kept")
                lease.finish(State.CANCELLED)
                return False
            chunk = waiting[start : start + CHUNK]
            attempts = [(core_task(task), sample, attempt_seed(run, task, sample)) for task, sample in chunk]
            rollouts = play(engine, env, attempts, Sampling(**run.sampling), run.version.tools)
            if not done and not start:
                _refuse_silence(rollouts)
            _store(lease, run, env, [task for task, _ in chunk], rollouts, done=len(done) + start + len(chunk))
    finally:
        engine.close()
    return True


def _refuse_silence(rollouts: Sequence[Rollout]) -> None:
    """Raise EngineError when not one of the first attempts was answered: then none will be, and there is one reason."""
    if all(rollout.error for rollout in rollouts):
        cause, times = Counter(rollout.error for rollout in rollouts).most_common(1)[0]
        raise EngineError(f"not one of the first {len(rollouts)} requests was answered; {times} times: {cause}")


def _conclude(lease: Lease, run: EvalRun) -> None:
    run.summary = summary_of(run)
    lease.update(summary=run.summary, message="")
    missing = run.results.filter(score=None).count()
    if missing:
        lease.log(f"{missing} of {run.results.count()} attempts are unscored; each says why", "warning")
    # Before the end, so that a worker which dies here leaves a job that is taken over, not a candidate never made.
    # `run` is this function's own copy of the row; proposing wants an eval that has succeeded.
    run.state = State.SUCCEEDED
    try:
        candidate = propose_for(run)
    except ValueError as error:  # CannotPropose, or arms that cannot be compared: the eval stands whatever comes of it
        lease.log(f"no candidate was made of it: {error}", "warning")
    else:
        if candidate is not None:
            lease.log(f"candidate {candidate.pk}: the gate says {candidate.verdict.replace('_', ' ')}")
    lease.finish(State.SUCCEEDED)


def _judge(env: envs.Environment, rollout: Rollout) -> Verdict:
    if rollout.error:
        return unscored(f"not answered: {rollout.error}")
    return env.verifier(rollout.task)(Trace.from_messages("", rollout.messages), rollout.task.target)


def _store(
    lease: Lease, run: EvalRun, env: envs.Environment, tasks: Sequence[Task], rollouts: Sequence[Rollout], *, done: int
) -> None:
    verdicts = [_judge(env, rollout) for rollout in rollouts]
    traces = [_trace(run, task, rollout, v) for task, rollout, v in zip(tasks, rollouts, verdicts, strict=True)]
    with lease.guard():
        stored = store_rollouts(run.project, traces, version=run.version)
        Result.objects.bulk_create(
            [
                Result(
                    run=run,
                    task=task,
                    sample=rollout.sample,
                    seed=rollout.seed,
                    trajectory=trajectory,
                    score=verdict.score,
                    success=verdict.success,
                    parts=dict(verdict.parts),
                    reason=text(verdict.reason),
                    error=text(verdict.reason) if verdict.score is None else "",
                    tokens_in=_total(response.tokens_in for response in rollout.responses),
                    tokens_out=_total(response.tokens_out for response in rollout.responses),
                    cost_usd=_total(response.cost_usd for response in rollout.responses),
                    latency_ms=_total(response.latency_ms for response in rollout.responses),
                )
                for task, rollout, verdict, trajectory in zip(tasks, rollouts, verdicts, stored, strict=True)
            ]
        )
        lease.progress(done)


def _trace(run: EvalRun, task: Task, rollout: Rollout, verdict: Verdict) -> Trace:
    """The rollout as a trajectory; its id is a function of the attempt, so storing it twice is storing it once."""
    name = f"eval/{run.pk}/{task.pk}/{rollout.sample}"
    outcome: Outcome | None = None
    if verdict.success is not None:
        outcome = "success" if verdict.success else "failed"
    return trace_of_rollout(
        rollout,
        trace_id=hashlib.sha256(name.encode()).hexdigest()[:32],
        started_at=timezone.now(),
        tools=run.version.tools,
        session_id=task.cluster,
        model=run.version.base_model,
        outcome=outcome,
        metadata={
            "eval_run": run.pk,
            "task": str(task),
            "sample": rollout.sample,
            "seed": rollout.seed,
            # As production sends them, so that a rollout which is labelled makes the same task again.
            "state": task.state,
            "slice": task.slice,
        },
    )


def _total(values: Any) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
