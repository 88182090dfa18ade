"""Trying fixes that need no training: the form, the list, and how a trial goes."""

from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.errors import FieldError
from flywheel.edge.job_pages import refusal_told
from flywheel.edge.numbers import number
from flywheel.edge.paging import page_at
from flywheel.edge.polling import loaded_anew
from flywheel.environments import ledger
from flywheel.environments.models import Split
from flywheel.failures.buckets import bucket_definitions
from flywheel.training.fixes import bucket_evidence, draft_search, trial_lifecycle, trial_results
from flywheel.training.fixes.trial_lifecycle import MOST_DRAFTS
from flywheel.training.models import FixTrial, PromptSearch
from flywheel.training.pages.fixes.fix_forms import ADDED, DraftForm, FixForm, offered, texts_of
from flywheel.trajectories.annotations.project_buckets import name_of

LISTED = 20
"""Trials on a page of the list, each with its differences."""
SEARCHES = 5
"""The newest, beside what can lead to them."""


@require_GET
@requires(Permission.VIEW)
def fixes(request: PageRequest) -> HttpResponse:
    """List the fixes that were tried, newest first."""
    rows = trial_results.trials().filter(project=request.project)
    page = page_at(request, rows, limit=LISTED, is_counted=True)
    found = [
        {"trial": trial, "results": trial_results.results_of(trial), "candidate": trial_results.candidate_of(trial)}
        for trial in page.items
    ]
    searches = draft_search.searches().filter(project=request.project)
    context = {"page": page, "rows": found, "searches": searches[:SEARCHES], "tab": "fixes"}
    return render(request, "training/fixes.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def try_fix(request: PageRequest, key: str) -> HttpResponse:
    """Write drafts beside what the bucket's failures have in common, and have them asked."""
    if key not in bucket_definitions.every(request.project):
        raise Http404
    data = texts_of(request.POST if request.method == "POST" else request.GET)
    form = FixForm(request.project, key, data)
    if request.method == "GET":
        form.begin()
        return _form_page(request, form, form.drafts)
    if (kind := data.get("add", "")) in ADDED:
        form.add(kind)
        return _form_page(request, form, form.drafts)
    if (place := number(data.get("remove", ""))) is not None:
        form.remove(place)
        return _form_page(request, form, form.drafts)
    drafts = form.drafts
    if wanted := form.request(drafts):
        try:
            trial, _ = trial_lifecycle.start(wanted, request.actor)
            return redirect("training:fix_trial", request.project.slug, trial.pk)
        except FieldError as error:
            form.show(error, drafts)
    return _form_page(request, form, drafts, status=422)


def _form_page(request: PageRequest, form: FixForm, drafts: list[DraftForm], status: int = 200) -> HttpResponse:
    agent = form.parent.agent if form.parent else None
    train = form.task_set.members.filter(split=Split.TRAIN).count() if form.task_set else 0
    context = {
        "form": form,
        "drafts": drafts,
        "bucket": bucket_definitions.every(request.project)[form.bucket],
        **offered(request.project, form.parent),
        "train_tasks": train,
        "offer": form.offer,
        "evidence": bucket_evidence.evidence_of(request.project, form.bucket, agent, measured=form.measured),
        "may_add": len(drafts) < MOST_DRAFTS,
        "searches": draft_search.searches().filter(project=request.project, bucket=form.bucket)[:SEARCHES],
    }
    return render(request, "training/try_fix.html", context, status=status)


@require_GET
@requires(Permission.VIEW)
def fix_trial(request: PageRequest, trial: int) -> HttpResponse:
    return render(request, "training/fix_trial.html", _context(request, _trial(request, trial)))


@require_GET
@requires(Permission.VIEW)
def fix_trial_live(request: PageRequest, trial: int) -> HttpResponse:
    """The part of the page that moves, until every eval is over; then the page is loaded anew."""
    context = _context(request, _trial(request, trial))
    return render(request, "training/_fix_trial.html", context) if context["is_moving"] else loaded_anew()


@require_POST
@requires(Permission.TRAIN)
def measure_fix(request: PageRequest, trial: int) -> HttpResponse:
    with refusal_told(request, "Not measured"):
        trial_lifecycle.measure(_trial(request, trial), request.actor)
    return redirect("training:fix_trial", request.project.slug, trial)


def _trial(request: PageRequest, pk: int) -> FixTrial:
    return get_object_or_404(trial_results.trials(), project=request.project, pk=pk)


def _context(request: PageRequest, trial: FixTrial) -> dict[str, Any]:
    found = trial_results.results_of(trial)
    held_out = [run for run in (trial.evaluation, trial.baseline) if run]
    candidate = trial_results.candidate_of(trial)
    return {
        "trial": trial,
        "results": found,
        "best": found.best if found.is_over else None,
        "bucket_label": name_of(request.project, trial.bucket),
        "held_out": held_out,
        "held_out_tasks": trial.task_set.members.filter(split=Split.HELD_OUT).count(),
        "openings": ledger.openings(trial.task_set),
        "candidate": candidate,
        "is_measured": bool(held_out) and all(run.state == "succeeded" for run in held_out),
        "is_moving": found.is_moving,
        "lineage": _lineage(request, trial, candidate),
    }


def _lineage(request: PageRequest, trial: FixTrial, candidate: Any) -> list[dict[str, Any]]:
    """From the bucket to the candidate, each a link."""
    parent = trial.parent
    chain: list[tuple[str, str, list[Any]]] = [
        (f"bucket {name_of(request.project, trial.bucket)}", "failures:bucket", [trial.bucket]),
        (str(parent), "agents:version", [parent.agent.name, parent.number]),
    ]
    if search := PromptSearch.objects.filter(trial=trial).first():
        chain.append((str(search), "training:search", [search.pk]))
    chain.append((str(trial), "training:fix_trial", [trial.pk]))
    chain += [(str(candidate), "promotions:candidate", [candidate.pk])] if candidate else []
    slug = request.project.slug
    return [
        {"label": label, "url": reverse(page, args=[slug, *of]), "current": page == "training:fix_trial"}
        for label, page, of in chain
    ]
