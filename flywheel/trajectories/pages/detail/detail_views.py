"""One trajectory: the page, and the fragments that it is made of as one reads on."""

import json
from typing import Any

from django.http import Http404, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.numbers import number
from flywheel.edge.prepared_queries import PreparedQuery, naming
from flywheel.templatetags.texts import safe_text
from flywheel.trajectories.annotations.project_buckets import name_of
from flywheel.trajectories.detail import anomalies, outline, step_search, transcript, value_tree
from flywheel.trajectories.detail.usage import AT_ONCE, totals_of
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.models import Blob, Source, Step, Trajectory
from flywheel.trajectories.pages.detail.selected_step import chosen_of
from flywheel.trajectories.search import grammar
from flywheel.trajectories.store.rows.trajectory_rows import home_of
from flywheel.trajectories.store.stored_traces import complete

VIEWS = ("tree", "waterfall", "conversation")
MOST_STEPS = 10**8

_ROW = PreparedQuery(
    lambda project, trace_id: Trajectory.objects.filter(project=project, trace_id=trace_id).select_related(
        "agent", "version__agent"
    )
)
_PROPOSALS = PreparedQuery(lambda row: naming(Trajectory, "proposals", row))
_FAILURE = PreparedQuery(
    lambda row: naming(Trajectory, "failures", row).filter(current=True).select_related("labelled_by")[:1]
)
_ATTEMPT = PreparedQuery(lambda row: naming(Trajectory, "training_attempt", row).select_related("run"))
_TASKS = PreparedQuery(lambda row: naming(Trajectory, "tasks", row).select_related("environment")[:3])


@require_GET
@requires(Permission.VIEW)
def detail(request: PageRequest, trace_id: str) -> HttpResponse:
    """One trajectory: its steps, its conversation, the chosen step, and what is known about it."""
    row = _find(request, trace_id)
    wanted = request.GET.get("step", "")
    chosen = row.steps.filter(span_id=wanted).first() if wanted else None
    proposals, failure = _PROPOSALS(row.pk), _FAILURE.first(row.pk)
    attempt = _ATTEMPT.first(row.pk) if row.source == Source.TRAINING else None
    context = {
        **_conversation(row, _number(request, "start") if chosen is None else chosen.position),
        **chosen_of(row, chosen, request.GET.get("side", ""), failure),
        **(_totals(row) if row.step_count <= AT_ONCE else {}),
        "outline": outline.outline_of(row, shown=safe_text).decode() if row.step_count <= outline.INLINE else None,
        "attributes": [(item, grammar.attribute(item)) for item in sent_attributes.sent(row.attributes)],
        "views": VIEWS,
        "view": request.GET.get("view", "") if request.GET.get("view", "") in VIEWS else VIEWS[0],
        "chosen": wanted,
        "chosen_at": -1 if chosen is None else chosen.position,
        "proposals": [{"row": each, "bucket": name_of(request.project, each.bucket)} for each in proposals],
        "failure": failure,
        "failing": _failing(failure, proposals[0] if proposals else None),
        "result": _result(row),
        "attempt": attempt,
        "lineage": _lineage(request, row, failure, attempt),
        "feedback": transcript.feedback_of(row),
        "said_before": transcript.feedback_of(row, current=False),
        "exports": trajectory_export.EXPORTS.values(),
    }
    return render(request, "trajectories/detail.html", context)


