"""The list of trajectories, one trajectory, and the import."""

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, audit, requires
from flywheel.accounts.models import Permission
from flywheel.paging import BadCursor, about, keyset
from flywheel.trajectories import show
from flywheel.trajectories.facets import COUNTED, facets_of
from flywheel.trajectories.formats import FORMATS
from flywheel.trajectories.forms import ImportForm
from flywheel.trajectories.importing import import_lines
from flywheel.trajectories.models import Batch, Source, Trajectory, name_of_bucket
from flywheel.trajectories.query import FIELDS, looks_like_an_id, parse

PAGE = 50
LIST_OMITS = ("said", "metadata", "tools", "interventions")
BATCHES_SHOWN = 20


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """The newest trajectories that match the filter bar."""
    query = parse(request.GET.get("q", ""))
    every = Trajectory.objects.filter(project=request.project)
    if (pasted := looks_like_an_id(query.text)) and every.filter(trace_id=pasted).exists():
        return redirect("trajectories:detail", request.project.slug, pasted)
    rows = query.apply(every)
    try:
        page = keyset(
            rows.select_related("version__agent", "agent").defer(*LIST_OMITS),
            cursor=request.GET.get("cursor", ""),
            limit=PAGE,
            keys=("started_at", "id"),
            query=request.GET,
        )
    except BadCursor:
        return redirect(f"{request.path}?{urlencode({'q': query.text})}")
    page.total, page.about = about(rows)
    context = {
        "query": query,
        "page": page,
        "fields": FIELDS,
        "is_empty": not page.items and not query.text and not every.exists(),
        "traces_url": request.build_absolute_uri(reverse("ingest:traces")),
    }
    return render(request, "trajectories/list.html", context)


@require_GET
@requires(Permission.VIEW)
def facets(request: PageRequest) -> HttpResponse:
    """Fragment: what the matching trajectories are made of."""
    query = parse(request.GET.get("q", ""))
    found, counted = facets_of(query.apply(Trajectory.objects.filter(project=request.project)))
    context = {"facets": found, "query": query, "counted": counted, "is_part": counted >= COUNTED}
    return render(request, "trajectories/_facets.html", context)


@require_GET
@requires(Permission.VIEW)
def detail(request: PageRequest, trace_id: str) -> HttpResponse:
    """One trajectory: its steps, its conversation, the chosen step, and what is known about it."""
    row = _find(request, trace_id)
    chosen = request.GET.get("step", "")
    at = show.window_at(row, chosen) if chosen else None
    start = _start(request) if at is None else at
    proposals = list(row.proposals.all())
    failure = row.failures.filter(current=True).select_related("labelled_by").first()
    context = {
        **_conversation(row, start),
        **_steps(row, start),
        "step": row.steps.filter(span_id=chosen).first() if chosen else None,
        "chosen": chosen,
        "proposals": [{"row": proposal, "bucket": name_of_bucket(proposal.bucket)} for proposal in proposals],
        "failure": failure,
        "failing": failure.step if failure else proposals[0].step if proposals else "",
        "result": _result(row),
        "tasks": row.tasks.select_related("environment")[:20],
        "lineage": _lineage(request, row, failure),
        "selectable": True,
    }
    return render(request, "trajectories/detail.html", context)


@require_GET
@requires(Permission.VIEW)
def conversation(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: the turns of a further window."""
    row = _find(request, trace_id)
    context = {**_conversation(row, _start(request)), "selectable": True}
    return render(request, "trajectories/_turns.html", context)


@require_GET
@requires(Permission.VIEW)
def steps(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: the lines of a further window."""
    return render(request, "trajectories/_lines.html", _steps(_find(request, trace_id), _start(request)))


@require_GET
@requires(Permission.VIEW)
def step(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: the chosen step as it arrived."""
    row = _find(request, trace_id)
    chosen = get_object_or_404(row.steps, span_id=request.GET.get("step", ""))
    return render(request, "trajectories/_step.html", {"step": chosen, "trajectory": row})


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def import_page(request: PageRequest) -> HttpResponse:
    """Upload a file; what was kept and what was left out is read from the ledger, so that a reload shows it again."""
    form = ImportForm(request.POST or None, request.FILES or None, initial={"format": "auto"})
    if request.method == "POST" and form.is_valid():
        file = form.cleaned_data["file"]
        report = import_lines(request.project, file, format=form.cleaned_data["format"])
        if report.batches:
            audit(request, "trajectories.import", f"file {file.name}", steps=report.steps)
            chosen = urlencode([("batch", batch.pk) for batch in report.batches])
            return redirect(f"{request.path}?{chosen}")
        messages.error(request, f"{file.name} holds no lines; nothing was changed.")
    batches = Batch.objects.filter(project=request.project).select_related("key")
    chosen_pks = [pk for pk in request.GET.getlist("batch") if pk.isascii() and pk.isdigit() and len(pk) < 19]
    context = {
        "form": form,
        "formats": FORMATS.values(),
        "imported": batches.filter(pk__in=chosen_pks).order_by("id") if chosen_pks else (),
        "batches": batches.order_by("-id")[:BATCHES_SHOWN],
    }
    return render(request, "trajectories/import.html", context)


def _find(request: PageRequest, trace_id: str) -> Trajectory:
    rows = Trajectory.objects.select_related("agent", "version__agent")
    return get_object_or_404(rows, project=request.project, trace_id=trace_id)


def _start(request: PageRequest) -> int:
    """Where the wanted window begins."""
    text = request.GET.get("start", "")
    return int(text) // show.WINDOW * show.WINDOW if text.isascii() and text.isdigit() and len(text) < 9 else 0


def _conversation(row: Trajectory, start: int) -> dict[str, Any]:
    return {"trajectory": row, "turns": show.conversation_of(row, start), **_around(row, start)}


def _steps(row: Trajectory, start: int) -> dict[str, Any]:
    return {"trajectory": row, "lines": show.lines_of(row, start), **_around(row, start)}


def _around(row: Trajectory, start: int) -> dict[str, Any]:
    """Where the windows beside this one begin."""
    following = start + show.WINDOW
    return {
        "start": start,
        "end": min(following, row.step_count),
        "previous_start": start - show.WINDOW if start else None,
        "next_start": following if following < row.step_count else None,
    }


def _result(row: Trajectory) -> Any:
    """What the verifier said of a rollout; None for anything else."""
    return getattr(row, "result", None) if row.source == Source.ROLLOUT else None


def _lineage(request: PageRequest, row: Trajectory, failure: Any) -> list[dict[str, Any]]:
    slug = request.project.slug
    chain: list[dict[str, Any]] = []
    if row.version:
        url = reverse("agents:version", args=[slug, row.version.agent.name, row.version.number])
        chain.append({"label": str(row.version), "url": url})
    if (result := _result(row)) is not None:
        name, number = result.task.environment.name, result.task.number
        chain += [
            {"label": f"task {result.task}", "url": reverse("environments:task", args=[slug, name, number])},
            {"label": str(result.run), "url": reverse("evals:run", args=[slug, result.run_id])},
        ]
    chain.append({"label": str(row), "url": "", "current": True})
    if failure and failure.is_failure:
        chain.append(
            {"label": f"failure {failure.bucket}", "url": reverse("failures:review", args=[slug, row.trace_id])}
        )
    for task in row.tasks.select_related("environment")[:3]:
        url = reverse("environments:task", args=[slug, task.environment.name, task.number])
        chain.append({"label": f"task {task}", "url": url})
    return chain
