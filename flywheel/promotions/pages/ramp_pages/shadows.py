"""Pages of a ramp's shadow: calls at which the two versions differ, each side by side, and a person's word on it."""

import json
from typing import Any

from django.contrib import messages
from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import ShadowCopy
from flywheel.core.traces import tooling
from flywheel.edge.paging import page_at
from flywheel.promotions.models import Ramp, ShadowVerdict
from flywheel.promotions.pages.ramp_context import ramps_of
from flywheel.promotions.pages.ramp_pages.ramp_forms import VerdictForm
from flywheel.promotions.ramps import shadow_comparing
from flywheel.promotions.ramps.shadow_comparing import say_verdict
from flywheel.trajectories.models import Step
from flywheel.trajectories.store.stored_traces import step_of

ASKED = 4
"""Of the conversation before the answers, the last messages that are shown."""


@require_GET
@requires(Permission.VIEW)
def calls(request: PageRequest, ramp: int) -> HttpResponse:
    """List the calls at which the two differ, the newest first."""
    row = _ramp(request, ramp)
    said = ShadowVerdict.objects.filter(copy=OuterRef("pk")).order_by("-pk").values("verdict")[:1]
    rows = shadow_comparing.disagreements(row.split).annotate(verdict=Subquery(said))
    page = page_at(request, rows, limit=50, is_counted=True)
    context = {"ramp": row, "page": page, "labels": dict(ShadowVerdict.Verdict.choices)}
    return render(request, "promotions/shadow.html", context)


@require_GET
@requires(Permission.VIEW)
def pair(request: PageRequest, ramp: int, copy: int) -> HttpResponse:
    """Show the two answers to one call."""
    return _show(request, _ramp(request, ramp), copy, VerdictForm())


@require_POST
@requires(Permission.REVIEW)
def say(request: PageRequest, ramp: int, copy: int) -> HttpResponse:
    """Say which of the two answers is better."""
    row = _ramp(request, ramp)
    form = VerdictForm(request.POST)
    if not form.is_valid():
        return _show(request, row, copy, form, status=422)
    say_verdict(copy=_copy(row, copy), actor=request.actor, project=request.project, **form.cleaned_data)
    messages.success(request, "Saved.")
    following = shadow_comparing.disagreements(row.split).filter(pk__lt=copy, verdicts=None).first()
    if following is None:
        return redirect("promotions:shadow", request.project.slug, row.pk)
    return redirect("promotions:shadow_pair", request.project.slug, row.pk, following.pk)


def _show(request: PageRequest, row: Ramp, pk: int, form: VerdictForm, status: int = 200) -> HttpResponse:
    copy = _copy(row, pk)
    live, candidate = shadow_comparing.pair_steps(row, copy)
    asked = step_of(live).input if live else []
    context = {
        "ramp": row,
        "copy": copy,
        "form": form,
        "asked": asked[-ASKED:],
        "more": max(0, len(asked) - ASKED),
        "answers": [
            ("base", row.candidate.baseline, _answer(live, copy.pair.get("live"))),
            ("cand", row.candidate.version, _answer(candidate, copy.pair.get("candidate"))),
        ],
        "verdicts": list(copy.verdicts.select_related("by")),
    }
    return render(request, "promotions/shadow_pair.html", context, status=status)


def _answer(step: Step | None, found: dict[str, Any] | None) -> dict[str, Any]:
    """One answer as the page shows it; without a step it is not stored any more."""
    if step is None:
        return {"found": found}
    read = step_of(step)
    message = next(iter(read.output), None)
    made = tooling.calls_of(message) if message else ()
    return {
        "found": found,
        "trace_id": step.trajectory.trace_id,
        "error": read.error,
        "text": "" if made and not (message and message.tool_calls) else message.content if message else "",
        "calls": [(call.name, _shown(call.arguments)) for call in made],
    }


def _shown(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, indent=2, ensure_ascii=False)


def _copy(row: Ramp, pk: int) -> ShadowCopy:
    return get_object_or_404(ShadowCopy, split=row.split_id, pk=pk, state=ShadowCopy.State.COMPARED)


def _ramp(request: PageRequest, pk: int) -> Ramp:
    row = get_object_or_404(ramps_of(request.project), pk=pk)
    if not row.rules.shadow:
        raise Http404
    return row
