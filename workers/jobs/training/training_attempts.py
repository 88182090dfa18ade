"""Store the attempts that a trainer left in its run directory as trajectories, each once."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from django.utils import timezone

from flywheel.core.traces import Outcome, Trace
from flywheel.edge.jobs import Lease
from flywheel.training.models import TrainingAttempt, TrainingRun
from flywheel.training.runs.tried_attempts import OUT_OF_TURNS
from flywheel.trajectories.formats.values.hostile_json import text
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.merge import store_rollouts
from flywheel.trajectories.store.rollout_traces import trace_of_rollout
from workers.trainers.run import kept_attempts
from workers.trainers.run.kept_attempts import Kept


def store_waiting(lease: Lease, run: TrainingRun, place: Path) -> None:
    """Store what waits, step by step. A file goes once its attempts are stored, so that the words of a trajectory which
    somebody deletes are nowhere else; whoever dies in between leaves a file that brings nothing new."""
    for step, path in kept_attempts.waiting(place):
        try:
            attempts = kept_attempts.read(path)
        except ValueError as error:  # a machine that lost power may leave half a file
            lease.log(f"attempts of step {step} are lost: {error}", "warning")
        else:
            _store(lease, run, step, attempts)
        path.unlink(missing_ok=True)


def _store(lease: Lease, run: TrainingRun, step: int, attempts: Sequence[Kept]) -> None:
    with lease.guard():
        if run.tried.filter(step=step).exists():  # a resumed run comes to its steps again
            return
        # It may learn from an attempt in another step than the one that was lost.
        known = set(run.tried.filter(seed__in=[kept.rollout.seed for kept in attempts]).values_list("seed", flat=True))
        attempts = [kept for kept in attempts if kept.rollout.seed not in known]
        attempts = sorted(attempts, key=lambda kept: (kept.reward is not None, kept.reward or 0.0))
        traces = [_trace(run, step, kept) for kept in attempts]
        stored = store_rollouts(run.project, traces, source=Source.TRAINING)
        TrainingAttempt.objects.bulk_create(
            TrainingAttempt(
                run=run,
                step=step,
                place=number,
                task=text(kept.rollout.task.id)[:200],
                seed=kept.rollout.seed,
                reward=kept.reward,
                score=kept.verdict.score,
                parts=dict(kept.verdict.parts),
                reason=text(kept.verdict.reason),
                trajectory=row,
            )
            for number, (kept, row) in enumerate(zip(attempts, stored, strict=True))
        )


def _trace(run: TrainingRun, step: int, kept: Kept) -> Trace:
    """The attempt as a trajectory of the agent, and of none of its versions: the policy is what the run had made of its
    base by then."""
    rollout, success = kept.rollout, kept.verdict.success
    ended = rollout.ended or (OUT_OF_TURNS if rollout.is_out_of_turns else "")
    outcome: Outcome | None = None if success is None else "success" if success else "failed"
    trace = trace_of_rollout(
        rollout,
        trace_id=hashlib.sha256(f"training/{run.pk}/{step}/{rollout.seed}".encode()).hexdigest()[:32],
        started_at=timezone.now(),
        tools=[dict(tool) for tool in kept.tools],
        session_id=rollout.task.cluster,
        model=run.base.base_model,
        outcome=outcome,
        metadata={
            "training_run": run.pk,
            "step": step,
            "task": rollout.task.id,
            "sample": rollout.sample,
            "seed": rollout.seed,
            "reward": kept.reward,
            "state": dict(rollout.task.state),
            "slice": rollout.task.slice,
            **({"ended": ended} if ended else {}),
        },
    )
    trace.agent, trace.version = run.base.agent.name, f"{run} step {step}"
    return trace