@require_GET
@requires(Permission.VIEW)
def conversation(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: the turns of a further window."""
    row = _find(request, trace_id)
    context = {**_conversation(row, _number(request, "start")), "failing": request.GET.get("failing", "")}
    return render(request, "trajectories/_conversation.html", context)


@require_GET
@requires(Permission.VIEW)
def steps(request: PageRequest, trace_id: str) -> HttpResponse:
    """The outline, from a step on."""
    start = _number(request, "start")
    limit = outline.FURTHER if start else outline.FIRST
    found = outline.outline_of(_find(request, trace_id), start, limit, shown=safe_text)
    return HttpResponse(found, content_type="application/json")


@require_GET
@requires(Permission.VIEW)
def step(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: the chosen step, by its id or its position."""
    row = _find(request, trace_id)
    asked = {"span_id": request.GET["step"]} if "step" in request.GET else {"position": _number(request, "at")}
    failure = _FAILURE.first(row.pk)
    found = chosen_of(row, get_object_or_404(row.steps, **asked), request.GET.get("side", ""), failure)
    return render(request, "trajectories/_step.html", {"trajectory": row, **found})


@require_GET
@requires(Permission.VIEW)
def turn(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: one turn, whole or as it was written. With `path`, a value of it as text, to be copied."""
    row = _find(request, trace_id)
    found = transcript.turn_of(row, _number(request, "at"), _number(request, "n"), own="own" in request.GET)
    if found is None:
        return HttpResponse("There is no such turn.", status=404, content_type="text/plain; charset=utf-8")
    if "path" in request.GET or "copy" in request.GET:
        try:
            value = value_tree.value_at(found.content, request.GET.getlist("path"))
        except LookupError:
            return HttpResponseBadRequest("There is no such value.", content_type="text/plain; charset=utf-8")
        return HttpResponse(value_tree.written(value), content_type="text/plain; charset=utf-8")
    found.is_whole, found.as_text = found.is_whole or "whole" in request.GET, "text" in request.GET
    context: dict[str, Any] = {"trajectory": row, "turns": [found], "in_pane": "own" in request.GET}
    if "elsewhere" not in request.GET:
        context |= {"selectable": True, "failing": _failing(_FAILURE.first(row.pk), _PROPOSALS.first(row.pk))}
    return render(request, "trajectories/_turns.html", context)


@require_GET
@requires(Permission.VIEW)
def search(request: PageRequest, trace_id: str) -> HttpResponse:
    """Where the trajectory says a text."""
    found = step_search.find(_find(request, trace_id), request.GET.get("q", ""))
    matches = [{"at": each.position, "place": each.place, "excerpt": each.excerpt} for each in found.matches]
    return JsonResponse({"matches": matches, "is_part": found.is_part})


@require_GET
@requires(Permission.VIEW)
def totals(request: PageRequest, trace_id: str) -> HttpResponse:
    """Fragment: what reads all the steps of a long trajectory."""
    row = _find(request, trace_id)
    return render(request, "trajectories/_totals.html", {"trajectory": row, **_totals(row)})


@require_GET
@requires(Permission.VIEW)
def download(request: PageRequest, trace_id: str) -> HttpResponse:
    """A whole step as JSON, or one large value of it."""
    row = _find(request, trace_id)
    step = get_object_or_404(Step, trajectory=row, span_id=request.GET.get("step", ""))
    digest = request.GET.get("value", "")
    name = f"{trace_id[:12]}-{slugify(step.span_id)[:24] or step.position}"
    if digest:
        if digest not in (step.blobs or ()):
            raise Http404
        value = get_object_or_404(Blob, project=request.project, sha256=digest)
        return _file(value.content, f"{name}-{digest[:8]}.txt")
    complete([step], [row])
    return _file(json.dumps(step.raw, indent=2, ensure_ascii=False), f"{name}.json")


def _file(content: str, name: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(content.encode(errors="replace"), content_type="text/plain; charset=utf-8", headers=headers)


def _find(request: PageRequest, trace_id: str) -> Trajectory:
    project = request.project.pk
    row = _ROW.first(project, trace_id) or _ROW.first(project, home_of(project, trace_id))
    if row is None:
        raise Http404
    return row


def _failing(failure: Any, best: Any) -> str:
    """The step that fails, as a person says, or else the strongest proposal."""
    return failure.step if failure else best.step if best else ""


def _number(request: PageRequest, name: str) -> int:
    return min(number(request.GET.get(name, "")) or 0, MOST_STEPS)


def _conversation(row: Trajectory, position: int) -> dict[str, Any]:
    """The window that holds a position, and where those beside it begin."""
    start = position // transcript.SCREEN * transcript.SCREEN
    following = start + transcript.SCREEN
    return {
        "trajectory": row,
        "turns": transcript.conversation_of(row, start, transcript.SCREEN),
        "selectable": True,
        "start": start,
        "end": min(following, row.step_count),
        "previous_start": start - transcript.SCREEN if start else None,
        "next_start": following if following < row.step_count else None,
    }


def _totals(row: Trajectory) -> dict[str, Any]:
    return {"totals": totals_of(row), "odd_whole": anomalies.of_whole(row)}


def _result(row: Trajectory) -> Any:
    """Return the verifier's result of a rollout; None for anything else."""
    return getattr(row, "result", None) if row.source == Source.ROLLOUT else None


def _lineage(request: PageRequest, row: Trajectory, failure: Any, attempt: Any) -> list[dict[str, Any]]:
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
    if attempt is not None:
        label, url = f"{attempt.run} step {attempt.step}", reverse("training:run", args=[slug, attempt.run_id])
        chain.append({"label": label, "url": url})
    chain.append({"label": str(row), "url": "", "current": True})
    if failure and failure.is_failure:
        url = reverse("failures:review", args=[slug, row.trace_id])
        chain.append({"label": f"failure {name_of(request.project, failure.bucket)}", "url": url})
    for task in _TASKS(row.pk):
        url = reverse("environments:task", args=[slug, task.environment.name, task.number])
        chain.append({"label": f"task {task}", "url": url})
    return chain
