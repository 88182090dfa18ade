"""Carry out an eval run: ask the version, judge its answers, store every rollout as a trajectory.

A run that is taken over goes on with the attempts that have no result yet.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.core import envs
from flywheel.core.rollouts import Engine, Rollout, Sampling, play
from flywheel.core.traces import Outcome, Trace
from flywheel.core.verifiers import Verdict, unscored
from flywheel.environments.make import core_task
from flywheel.environments.models import Task
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.run import attempt_seed, summary_of
from flywheel.jobs import Lease, State
from flywheel.promotions.propose import propose_for
from flywheel.trajectories.rollouts import trace_of_rollout
from flywheel.trajectories.store import store_rollouts

CHUNK = 64
"""Attempts asked at once: enough to fill a batch, few enough to show progress and to stop soon."""


def open_version(version: Version) -> Engine:
    """The engine that answers as this version. Raises EngineError or ArtifactError."""
    from workers.engines import open_engine

    spec: dict[str, Any] = dict(version.endpoint)
    if version.weights:
        spec["path"] = str(artifacts.local(version.weights))
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
    env = envs.build(environment.environment.kind, environment.config, environment.verifier)
    members = run.task_set.members.filter(split=run.split).select_related("task").order_by("task__number")
    tasks = [member.task for member in members]
    done = set(run.results.values_list("task_id", "sample"))
    waiting = [(t, k) for k in range(run.samples) for t in tasks if (t.pk, k) not in done]
    sampling = Sampling(**run.sampling)
    lease.progress(len(done), len(tasks) * run.samples, f"loading {run.version}")
    lease.log(f"{run.version} on {run.task_set} ({run.split}): {len(tasks)} tasks × {run.samples}, seed {run.seed}")
    engine = open_version(run.version)
    try:
        for start in range(0, len(waiting), CHUNK):
            if lease.lost:
                return
            if lease.cancelled:
                lease.finish(State.CANCELLED)
                return
            chunk = waiting[start : start + CHUNK]
            attempts = [(core_task(task), sample, attempt_seed(run, task, sample)) for task, sample in chunk]
            rollouts = play(engine, env, attempts, sampling, run.version.tools)
            _store(lease, run, [task for task, _ in chunk], rollouts, [_judge(env, rollout) for rollout in rollouts])
            lease.progress(len(done) + start + len(chunk))
    finally:
        engine.close()
    with lease.guard():
        EvalRun.objects.filter(pk=run.pk).update(summary=summary_of(run))
    lease.finish(State.SUCCEEDED)
    propose_for(run)


def _judge(env: envs.Environment, rollout: Rollout) -> Verdict:
    if rollout.error:
        return unscored(rollout.error)
    return env.verifier(rollout.task)(Trace.from_messages("", rollout.messages), rollout.task.target)


def _store(
    lease: Lease, run: EvalRun, tasks: Sequence[Task], rollouts: Sequence[Rollout], verdicts: Sequence[Verdict]
) -> None:
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
                    reason=verdict.reason,
                    error=verdict.reason if verdict.score is None else "",
                    tokens_in=_total(response.tokens_in for response in rollout.responses),
                    tokens_out=_total(response.tokens_out for response in rollout.responses),
                    cost_usd=_total(response.cost_usd for response in rollout.responses),
                    latency_ms=_total(response.latency_ms for response in rollout.responses),
                )
                for task, rollout, verdict, trajectory in zip(tasks, rollouts, verdicts, stored, strict=True)
            ]
        )


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
        metadata={"eval_run": run.pk, "task": str(task), "sample": rollout.sample, "seed": rollout.seed},
    )


def _total(values: Any) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
