"""A comparison as pages show it: `_comparison.html` and `_changed_tasks.html`, here and in the promotions room.

    context = {**comparison_context(candidate, baseline, report["comparison"]), …}
    {% include "evals/_comparison.html" %}{% include "evals/_changed_tasks.html" %}

Both fragments need exactly what `comparison_context` returns, and the shell's `project`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flywheel.core.evidence.statistics.arm_comparison import SLICE_MIN_TASKS
from flywheel.core.evidence.statistics.eval_metrics import METRICS
from flywheel.environments.models import Task
from flywheel.evals.comparisons.rollout_pairs import pairs
from flywheel.evals.comparisons.run_comparison import doubts
from flywheel.evals.models import EvalRun
from flywheel.evals.pages.run_facts import bucket_label, describe, link, tell
from flywheel.evals.serving import version_isolation

OPEN = 2
"""Changed tasks whose rollouts stand on the page at once; the others are fetched when a person opens them."""
LISTED = 200
"""Changed tasks that a page lists."""
RATIOS = {
    "cost_usd": "Cost per attempt",
    "cost_per_success": "Cost per success",
    "latency": "Latency, mean",
    "latency_p95": "Latency, p95",
}


class Whisker(NamedTuple):
    """A difference in a chart, and the margin that a gate leaves it."""

    name: str
    estimate: Mapping[str, Any]
    margin: float | None = None


def comparison_context(
    candidate: EvalRun, baseline: EvalRun, comparison: Mapping[str, Any], *, margins: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Everything that the two fragments show, from `asdict(core.evidence.statistics.arm_comparison.Comparison)`.

    `margins` are a gate's, by metric, as shares: 0.01 is one point. Runs want `version__agent` and
    `task_set__environment_version` selected.

    Keys: `candidate_run`, `baseline_run`, `doubts`, `apart` (an `apart.Apart`), `success` (the difference), `counts`
    (fixed, broken, same, unscored), `synthetic` (the same of the synthetic tasks alone, empty where there is none),
    `mcnemar_p`, `metrics` (rows of the table), `ratios`, `slices`, `slice_min_tasks` (the fewest tasks that are
    tested), `charts`, `changed` (broken tasks, then fixed), `changed_more` (how many are not listed), `only_baseline`,
    `only_candidate`, `unscored_tasks` (tasks).
    """
    rows = comparison["tasks"]
    turned = [*_of("broken", rows), *reversed(_of("fixed", rows))]
    tasks = _tasks(candidate, baseline, comparison)
    changed = [
        {
            **row,
            "task": task,
            "bucket": bucket_label(candidate.project, task.bucket),
            "difference": row["candidate"] - row["baseline"],
        }
        for row in turned[:LISTED]
        if (task := tasks.get(row["task_id"]))
    ]
    seen = pairs(candidate, baseline, [change["task"] for change in changed[:OPEN]])
    for change in changed:
        change["pair"] = seen.get(change["task"].pk)
        change["url"] = link("evals:changed", candidate.project, candidate.pk, baseline.pk, change["task"].number)
    metrics = [_row(key, comparison, candidate, baseline) for key in METRICS if key in comparison["differences"]]
    return {
        "candidate_run": candidate,
        "baseline_run": baseline,
        "doubts": doubts(candidate, baseline),
        "apart": version_isolation.of(candidate, baseline),
        "success": comparison["differences"]["success"],
        "counts": {
            **{name: len(_of(name, rows)) for name in ("fixed", "broken", "same")},
            "unscored": len(comparison["unscored_tasks"]),
        },
        "synthetic": _synthetic(candidate, rows),
        "mcnemar_p": comparison["mcnemar_p"],
        "metrics": metrics,
        "ratios": [_ratio(name, comparison["ratios"][name], metrics) for name in RATIOS],
        "slice_min_tasks": SLICE_MIN_TASKS,
        "slices": [{**one, "label": bucket_label(candidate.project, one["name"])} for one in comparison["slices"]],
        "charts": _charts(candidate, metrics, comparison, margins or {}),
        "changed": changed,
        "changed_more": len(turned) - len(changed),
        **{
            name: [tasks[task] for task in comparison[name][:LISTED] if task in tasks]
            for name in ("only_baseline", "only_candidate", "unscored_tasks")
        },
    }


