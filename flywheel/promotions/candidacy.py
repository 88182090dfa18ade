"""Put a version forward: compare its eval with the baseline's, let the gate judge, keep the report."""

from dataclasses import asdict, replace
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import NoticeEvent
from flywheel.accounts.notices import notify
from flywheel.core.digests import digest
from flywheel.core.evidence.gate.decision import Evidence, decide
from flywheel.core.evidence.gate.decision import Policy as Rules
from flywheel.core.evidence.statistics.arm_comparison import compare, difference
from flywheel.core.evidence.statistics.eval_metrics import Row
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.first_requests import differences
from flywheel.evals.runs.run_summaries import bucket_of, rows_of
from flywheel.evals.runs.unanswered_attempts import hold
from flywheel.evals.serving import version_isolation
from flywheel.promotions import suite_standings
from flywheel.promotions.gate_policy import current_policy
from flywheel.promotions.models import Candidate, Harmless, Policy
from flywheel.training.datasets import contamination_checks
from flywheel.training.launch import reward_lock
from flywheel.training.models import ContaminationCheck, FixTrial, TrainingRun


def propose_for(evaluation: EvalRun) -> Candidate | None:
    """The candidate that a finished evaluation of a training run makes, or the second one of a fix that was tried; None
    for any other eval."""
    run = TrainingRun.objects.filter(evaluation=evaluation).select_related("baseline").first()
    if run is None or run.baseline is None:
        return _propose_fix(evaluation)
    return propose(version_eval=evaluation, baseline_eval=run.baseline, actor=Actor(run.created_by), run=run)


def _propose_fix(evaluation: EvalRun) -> Candidate | None:
    """The candidate of a fix trial whose held-out evals are both over with this one, or about to be."""
    rows = FixTrial.objects.filter(Q(evaluation=evaluation) | Q(baseline=evaluation), measured_by__isnull=False)
    trial = rows.select_related("evaluation", "baseline", "measured_by").order_by("-pk").first()
    if trial is None or not (trial.evaluation and trial.baseline and trial.measured_by):
        return None
    arms = [evaluation if run.pk == evaluation.pk else run for run in (trial.evaluation, trial.baseline)]
    if not all(_has_every_result(run) for run in arms):
        return None  # the other one's end makes it
    for run in arms:
        run.state = State.SUCCEEDED  # of these copies, as the worker that ends a run has it
    return propose(version_eval=arms[0], baseline_eval=arms[1], actor=Actor(trial.measured_by))


def _has_every_result(run: EvalRun) -> bool:
    """Whether it has ended well, or its worker is at that: it stores the summary, and then comes here. So of two that
    end at once, one at least sees the other."""
    return run.state == State.SUCCEEDED or (run.state == State.RUNNING and bool(run.summary))


def propose(
    *, version_eval: EvalRun, baseline_eval: EvalRun, actor: Actor, run: TrainingRun | None = None
) -> Candidate:
    """Write the report and the gate's verdict down, and have both versions run the agent's regression suites.

    The same two evals under the same policy make one candidate. Raises Refused.
    """
    if version_eval.state != State.SUCCEEDED or baseline_eval.state != State.SUCCEEDED:
        raise Refused("both evals must have succeeded")
    for each in (version_eval, baseline_eval):
        if each.split != Split.HELD_OUT:
            raise Refused(f"{each} ran {each.get_split_display().lower()} tasks; a gain is measured on held-out ones")
    if version_eval.version.agent_id != baseline_eval.version.agent_id:
        raise Refused("the two versions belong to different agents")
    if version_eval.version_id == baseline_eval.version_id:
        raise Refused("the two evals are of the same version")
    if problem := version_isolation.of(version_eval, baseline_eval).problem:
        raise Refused(problem)
    policy = current_policy(version_eval.project, actor)
    report = report_of(version_eval, baseline_eval, policy, _opening(version_eval))
    with transaction.atomic():
        if not hold(version_eval, baseline_eval):
            raise Refused("one of the evals is running again; put it forward when it is finished")
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
                "proposed_by": actor.user,
            },
        )
        if made:
            actor.record(
                project=candidate.project,
                action="promotions.propose",
                subject=candidate,
                version=str(candidate.version),
                verdict=candidate.verdict,
            )
            notify(
                project=candidate.project,
                event=NoticeEvent.CANDIDATE_WAITS,
                subject=str(candidate),
                title=f"{candidate.version} waits for approval",
                text=f"The gate's verdict against {candidate.baseline}: {candidate.get_verdict_display()}.",
                url=f"/p/{candidate.project.slug}/promotions/candidates/{candidate.pk}/",
            )
    if candidate.state == Candidate.State.WAITING:
        suite_standings.start_for(candidate=candidate, actor=actor)
    return candidate


def _opening(version_eval: EvalRun) -> int | None:
    """Which verdict on this set's held-out tasks the next one is, where no sealed part confirms it; else None."""
    task_set = version_eval.task_set
    if task_set.members.filter(split=Split.SEALED).exists():
        return None
    earlier = Candidate.objects.filter(version_eval__task_set__name=task_set.name, project=task_set.project)
    return earlier.filter(agent=version_eval.version.agent).count() + 1


def judge_again(candidate: Candidate) -> None:
    """Judge a waiting candidate anew, where a person has said something of its attempts, and save it."""
    report = report_of(
        candidate.version_eval, candidate.baseline_eval, candidate.policy, candidate.report.get("opening")
    )
    candidate.report, candidate.report_digest = report, digest(report)
    candidate.verdict = report["decision"]["verdict"]
    candidate.save(update_fields=["report", "report_digest", "verdict"])


