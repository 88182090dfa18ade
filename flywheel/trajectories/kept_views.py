"""What is kept: the project's retention, the deletion of one trajectory, and a step's values as files."""

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.templatetags.flywheel import count as counted
from flywheel.trajectories import retention
from flywheel.trajectories.delete import delete, held_by
from flywheel.trajectories.load import complete
from flywheel.trajectories.models import Blob, Retention, Step, Trajectory


def _days(label: str, help: str = "", least: int = 1, required: bool = False) -> forms.IntegerField:
    wanted = {} if required else {"placeholder": "for ever"}
    return forms.IntegerField(
        label=label,
        help_text=help,
        min_value=least,
        max_value=3650,
        required=required,
        widget=forms.NumberInput(attrs=wanted),
    )


class RetentionForm(forms.Form):
    """Days; an empty field is for ever."""

    production_days = _days("From production")
    import_days = _days("Imported")
    rollout_days = _days("Rollouts")
    takes_used = forms.BooleanField(required=False, label="Also what is in use")
    bodies_days = _days("Raw requests", "What was sent, for replay. 0 keeps none of it.", least=0, required=True)
    quarantine_days = _days("Quarantine", "What was rejected.", required=True)
    ledger_days = _days("Ledger", "What each request came to: counts and reasons.")

    TRAJECTORIES = ("production_days", "import_days", "rollout_days")
    OTHERS = ("bodies_days", "quarantine_days", "ledger_days")


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def retention_page(request: PageRequest) -> HttpResponse:
    """How long the project keeps what, and what that would delete now."""
    row = retention.of(request.project)
    form = RetentionForm(request.POST if request.method == "POST" else None, initial=_initial(row))
    if request.method == "POST" and form.is_valid():
        retention.set_retention(project=request.project, actor=request.actor, **form.cleaned_data)
        messages.success(request, "Saved. What is older is deleted within minutes, a part at a time.")
        return redirect("settings:retention", request.project.slug)
    context = {
        "form": form,
        "retention": row,
        "trajectory_fields": [form[name] for name in form.TRAJECTORIES],
        "other_fields": [form[name] for name in form.OTHERS],
        **_preview(row),
    }
    return render(request, "trajectories/retention.html", context, status=422 if form.errors else 200)


@require_GET
@requires(Permission.ADMIN)
def retention_preview(request: PageRequest) -> HttpResponse:
    """Fragment: what the fields as they stand would delete now."""
    form = RetentionForm(request.GET)
    row = retention.of(request.project)
    if form.is_valid():
        row = Retention(project=request.project, **form.cleaned_data)
        return render(request, "trajectories/_doomed.html", _preview(row))
    return render(request, "trajectories/_doomed.html", {"problem": "A number of days is missing or cannot be."})


def _preview(row: Retention) -> dict[str, Any]:
    doomed = retention.doomed(row)
    by_source = [(source.label, doomed.trajectories.get(source)) for source in retention.BY_SOURCE]
    return {"doomed": doomed, "by_source": by_source, "limit": retention.COUNTED_UP_TO, "takes_used": row.takes_used}


def _initial(row: Retention) -> dict[str, Any]:
    return {name: getattr(row, name) for name in (*retention.DAYS, "takes_used")}


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def delete_page(request: PageRequest, trace_id: str) -> HttpResponse:
    """What holds its content, what of that goes and what stays; and the button."""
    row = _find(request, trace_id)
    if request.method == "POST":
        steps = delete(trajectory=row, actor=request.actor, reason=request.POST.get("reason", "")[:1000].strip())
        messages.success(request, f"Trajectory {trace_id[:12]} was deleted with its {counted(steps)} steps.")
        return redirect("trajectories:index", request.project.slug)
    return render(request, "trajectories/delete.html", {"trajectory": row, "held": held_by(row)})


# A step's values as files


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
    return get_object_or_404(Trajectory.objects.select_related("agent"), project=request.project, trace_id=trace_id)