def _synthetic(candidate: EvalRun, rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count the compared tasks that never happened, and how they changed; empty where none is synthetic."""
    members = candidate.task_set.members.filter(task__is_synthetic=True)
    made = {f"t-{number}" for number in members.values_list("task__number", flat=True)}
    own = [row for row in rows if row["task_id"] in made]
    if not own:
        return {}
    return {"tasks": len(own), "of": len(rows), **{name: len(_of(name, own)) for name in ("fixed", "broken", "same")}}


def _of(change: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["change"] == change]


def _tasks(candidate: EvalRun, baseline: EvalRun, comparison: Mapping[str, Any]) -> dict[str, Task]:
    """The tasks that are shown, by their name: numbers are an environment's, and both runs are of one."""
    names = {row["task_id"] for row in comparison["tasks"] if row["change"] != "same"}
    names |= {name for key in ("only_baseline", "only_candidate", "unscored_tasks") for name in comparison[key]}
    numbers = [int(name.removeprefix("t-")) for name in names]
    environment = candidate.task_set.environment_version.environment_id
    found = Task.objects.filter(environment=environment, number__in=numbers).select_related("environment")
    return {str(task): task for task in found}


def _row(key: str, comparison: Mapping[str, Any], *runs: EvalRun) -> dict[str, Any]:
    return tell(
        describe(key, *runs),
        baseline=comparison["baseline"][key],
        candidate=comparison["candidate"][key],
        difference=comparison["differences"][key],
    )


def _ratio(name: str, estimate: Mapping[str, Any], metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Candidate over baseline as a change in percent: 1.05 is +5%."""
    of = "latency_p50_ms" if name.startswith("latency") else "cost_usd"
    words = next(row for row in metrics if row["key"] == of)
    ends = {end: None if estimate[end] is None else estimate[end] - 1 for end in ("mean", "low", "high")}
    shown = {"label": RATIOS[name], "better": words["better"], "note": words["note"]}
    return tell(shown, difference={**estimate, **ends})


def _charts(
    candidate: EvalRun,
    metrics: Iterable[Mapping[str, Any]],
    comparison: Mapping[str, Any],
    margins: Mapping[str, float],
) -> list[dict[str, Any]]:
    rates = [
        Whisker(
            f"{row['label']} (lower is better)" if row["less_is_better"] else row["label"],
            row["difference"],
            margins.get(row["key"]),
        )
        for row in metrics
        if row["is_rate"]
    ]
    buckets = [
        Whisker(f"{bucket_label(candidate.project, one['name'])} ({one['difference']['n']})", one["difference"])
        for one in comparison["slices"]
    ]
    drawn = [forest("By metric", f"metrics-{candidate.pk}", rates)]
    return [*drawn, forest("Success by category", f"buckets-{candidate.pk}", buckets)] if buckets else drawn


def forest(title: str, key: str, rows: Sequence[Whisker], note: str = "") -> dict[str, Any]:
    """Return a chart of differences of shares, in points, with their intervals."""
    shown = [row for row in rows if row.estimate["mean"] is not None]
    series: dict[str, Any] = {"name": "", "role": "candidate", "y": [row.name for row in shown]}
    for name, end in (("x", "mean"), ("low", "low"), ("high", "high")):
        series[name] = [_points(row.estimate[end]) for row in shown]
    if any(row.margin is not None for row in shown):
        series["margin"] = [_points(row.margin) for row in shown]
    return {
        "kind": "forest",
        "title": title,
        "key": key,
        "note": note,
        "x": {"title": "candidate − baseline", "unit": "points"},
        "y": {"title": ""},
        "series": [series],
    }


def _points(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 4)
