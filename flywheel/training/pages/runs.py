"""Training runs: all of them, and one as it trains."""

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.db.models import OuterRef, Subquery
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.recipes import ALGORITHMS
from flywheel.edge import job_pages
from flywheel.edge.jobs import State
from flywheel.edge.numbers import form_key, number
from flywheel.edge.paging import page_at
from flywheel.edge.polling import progress, unchanged
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import Opening
from flywheel.evals.pages.comparison_context import Whisker, forest
from flywheel.training.datasets.contamination_checks import kept_checks
from flywheel.training.launch import reward_lock, run_budgets, run_control
from flywheel.training.models import Point, TrainingRun
from flywheel.training.pages import run_charts, run_details
from flywheel.training.runs import (
    alert_evidence,
    compared_runs,
    device_queue,
    kept_checkpoints,
    run_files,
    run_forecasts,
    run_repeats,
    tried_attempts,
)
from flywheel.training.runs.step_points import step_points

GAINS_SHOWN = 12
REPEATS_SHOWN = 6
DIFFERENCE = "candidates__report__comparison__differences__success"
"""Of a candidate's report, which is long otherwise."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """The runs, newest first, under the filters of the address."""
    runs = TrainingRun.objects.filter(project=request.project)
    wanted = {name: request.GET.get(name, "") for name in ("state", "algorithm")}
    found = runs.filter(**{name: value for name, value in wanted.items() if value})
    evals = Point.objects.filter(run=OuterRef("pk"), kind=Point.Kind.EVAL)
    shown = found.select_related(
        "base__agent", "produced__agent", "reward_model", "task_set", "created_by", "baseline", "evaluation"
    ).annotate(
        eval_step=Subquery(evals.order_by("-step").values("step")[:1]),
        eval_values=Subquery(evals.order_by("-step").values("values")[:1]),
        start_values=Subquery(evals.filter(step=0).values("values")[:1]),
    )
    page = page_at(request, shown, is_counted=True)
    return render(
        request,
        "training/index.html",
        {
            "page": page,
            "chart": _gains(page.items),
            "is_moving": any(not each.is_finished for each in page.items),
            "tab": "runs",
            "filters": wanted,
            "states": State.choices,
            "algorithms": ALGORITHMS.values(),
            "is_empty": not runs.exists(),
            "places": device_queue.places(request.project),
        },
    )


def _gains(runs: Sequence[TrainingRun]) -> dict[str, Any] | None:
    """Held-out success of what these runs made beside what they began with; None where nothing was compared yet."""
    compared = TrainingRun.objects.filter(pk__in=[run.pk for run in runs], candidates__isnull=False)
    found = dict(compared.order_by("candidates").values_list("pk", DIFFERENCE))
    rows = [Whisker(f"{run} {run.algorithm_label}", found[run.pk]) for run in runs if found.get(run.pk)]
    note = "held-out success, 95% intervals"
    return forest("Gain of each run", "gains", rows[:GAINS_SHOWN], note) if rows else None


@require_GET
@requires(Permission.VIEW)
def run(request: PageRequest, pk: int) -> HttpResponse:
    found = run_of(request, pk)
    if found.points.filter(kind=Point.Kind.SAMPLES).exists():
        for task_set in found.task_sets:
            ledger.opened(task_set=task_set, kind=Opening.Kind.PAGE, subject=found, actor=request.actor)
    defaults = {
        "settings": run_details.settings_rows(found),
        "algorithm": ALGORITHMS[found.algorithm],
        "overridden": run_control.needs_reason(found.algorithm, found.recommendation) if found.recommendation else "",
        "reward": reward_lock.kept(found),
        "contamination": next(iter(kept_checks([found.dataset], [found.task_set]).values()), None),
        "repeats": run_repeats.repeats_of(found)[:REPEATS_SHOWN],
        "sweep": TrainingRun.objects.filter(project=request.project, sweep=found.sweep).order_by("pk")
        if found.sweep
        else (),
        "budget_fields": [(name, label, found.budget.get(name)) for name, label in run_budgets.LABELS.items()],
        "environment_weights": compared_runs.weights_in_words(found),
        "files": run_files.files_of(found),
        **_checkpoints(found),
        "key": uuid.uuid4(),
        "fewest_seeds": run_repeats.SEEDS[0],
        "most_seeds": run_repeats.SEEDS[1],
    }
    return render(request, "training/run.html", {**_live(request, found), **defaults})


@require_GET
@requires(Permission.VIEW)
def live(request: PageRequest, pk: int) -> HttpResponse:
    """Fragment: everything that moves. The last one comes once the gate has spoken."""
    found = run_of(request, pk)
    if request.GET.get("seen") == run_details.fingerprint(found):
        return unchanged(is_over=run_details.is_settled(found))
    context = _live(request, found)
    response = progress(request, "training/_live.html", context, is_over=context["is_settled"])
    if found.is_finished:  # what only a finished run has stands outside of the fragment
        response["HX-Refresh"] = "true"
    return response


def _live(request: PageRequest, found: TrainingRun) -> dict[str, Any]:
    steps, stride = step_points(found)
    return {
        "run": found,
        "others": run_details.others(found),
        "lineage": run_details.lineage(found),
        "left": found.remaining,
        "fingerprint": run_details.fingerprint(found),
        "is_settled": run_details.is_settled(found),
        "alerts": alert_evidence.alerts_of(found, steps),
        "held_out": run_charts.held_out(found),
        "curves": run_charts.curves(found, steps, stride),
        "validation": run_charts.validation(found),
        "curves_aside": run_charts.curves(found, steps, stride, aside=True),
        "samples": run_details.samples(found, request.GET.get("samples", "")),
        "usage": run_forecasts.usage(found),
        "paid": run_budgets.paid_by(found),
        "log": run_details.log(found),
        "tried": tried_attempts.overview(found),
        "output": run_files.output_tail(found),
        "advice": run_details.failed_advice(found) if found.state == State.FAILED else "",
        "waiting": device_queue.waiting(found),
        "places": device_queue.places(found.project) if found.state == State.QUEUED else (),
        "candidate": found.candidates.first(),
    }


@require_POST
@requires(Permission.TRAIN)
def resume(request: PageRequest, pk: int) -> HttpResponse:
    """Let it go on, under the budget of the form where it has one; an empty field is no limit."""
    found, is_given = run_of(request, pk), any(name in request.POST for name in run_budgets.UNITS)
    with job_pages.refusal_told(request, "Nothing was resumed"):
        run_budgets.resume(found, request.actor, run_budgets.read(request.POST) if is_given else None)
    return redirect("training:run", request.project.slug, pk)


@require_POST
@requires(Permission.TRAIN)
def repeat(request: PageRequest, pk: int) -> HttpResponse:
    """Launch it again: exactly, or under as many other seeds as the form says, which are then compared."""
    found, key = run_of(request, pk), form_key(request.POST.get("key", ""))
    fewest, most = run_repeats.SEEDS
    seeds = number(request.POST.get("seeds", ""), least=fewest, most=most)
    with job_pages.refusal_told(request, "Not repeated"):
        if "seeds" not in request.POST:
            again, _ = run_repeats.repeat(found, key=key, actor=request.actor)
            return redirect("training:run", request.project.slug, again.pk)
        if seeds is None:
            raise Refused(f"choose {fewest} to {most} other seeds")
        others = run_repeats.repeat_with_other_seeds(found, number=seeds, key=key, actor=request.actor)
        chosen = urlencode({"run": [found.pk, *(each.pk for each in others)]}, doseq=True)
        return redirect(f"{reverse('training:compare', args=[request.project.slug])}?{chosen}")
    return redirect("training:run", request.project.slug, pk)


@require_GET
@requires(Permission.VIEW)
def checkpoints(request: PageRequest, pk: int) -> HttpResponse:
    """Fragment: the kept checkpoints, while versions are made of them."""
    found = run_of(request, pk)
    context = _checkpoints(found)
    return progress(
        request, "training/_checkpoints.html", {"run": found, **context}, is_over=not context["is_version_made"]
    )


@require_POST
@requires(Permission.TRAIN)
def make_version(request: PageRequest, pk: int, step: int) -> HttpResponse:
    """Have a version made of a kept checkpoint."""
    with job_pages.refusal_told(request, "No version was made"):
        kept_checkpoints.make_version(run_of(request, pk), step, request.actor)
    return redirect(f"{reverse('training:run', args=[request.project.slug, pk])}#files")


def _checkpoints(found: TrainingRun) -> dict[str, Any]:
    kept = kept_checkpoints.kept_of(found) if found.makes_policy else []
    return {"checkpoints": kept, "is_version_made": any(each.job and not each.job.is_finished for each in kept)}


@require_GET
@requires(Permission.VIEW)
def download(request: PageRequest, pk: int, name: str) -> HttpResponseBase:
    """One of the run's files. A trainer wrote it: it comes as a file, never as a page."""
    return run_files.download(request, run_of(request, pk), name, request.actor)


def run_of(request: PageRequest, pk: int) -> TrainingRun:
    rows = TrainingRun.objects.select_related(
        "project",
        "base__agent",
        "teacher__agent",
        "reward_recipe",
        "dataset",
        "replay",
        "task_set__environment_version__environment",
        "baseline",
        "produced__agent",
        "produced__weights",
        "produced__adapter",
        "reward_model__weights",
        "evaluation",
        "recommendation",
        "created_by",
        "stage__pipeline",
        "reward_audit__run__version__agent",
        "reward_audit__rescore__recipe",
        "audit_override__created_by",
    )
    return get_object_or_404(rows, project=request.project, pk=pk)


cancel = job_pages.cancel(run_of, "training:run", requires(Permission.TRAIN), refusal="Nothing was cancelled")
