"""Ask the fix ladder: gather what is known of a version and keep what the ladder said of it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.db.models import Q, QuerySet

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core import envs, recipes
from flywheel.core.evidence.fix_ladder import Evidence, recommend
from flywheel.core.evidence.statistics.estimates import Estimate
from flywheel.core.evidence.statistics.eval_metrics import pass_at_k
from flywheel.edge.jobs import State
from flywheel.environments.models import Split, TaskSet
from flywheel.environments.task_sets import leaks
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.run_summaries import rows_of
from flywheel.failures.buckets.bucket_definitions import family, name_of
from flywheel.failures.models import Decision, Failure, Recurrence
from flywheel.training.fixes.trial_results import tried_fixes
from flywheel.training.models import Recommendation, TrainingRun
from flywheel.trajectories.models import Source


def baseline_of(version: Version, task_set: TaskSet) -> EvalRun | None:
    """The newest finished eval of the version on the set's held-out split."""
    runs = EvalRun.objects.filter(version=version, task_set=task_set, split=Split.HELD_OUT, state=State.SUCCEEDED)
    return runs.order_by("-pk").first()


def recommendation_for(version: Version, task_set: TaskSet, *, is_kept: bool = True) -> Recommendation:
    """The newest recommendation if nothing that it rests on has changed, else a new one, stored if it `is_kept`."""
    baseline = baseline_of(version, task_set)
    evidence = evidence_of(version, task_set, baseline)
    kept = asdict(evidence)
    ladder = [item.to_json() for item in recommend(evidence)]
    newest = Recommendation.objects.filter(version=version, task_set=task_set).order_by("-pk").first()
    if newest is not None and (newest.evidence, newest.ladder, newest.eval_run) == (kept, ladder, baseline):
        return newest
    made = Recommendation(
        project=task_set.project, version=version, task_set=task_set, eval_run=baseline, evidence=kept, ladder=ladder
    )
    if is_kept:
        made.save()
    return made


def lightest(recommendation: Recommendation) -> dict[str, Any] | None:
    """The step of the ladder that is recommended; None when the evidence supports none yet."""
    first: dict[str, Any] | None = recommendation.ladder[0] if recommendation.ladder else None
    return first if first and not first["blocked_by"] else None


def evidence_of(version: Version, task_set: TaskSet, baseline: EvalRun | None) -> Evidence:
    """Gather the evidence: labelled failures of the version, its baseline, and the training data that people made."""
    corrected = task_set.members.filter(split=Split.TRAIN).exclude(task__bucket="").count()
    metrics = baseline.summary.get("metrics", {}) if baseline else {}
    rows = rows_of(baseline) if baseline else []
    inherited = inherited_of(version, task_set)
    return Evidence(
        buckets=families(task_set.project, buckets_of(version, task_set)),
        inherited=sum(inherited.values()),
        inherited_from=" and ".join(inherited),
        is_hosted=version.weights_id is None,
        pass_at_1=_estimate(metrics.get("success")),
        pass_at_k=pass_at_k(rows, baseline.samples) if baseline and rows else None,
        k=baseline.samples if baseline else 0,
        format_valid=_readable(metrics),
        corrected=corrected,
        pairs=corrected,
        turns=turns_of(task_set),
        tried=_tried(version, task_set),
        scored=_scored(task_set),
        lighter=tried_fixes(version, task_set),
        returned=_returned(version),
    )


def turns_of(task_set: TaskSet) -> int:
    """Return the most turns that a policy may speak in an attempt at one of its tasks."""
    version = task_set.environment_version
    return envs.build(version.environment.kind, version.config, version.verifier).max_turns


def line_of(version: Version) -> list[Version]:
    """The versions whose failures are evidence about this one: itself, and as long as none of them has been in
    production, what it was made from; the oldest first."""
    line = [version]
    while line[0].parent and not line[0].trajectories.filter(source=Source.PRODUCTION).exists():
        line.insert(0, line[0].parent)
    return line


