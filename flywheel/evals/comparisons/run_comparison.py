"""Compare two finished runs, task by task. What comes out is computed once for each pair and kept."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from django.db import transaction

from flywheel.core.evidence.statistics.arm_comparison import compare
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Stale
from flywheel.environments.models import MEASURED, Split
from flywheel.environments.task_sets import leaks
from flywheel.evals.models import Comparison, EvalRun
from flywheel.evals.runs.run_summaries import bucket_of, rows_of
from flywheel.evals.runs.unanswered_attempts import hold
from flywheel.evals.serving import version_isolation

REVISION = 2
"""Raise it when a change to `core.evidence.statistics.arm_comparison` or `core.evidence.statistics.estimates` can
change a number."""


class CannotCompare(Stale):
    """These two say nothing about each other, or not yet; the message says why."""


def comparison(candidate: EvalRun, baseline: EvalRun) -> dict[str, Any]:
    """`core.evidence.statistics.arm_comparison.Comparison` as a dict, from the store when it is there. Raises
    CannotCompare."""
    check(candidate, baseline)
    kept = Comparison.objects.filter(candidate=candidate, baseline=baseline, revision=REVISION).first()
    if kept is not None:
        return dict(kept.report)
    report = asdict(compare(rows_of(baseline), rows_of(candidate), slice_of=buckets(candidate, baseline)))
    with transaction.atomic():
        if not hold(candidate, baseline):
            raise CannotCompare(f"{candidate} or {baseline} is asked again just now; compare them when it is over")
        Comparison.objects.update_or_create(
            candidate=candidate, baseline=baseline, defaults={"report": report, "revision": REVISION}
        )
    return report


def check(candidate: EvalRun, baseline: EvalRun) -> None:
    """Raise CannotCompare unless both have ended well, attempted tasks of one environment, and were kept apart."""
    if candidate.pk == baseline.pk:
        raise CannotCompare("choose two different runs")
    for run in (candidate, baseline):
        if run.split == Split.SEALED:
            raise CannotCompare(f"{run} ran sealed tasks: the comparison is shown with the candidate")
        if run.state != State.SUCCEEDED:
            because = f" ({run.error})" if run.error_kind == "isolation" else ""
            raise CannotCompare(f"eval {run.pk} is {run.state}; both must have succeeded{because}")
    environments = {run.task_set.environment_version.environment_id for run in (candidate, baseline)}
    if len(environments) > 1:
        raise CannotCompare(
            f"{candidate.task_set} and {baseline.task_set} belong to different environments and share no task"
        )
    if bool(candidate.first_request) != bool(baseline.first_request):
        old = baseline if candidate.first_request else candidate
        raise CannotCompare(
            f"{old} was asked with the environment's prompt instead of its version's, as evals were then; run it again"
        )
    if problem := version_isolation.of(candidate, baseline).problem:
        raise CannotCompare(problem)


def trained_on(candidate: EvalRun, baseline: EvalRun) -> list[leaks.TrainedOn]:
    """Return either version's training data, beside the tasks by which it is measured here, the candidate's first;
    where it has some of them the comparison is invalid."""
    return [learnt for run in (candidate, baseline) if (learnt := leaks_of(run))]


def leaks_of(run: EvalRun) -> leaks.TrainedOn | None:
    """The same of one run; None where the tasks are for training."""
    return leaks.trained_on([run.version], run.task_set)[run.version_id] if run.split in MEASURED else None


def buckets(candidate: EvalRun, baseline: EvalRun) -> dict[str, str]:
    """The bucket of every task that either run attempted."""
    return {**bucket_of(baseline), **bucket_of(candidate)}


def doubts(candidate: EvalRun, baseline: EvalRun) -> list[str]:
    """In what the two differ besides the version, one plain sentence each: what a difference may then be due to."""
    return list(_doubts(candidate, baseline))


def _doubts(new: EvalRun, old: EvalRun) -> Iterable[str]:
    if new.version_id == old.version_id:
        yield f"Both runs are of {new.version}: what differs is chance, or the settings below."
    if new.version.agent_id != old.version.agent_id:
        yield f"The versions belong to different agents, {new.version.agent} and {old.version.agent}."
    if new.task_set_id != old.task_set_id:
        yield f"The task sets differ, {new.task_set} and {old.task_set}: only the tasks in both are compared."
    if new.split != old.split:
        yield f"The splits differ, {new.get_split_display().lower()} and {old.get_split_display().lower()}."
    if new.verifier_digest != old.verifier_digest:
        yield (
            f"Different verifiers judged them ({new.verifier_digest[:8]} and {old.verifier_digest[:8]}): "
            "a difference may be the judge's. Evaluate one of them again."
        )
    if new.engine != old.engine:
        yield (
            f"One was asked by {new.get_engine_display()}, the other by {old.get_engine_display()}: engines round in "
            "ways of their own, and a difference may be theirs."
        )
    if new.seed != old.seed:
        yield f"The seeds differ ({new.seed} and {old.seed}), so the attempts are not paired and the interval is wider."
    changed = sorted(name for name in new.sampling if new.sampling[name] != old.sampling.get(name))
    if changed:
        both = ", ".join(f"{name} {new.sampling[name]} and {old.sampling.get(name, '–')}" for name in changed)
        yield f"They were sampled differently: {both}."
