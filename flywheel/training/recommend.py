"""Ask the fix ladder: gather what is known of a version and keep what the ladder said of it."""

from collections import Counter
from dataclasses import asdict

from flywheel.agents.models import Version
from flywheel.core.fixes import Evidence, recommend
from flywheel.core.metrics import pass_at_k, summarise
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.evals.run import rows_of
from flywheel.failures.models import Decision, Failure
from flywheel.training.launch import FIX_OF, baseline_of
from flywheel.training.models import Recommendation, TrainingRun


def recommendation_for(version: Version, task_set: TaskSet) -> Recommendation:
    """The newest recommendation if nothing that it rests on has changed, else a new one."""
    baseline = baseline_of(version, task_set)
    evidence = evidence_of(version, task_set, baseline)
    kept = asdict(evidence)
    newest = Recommendation.objects.filter(version=version, task_set=task_set).order_by("-pk").first()
    if newest is not None and newest.evidence == kept and newest.eval_run == baseline:
        return newest
    return Recommendation.objects.create(
        project=task_set.project,
        version=version,
        task_set=task_set,
        eval_run=baseline,
        evidence=kept,
        ladder=[item.to_json() for item in recommend(evidence)],
    )


def evidence_of(version: Version, task_set: TaskSet, baseline: EvalRun | None) -> Evidence:
    """What is known: labelled failures of the version, its baseline, and the training data that people made."""
    buckets = Counter(
        Failure.objects.filter(project=task_set.project, current=True, trajectory__version=version)
        .exclude(decision=Decision.REJECTED)
        .values_list("bucket", flat=True)
    )
    corrected = task_set.members.filter(split=Split.TRAIN).exclude(task__bucket="").count()
    rows = rows_of(baseline) if baseline else []
    summary = summarise(rows) if rows else {}
    return Evidence(
        buckets=dict(sorted(buckets.items())),
        pass_at_1=summary.get("success"),
        pass_at_k=pass_at_k(rows, baseline.samples) if baseline and rows else None,
        k=baseline.samples if baseline else 0,
        format_valid=summary.get("valid_output"),
        corrected=corrected,
        pairs=corrected,
        calls_per_attempt=1.0 if rows else None,
        tried=_tried(version, task_set),
    )


def _tried(version: Version, task_set: TaskSet) -> dict[str, str]:
    """Fixes that were tried on this version and this set and did not pass the gate, with the run."""
    runs = TrainingRun.objects.filter(base=version, task_set=task_set, candidates__isnull=False)
    tried: dict[str, str] = {}
    for run in runs.exclude(candidates__verdict="eligible").order_by("pk"):
        tried[FIX_OF[run.algorithm]] = str(run)
    return tried