def buckets_of(version: Version, task_set: TaskSet) -> dict[str, int]:
    """Labelled failures of the version's line by bucket, the most frequent first."""
    counted = Counter(_failures(line_of(version), task_set).values_list("bucket", flat=True))
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def inherited_of(version: Version, task_set: TaskSet) -> dict[str, int]:
    """Count those of them that are of earlier versions, by version, the oldest first."""
    earlier = line_of(version)[:-1]
    counted = Counter(_failures(earlier, task_set).values_list("trajectory__version", flat=True))
    return {str(one): counted[one.pk] for one in earlier if counted[one.pk]}


def _failures(versions: list[Version], task_set: TaskSet) -> QuerySet[Failure]:
    found = Failure.objects.filter(project=task_set.project, current=True, trajectory__version__in=versions)
    return found.exclude(decision=Decision.REJECTED)


def families(project: Project, buckets: Mapping[str, int]) -> dict[str, int]:
    """The same failures by built-in bucket, which is what the rules of the ladder know."""
    counted: Counter[str] = Counter()
    for key, count in buckets.items():
        counted[family(project, key)] += count
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _estimate(kept: dict[str, Any] | None) -> Estimate | None:
    """An estimate as the eval's summary keeps it; None where nothing was scored."""
    return Estimate(**kept) if kept and kept["mean"] is not None else None


def _readable(metrics: dict[str, Any]) -> Estimate | None:
    """Return how many outputs the agent's program can read: whichever of parsing and form is broken more often."""
    measured = [found for name in ("valid_output", "right_form") if (found := _estimate(metrics.get(name)))]
    return min(measured, key=lambda found: found.mean or 0.0, default=None)


def _scored(task_set: TaskSet) -> int:
    """Count the scored attempts at the set's train tasks in evals that ended well, which AWR can learn from."""
    runs = EvalRun.objects.filter(task_set=task_set, split=Split.TRAIN, state=State.SUCCEEDED)
    return Result.objects.filter(run__in=runs, score__isnull=False).count()


def _tried(version: Version, task_set: TaskSet) -> dict[str, str]:
    """Fixes of which no run on this version and this set has passed the gate, though one was compared; the last such.

    An invalid comparison says nothing of the fix, nor does a run of less than half the usual steps.
    """
    runs = TrainingRun.objects.filter(base=version, task_set=task_set, candidates__isnull=False)
    passed = {fix for run in runs.filter(candidates__verdict="eligible") for fix in _fixes(run)}
    failed = runs.filter(candidates__verdict__in=["not_shown", "regressed"]).order_by("pk")
    return {
        fix: str(run)
        for run in failed
        if 2 * run.settings["steps"] >= recipes.defaults(run.algorithm)["steps"]
        for fix in _fixes(run)
        if fix not in passed
    }


def _returned(version: Version) -> dict[str, list[str]]:
    """The fixes that did not last, in sentences: of this version, of those that it comes from and of those that were
    made of it, each that went live and with which a failure came back."""
    rows = Recurrence.objects.filter(Q(version__in=leaks.line_of(version)) | Q(version__parent=version))
    rows = rows.exclude(answer=Recurrence.Answer.NOT_SAME)
    told: dict[str, list[str]] = {}
    for row in rows.select_related("project", "version__agent", "version__parent").order_by("pk"):
        told_of = f"{row.version} came of this, and {name_of(row.project, row.bucket)} came back with it"
        open_ = "" if row.answer else " (by the watch, not confirmed yet)"
        for fix in _made_by(row.version):
            told.setdefault(fix, []).append(f"{told_of}{open_}: that fix did not last.")
    return told


def _made_by(version: Version) -> list[str]:
    """The steps of the ladder by which the version was made; nothing for a first version."""
    run = version.produced_by.order_by("pk").first()
    run = run or TrainingRun.objects.filter(checkpoint_versions__version=version).order_by("pk").first()
    if run is not None:
        return list(_fixes(run))
    before = version.parent
    if before is None:
        return []
    changes = {"prompt": "system_prompt", "tool_change": "tools"}
    return [fix for fix, name in changes.items() if getattr(version, name) != getattr(before, name)]


def _fixes(run: TrainingRun) -> tuple[recipes.Fix, ...]:
    return recipes.ALGORITHMS[run.algorithm].fixes
