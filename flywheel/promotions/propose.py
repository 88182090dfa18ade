"""Put a version forward: compare its eval with the baseline's, let the gate judge, keep the report."""

from dataclasses import asdict
from typing import Any

from django.db import transaction

from flywheel.accounts.models import User, record
from flywheel.core.compare import compare
from flywheel.core.digests import digest
from flywheel.core.gate import Evidence, decide
from flywheel.core.gate import Policy as Rules
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from flywheel.evals.run import rows_of
from flywheel.jobs import State
from flywheel.promotions.models import Candidate, Policy
from flywheel.promotions.policy import current_policy
from flywheel.training.models import TrainingRun


class CannotPropose(ValueError):
    """The two evals do not make a candidate; the message says why."""


def propose_for(evaluation: EvalRun) -> Candidate | None:
    """The candidate that a finished evaluation of a training run makes; None for any other eval."""
    run = TrainingRun.objects.filter(evaluation=evaluation).select_related("baseline").first()
    if run is None or run.baseline is None:
        return None
    return propose(version_eval=evaluation, baseline_eval=run.baseline, actor=run.created_by, run=run)


def propose(
    *, version_eval: EvalRun, baseline_eval: EvalRun, actor: User, run: TrainingRun | None = None, through: str = ""
) -> Candidate:
    """Write the report and the gate's verdict down. The same two evals under the same policy make one candidate.

    Raises CannotPropose.
    """
    if version_eval.state != State.SUCCEEDED or baseline_eval.state != State.SUCCEEDED:
        raise CannotPropose("both evals must have succeeded")
    if version_eval.version.agent_id != baseline_eval.version.agent_id:
        raise CannotPropose("the two versions belong to different agents")
    if version_eval.version_id == baseline_eval.version_id:
        raise CannotPropose("the two evals are of the same version")
    policy = current_policy(version_eval.project, actor)
    report = report_of(version_eval, baseline_eval, policy, run)
    with transaction.atomic():
        candidate, made = Candidate.objects.get_or_create(
            version_eval=version_eval,
            baseline_eval=baseline_eval,
            policy=policy,
            defaults={
                "project": version_eval.project,
                "agent": version_eval.version.agent,
                "version": version_eval.version,
                "baseline": baseline_eval.version,
                "run": run,
                "report": report,
                "report_digest": digest(report),
                "verdict": report["decision"]["verdict"],
                "proposed_by": actor,
            },
        )
        if made:
            record(
                project=candidate.project,
                actor=actor,
                action="promotions.propose",
                subject=candidate,
                through=through,
                version=str(candidate.version),
                verdict=candidate.verdict,
            )
    return candidate


def report_of(version_eval: EvalRun, baseline_eval: EvalRun, policy: Policy, run: TrainingRun | None) -> dict[str, Any]:
    """Comparison and decision as JSON: a pure function of stored results, so that it can be made again and compared."""
    before, after = rows_of(baseline_eval), rows_of(version_eval)
    members = version_eval.task_set.members.filter(split=version_eval.split).select_related("task")
    bucket_of = {str(member.task): member.task.bucket or "guards a success" for member in members}
    evidence = Evidence(
        baseline=before,
        candidate=after,
        taskset_digests=(baseline_eval.task_set.digest, version_eval.task_set.digest),
        verifier_digests=(baseline_eval.verifier_digest, version_eval.verifier_digest),
        sampling=(_settings(baseline_eval), _settings(version_eval)),
        train_overlap=_overlap(version_eval, run),
        artefact_digests=(version_eval.version.digest, digest(version_eval.version.content())),
        cells=len(bucket_of) * version_eval.samples,
        slice_of=bucket_of,
    )
    decision = decide(Rules.from_dict(policy.rules), evidence)
    return {
        "comparison": asdict(compare(before, after, slice_of=bucket_of)),
        "familiarity": _familiarity(baseline_eval, version_eval),
        "decision": asdict(decision),
    }


def _settings(run: EvalRun) -> dict[str, Any]:
    return {**run.sampling, "samples": run.samples, "seed": run.seed, "split": run.split}


def _overlap(evaluation: EvalRun, run: TrainingRun | None) -> list[str]:
    """Held-out tasks whose cluster or prompt training tasks also have. By construction none; checked anyway."""
    if run is None:
        return []
    members = list(run.dataset.task_set.members.select_related("task"))
    trained = [member.task for member in members if member.split == Split.TRAIN]
    clusters = {task.cluster for task in trained}
    prompts = {" ".join(task.prompt.lower().split()) for task in trained}
    held_out = evaluation.task_set.members.filter(split=Split.HELD_OUT).select_related("task")
    return [
        str(member.task)
        for member in held_out
        if member.task.cluster in clusters or " ".join(member.task.prompt.lower().split()) in prompts
    ]


def _familiarity(baseline: EvalRun, candidate: EvalRun) -> dict[str, Any]:
    """Success on wordings that were and were not trained on, both arms."""
    return {"baseline": baseline.summary.get("familiar", {}), "candidate": candidate.summary.get("familiar", {})}
