"""Facts on the page of a run: tiles, success by slice, progress, lineage."""

from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Q
from django.urls import reverse

from flywheel.accounts.models import Project
from flywheel.core.evidence.statistics.eval_metrics import METRICS
from flywheel.core.verifiers import AWAY
from flywheel.environments.task_sets.set_power import GUARDS
from flywheel.evals.models import Engine, EvalRun
from flywheel.evals.runs.run_summaries import NEVER_TRAINED_ON, REAL, SYNTHETIC, TRAINED_ON
from flywheel.trajectories.annotations.project_buckets import every

VALUE = {"rate": "percent", "score": "number", "tokens": "tokens", "usd": "money", "ms": "duration"}
"""How a value of each unit is written (`{% estimate e kind %}`)."""
CHANGE = {**VALUE, "rate": "points"}
"""How a difference of two is."""
TILES = [
    "success",
    "valid_output",
    "right_form",
    "right_tool",
    "right_arguments",
    "executed",
    "unsafe",
    "tokens",
    "cost_usd",
    "latency_p50_ms",
    "latency_p95_ms",
]


def link(name: str, project: Project, *args: Any) -> str:
    """The address of one of the project's pages."""
    return reverse(name, args=[project.slug, *args])


def tiles(run: EvalRun) -> list[dict[str, Any]]:
    """One tile a metric; empty until the run has its summary."""
    metrics = run.summary.get("metrics", {})
    found = [tell(describe(key, run), estimate=metrics[key]) for key in TILES if key in metrics]
    return found[:1] + _of_k(run) + found[1:]


def _of_k(run: EvalRun) -> list[dict[str, Any]]:
    """Success of several attempts together; nothing where there is one, or where the summary is older than this."""
    estimates = run.summary.get("of_k", {})
    if run.samples < 2 or not estimates:
        return []
    told = {
        "any": (f"pass@{run.samples}", f"at least one of {run.samples} attempts", "Capability"),
        "all": (f"pass^{run.samples}", f"every one of {run.samples} attempts", "Reliability"),
    }
    return [
        {"label": label, "note": note, "description": words, "kind": "percent", "estimate": estimates[key]}
        for key, (label, note, words) in told.items()
    ]


def success(run: EvalRun) -> dict[str, Any] | None:
    """The estimate of success, None until the run has its summary."""
    found: dict[str, Any] | None = run.summary.get("metrics", {}).get("success")
    return found


def familiar(run: EvalRun) -> list[dict[str, Any]]:
    """Success on wordings that the set's training tasks have, and on those they do not have."""
    found = run.summary.get("familiar", {})
    return [{"name": name, "estimate": found[name]} for name in (TRAINED_ON, NEVER_TRAINED_ON) if name in found]


def origins(run: EvalRun) -> list[dict[str, Any]]:
    """Success on real and on synthetic tasks apart; empty where none is synthetic."""
    found = run.summary.get("origins", {})
    return [{"name": f"{name} tasks", "estimate": found[name]} for name in (REAL, SYNTHETIC) if name in found]


def slices_chart(run: EvalRun, kind: str, title: str) -> dict[str, Any] | None:
    """Success by `buckets` or `slices` as whiskers, the worst first; None when there is nothing to tell apart."""
    found = {name: e for name, e in run.summary.get(kind, {}).items() if e["mean"] is not None}
    if not found:
        return None
    rows = sorted(found.items(), key=lambda item: item[1]["mean"])
    whole = success(run)
    one = {"buckets": "bucket", "slices": "slice"}[kind]
    page = link("evals:run", run.project, run.pk)
    return {
        "kind": "forest",
        "title": title,
        "key": f"{kind}-{run.pk}",
        "note": "95% intervals; dashed: all of them",
        "x": {"title": "success", "unit": "%"},
        "y": {"title": ""},
        "baseline": whole["mean"] * 100 if whole and whole["mean"] is not None else 0,
        "series": [
            {
                "name": "",
                "role": "candidate",
                "y": [f"{bucket_label(run.project, name)} ({estimate['tasks']})" for name, estimate in rows],
                "x": [estimate["mean"] * 100 for _, estimate in rows],
                "low": [_percent(estimate["low"]) for _, estimate in rows],
                "high": [_percent(estimate["high"]) for _, estimate in rows],
                "links": [f"{page}?{urlencode({one: name})}#matrix" for name, _ in rows],
            }
        ],
    }


def so_far(run: EvalRun) -> dict[str, int]:
    """Count the attempts that passed, failed and went unscored, and for how many of these the server was away."""
    counts = run.results.aggregate(
        passed=Count("pk", filter=Q(success=True)),
        failed=Count("pk", filter=Q(success=False)),
        unscored=Count("pk", filter=Q(success=None)),
        unanswered=Count("pk", filter=Q(cause=AWAY)),
    )
    return dict(counts)


def lineage(run: EvalRun) -> list[dict[str, Any]]:
    """Where the version came from, what it was asked, and what came of it."""
    project, version = run.project, run.version
    chain = [_step(version.agent.name, link("agents:agent", project, version.agent.name))]
    made_by = [*version.produced_by.all(), *(each.run for each in version.checkpoint_versions.select_related("run"))]
    for training in made_by[:1]:
        chain.append(_step(f"run {training}", link("training:run", project, training.pk)))
    chain.append(
        _step(f"version {version.number}", link("agents:version", project, version.agent.name, version.number))
    )
    task_set = link("environments:task_set", project, run.task_set.name, run.task_set.version)
    chain.append(_step(f"set {run.task_set} ({run.get_split_display().lower()})", task_set))
    chain.append(_step(f"eval {run.pk}", "", current=True))
    for candidate in version.candidates.filter(version_eval=run)[:1]:
        chain.append(_step(f"candidate {candidate.pk}", link("promotions:candidate", project, candidate.pk)))
        chain.append(_step(str(candidate.get_state_display()), ""))
    return chain


def tell(words: dict[str, Any], **estimates: dict[str, Any]) -> dict[str, Any]:
    """A metric's words with its estimates. Shares of a batch are not so many measurements: no interval, no n."""
    if words["note"]:
        estimates = {
            name: {**estimate, "low": None, "high": None, "n": None, "reason": words["note"]}
            for name, estimate in estimates.items()
        }
    return {**words, **estimates}


def _by_the_worker(run: EvalRun) -> bool:
    return run.engine == Engine.ENDPOINT and run.version.endpoint.get("kind") == "transformers"


def describe(key: str, *runs: EvalRun) -> dict[str, Any]:
    """A metric's words: how it is called, written, which way is better, and what to know of it in these runs."""
    metric = METRICS[key]
    is_share = metric.unit == "ms" and any(_by_the_worker(run) for run in runs)
    return {
        "key": key,
        "label": metric.label,
        "description": metric.description,
        "kind": VALUE[metric.unit],
        "change": CHANGE[metric.unit],
        # How long a batch here takes is the machine's, not the version's: shown, never called better or worse.
        "better": "" if is_share else "high" if metric.higher_is_better else "low",
        "less_is_better": not metric.higher_is_better,
        "note": "estimated: attempts run in batches, each is given an equal share of the time" if is_share else "",
        "is_rate": metric.unit == "rate",
    }


def _step(label: str, url: str, *, current: bool = False) -> dict[str, Any]:
    return {"label": label, "url": url, "current": current}


def _percent(value: float | None) -> float | None:
    return None if value is None else value * 100


def bucket_label(project: Project, key: str) -> str:
    """A bucket as people say it; any other name as it is."""
    known = every(project).get(key)
    return known.label.lower() if known else key or GUARDS