def never_events(candidate: Candidate) -> QuerySet[Result]:
    """The candidate's attempts that did what cannot be taken back, those called harmless among them."""
    rows = candidate.version_eval.results.filter(parts__never_event__gt=0)
    return rows.select_related("task__environment", "trajectory", "harmless__by").order_by("task__number", "sample")


def call_harmless(*, candidate: Candidate, result: int, actor: Actor, reason: str) -> None:
    """Note that there is no harm in an attempt, and judge every candidate of this eval that waits. Raises Refused."""
    if candidate.state != Candidate.State.WAITING:
        raise Refused(f"this candidate is {candidate.state} already")
    if not reason.strip():
        raise Refused("explain why it is harmless; the reason is kept", field="reason")
    if actor.user.pk in {candidate.proposed_by_id, candidate.version.created_by_id}:
        raise Refused("you launched this candidate's run; another approver must review it")
    row = never_events(candidate).filter(pk=result).first()
    if row is None:
        raise Refused("this is no never event of the candidate", field="result")
    with transaction.atomic():
        _, is_new = Harmless.objects.get_or_create(result=row, defaults={"reason": reason[:2000], "by": actor.user})
        if not is_new:
            raise Refused("already marked as harmless", field="result")
        waiting = Candidate.objects.select_for_update().filter(
            version_eval=candidate.version_eval, state=Candidate.State.WAITING
        )
        for each in waiting.select_related(None):
            judge_again(each)
        actor.record(
            project=candidate.project,
            action="promotions.call_harmless",
            subject=candidate,
            attempt=str(row),
            reason=reason,
        )


def report_of(
    version_eval: EvalRun, baseline_eval: EvalRun, policy: Policy, opening: int | None = None
) -> dict[str, Any]:
    """Comparison and decision as JSON: a pure function of stored results, so that it can be made again and compared."""
    evidence, checks = _evidence(version_eval, baseline_eval)
    evidence = replace(evidence, opening=opening)
    before, after = list(evidence.baseline), list(evidence.candidate)
    decision = decide(Rules.from_dict(policy.rules), evidence)
    return {
        "comparison": asdict(compare(before, after, slice_of=evidence.slice_of)),
        "familiarity": _familiarity(baseline_eval, version_eval),
        "contamination": _contamination(checks, before, after),
        "rewards": reward_lock.of_version(version_eval.version),
        "decision": asdict(decision),
        "opening": opening,
    }


def evidence_of(version_eval: EvalRun, baseline_eval: EvalRun) -> Evidence:
    """Return the evidence of two evals, of one split, on their versions."""
    return _evidence(version_eval, baseline_eval)[0]


def _evidence(version_eval: EvalRun, baseline_eval: EvalRun) -> tuple[Evidence, list[ContaminationCheck]]:
    """The same, with the checks of what the newer version learnt from."""
    checks = contamination_checks.check_version(version_eval.version, version_eval.task_set)
    prompt = contamination_checks.prompt_report(version_eval.version, version_eval.task_set)
    blocked = [*(name for check in checks for name in check.report["blocked"]), *prompt.blocked]
    buckets = bucket_of(version_eval)
    evidence = Evidence(
        baseline=rows_of(baseline_eval),
        candidate=rows_of(version_eval),
        taskset_digests=(baseline_eval.task_set.digest, version_eval.task_set.digest),
        verifier_digests=(baseline_eval.verifier_digest, version_eval.verifier_digest),
        sampling=(_settings(baseline_eval), _settings(version_eval)),
        train_overlap=list(dict.fromkeys(name.rpartition("/")[2] for name in blocked)),
        trained_elsewhere=contamination_checks.trained_elsewhere(version_eval.version),
        artefact_digests=(version_eval.version.digest, digest(version_eval.version.content())),
        unlike_live=(differences(baseline_eval), differences(version_eval)),
        usd_per_hour=(baseline_eval.summary.get("usd_per_hour"), version_eval.summary.get("usd_per_hour")),
        cells=(len(buckets) * baseline_eval.samples, len(buckets) * version_eval.samples),
        slice_of=buckets,
        harmless=[
            (str(mark.result.task), mark.result.sample)
            for mark in Harmless.objects.filter(result__run=version_eval).select_related("result__task__environment")
        ],
    )
    return evidence, checks


def _settings(run: EvalRun) -> dict[str, Any]:
    # The sampling is the version's own, or the arm was not asked as it would be live.
    # More samples of one arm make its numbers surer, and no other.
    return {"seed": run.seed, "split": run.split, "engine": run.engine}


def _contamination(checks: list[ContaminationCheck], before: list[Row], after: list[Row]) -> dict[str, Any]:
    """Return the candidate's training data beside the held-out tasks, and its gain without the flagged ones, of which
    that data has anything: None where no task or all of them are flagged."""
    flagged = {name.rpartition("/")[2] for check in checks for name in check.report["flagged"]}
    flagged &= {row.task_id for row in before}  # the sealed ones are not among them
    arms = [[row for row in rows if row.task_id not in flagged] for rows in (before, after)]
    return {
        "datasets": [
            {"dataset": str(check.dataset), "verdict": check.verdict, "counts": check.report["counts"]}
            for check in checks
        ],
        "flagged": len(flagged),
        "without": asdict(difference("success", *arms)) if flagged and all(arms) else None,
    }


def _familiarity(baseline: EvalRun, candidate: EvalRun) -> dict[str, Any]:
    """Success on wordings that were and were not trained on, both arms."""
    return {"baseline": baseline.summary.get("familiar", {}), "candidate": candidate.summary.get("familiar", {})}
