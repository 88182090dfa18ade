"""Prompts that a model proposes: asking for them, how the search goes, each proposal, and trying the best."""

from typing import Any

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.accounts.project_settings import provider_keys
from flywheel.agents.version_changes import lines
from flywheel.core.errors import FieldError
from flywheel.edge import htmx, job_pages
from flywheel.edge.numbers import number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import refusal_shown, status_of
from flywheel.failures.buckets import bucket_definitions
from flywheel.training.fixes import draft_search
from flywheel.training.models import PromptAttempt, PromptProposal, PromptSearch
from flywheel.training.pages.fixes.fix_forms import offered
from flywheel.training.pages.fixes.search_form import SearchForm
from flywheel.trajectories.annotations.project_buckets import name_of

ATTEMPTS = 25
"""On a page of a proposal, each with its transcript."""
LISTED = 5
"""Earlier searches beside the form."""
LOGGED = 50


@require_GET
@requires(Permission.VIEW)
def searches(request: PageRequest) -> HttpResponse:
    """List the searches, newest first; of one category where the address names it."""
    bucket = request.GET.get("bucket", "")
    rows = draft_search.searches().filter(project=request.project, **({"bucket": bucket} if bucket else {}))
    context = {"page": page_at(request, rows, is_counted=True), "tab": "fixes", "bucket": bucket}
    return render(request, "training/searches.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def propose_prompts(request: PageRequest, key: str) -> HttpResponse:
    """Ask for proposals; to htmx, say what so many would cost."""
    if key not in bucket_definitions.every(request.project):
        raise Http404
    is_sent = request.method == "POST" or htmx.wants_fragment(request)
    asked = request.POST if request.method == "POST" else request.GET
    form = SearchForm(request.project, key, asked.dict(), is_sent=is_sent)
    status = 200
    if request.method == "POST":
        with refusal_shown(form):
            if wanted := form.request():
                found, _ = draft_search.submit(wanted, request.actor)
                return redirect("training:search", request.project.slug, found.pk)
        status = 422
    keys = [(each.name, each.base_url) for each in request.project.provider_keys.all()]
    context = {
        "form": form,
        "bucket": bucket_definitions.every(request.project)[key],
        "keys": [*keys, *provider_keys.operators()],
        "servers": sorted({address for _, address in keys}),
        "searches": draft_search.searches().filter(project=request.project, bucket=key)[:LISTED],
        **offered(request.project, form.parent),
    }
    return htmx.answer(request, "training/propose_prompts.html", "training/_search_cost.html", context, status)


def _search(request: PageRequest, pk: int) -> PromptSearch:
    return get_object_or_404(draft_search.searches(), project=request.project, pk=pk)


@require_GET
@requires(Permission.VIEW)
def search(request: PageRequest, search: int) -> HttpResponse:
    """Show how far it is, and every proposal."""
    return _page(request, _search(request, search))


def _page(request: PageRequest, found: PromptSearch, problem: str = "", status: int = 200) -> HttpResponse:
    context = _context(request, found)
    best = context["best"]
    own = context["results"].proposals[0].proposal
    context |= {
        "problem": problem,
        "prompt": lines(own.text, best.proposal.text) if best else [],
        "events": list(found.events.order_by("-id")[:LOGGED])[::-1],
        "lineage": _lineage(request, found),
        "bucket_label": name_of(request.project, found.bucket),
    }
    return render(request, "training/search.html", context, status=status)


def _context(request: PageRequest, found: PromptSearch) -> dict[str, Any]:
    """Collect the facts that move while it goes on."""
    results = draft_search.results_of(found)
    may_build = Permission.BUILD in request.permissions
    return {
        "job": found,
        "may_stop": may_build,
        "may_try": may_build and found.is_finished and found.trial is None and results.most_drafts > 0,
        "results": results,
        "best": results.best,
        "left": draft_search.to_play(found) - results.attempts,
    }


search_live = job_pages.live(_search, "training/_search_live.html", requires(Permission.VIEW), _context)
cancel_search = job_pages.cancel(_search, "training:search", requires(Permission.BUILD))
resume_search = job_pages.resume(_search, "training:search", requires(Permission.BUILD))


@require_POST
@requires(Permission.BUILD)
def try_proposals(request: PageRequest, search: int) -> HttpResponse:
    """Have the ticked proposals tried on all training tasks, as the drafts of a trial."""
    found = _search(request, search)
    places = [number(text) for text in request.POST.getlist("proposal")]
    try:
        trial = draft_search.try_proposals(found, [each for each in places if each is not None], request.actor)
    except FieldError as error:
        return _page(request, found, problem=error.problem, status=status_of(error))
    return redirect("training:fix_trial", request.project.slug, trial.pk)


@require_GET
@requires(Permission.VIEW)
def proposal(request: PageRequest, search: int, place: int) -> HttpResponse:
    """Show what a proposal changes, and its attempts beside those with the prompt that it was made from."""
    found = _search(request, search)
    results = draft_search.results_of(found)
    shown = next((each for each in results.proposals if each.proposal.place == place), None)
    if shown is None:
        raise Http404
    row = shown.proposal
    played = row.attempts.select_related("task__environment")
    attempts = page_at(request, played, limit=ATTEMPTS, is_counted=True)
    before: dict[int, PromptAttempt] = {}
    if row.parent:
        tasks = [attempt.task_id for attempt in attempts.items]
        rows = row.parent.attempts.filter(task__in=tasks).only("task_id", "score", "reason", "proposal_id")
        before = {attempt.task_id: attempt for attempt in rows}
    places = [each.proposal.place for each in results.proposals]
    context = {
        "search": found,
        "shown": shown,
        "proposal": row,
        "is_best": results.best is not None and results.best.proposal == row,
        "prompt": lines(row.parent.text, row.text) if row.parent else [],
        "page": attempts,
        "rows": [(attempt, before.get(attempt.task_id)) for attempt in attempts.items],
        "previous": place - 1 if place - 1 in places else None,
        "next": place + 1 if place + 1 in places else None,
        "lineage": _lineage(request, found, row),
    }
    return render(request, "training/proposal.html", context)


def _lineage(request: PageRequest, found: PromptSearch, row: PromptProposal | None = None) -> list[dict[str, Any]]:
    """From the bucket to the proposal or the trial, each a link."""
    slug, parent = request.project.slug, found.parent
    chain: list[tuple[str, str, list[Any]]] = [
        (f"bucket {name_of(request.project, found.bucket)}", "failures:bucket", [found.bucket]),
        (str(parent), "agents:version", [parent.agent.name, parent.number]),
        (str(found), "training:search", [found.pk]),
    ]
    if row is not None:
        chain.append((str(row), "training:proposal", [found.pk, row.place]))
    elif found.trial:
        chain.append((str(found.trial), "training:fix_trial", [found.trial.pk]))
    here = "training:search" if row is None else "training:proposal"
    return [
        {"label": label, "url": reverse(page, args=[slug, *of]), "current": page == here} for label, page, of in chain
    ]
