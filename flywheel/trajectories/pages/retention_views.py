"""The settings page for how long a project keeps what arrives, and what it would delete now."""

from typing import Any

from django import forms
from django.contrib import messages
from django.forms import model_to_dict
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.trajectories.models import Retention
from flywheel.trajectories.operations import retention


def _days(label: str, help: str = "", least: int = 1, required: bool = False) -> forms.IntegerField:
    wanted = {} if required else {"placeholder": "forever"}
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
    takes_used = forms.BooleanField(required=False, label="Include trajectories used by tasks or evals")
    bodies_days = _days("Raw requests", "Original requests, for replay. 0 keeps none.", least=0, required=True)
    quarantine_days = _days("Quarantine", "Rejected data.", required=True)
    ledger_days = _days("Ledger", "Counts and reasons for each request.")

    TRAJECTORIES = ("production_days", "import_days", "rollout_days")
    OTHERS = ("bodies_days", "quarantine_days", "ledger_days")


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def retention_page(request: PageRequest) -> HttpResponse:
    """Show and save the project's retention, and show what it would delete now."""
    row = retention.of(request.project)
    form = RetentionForm(request.POST if request.method == "POST" else None, initial=model_to_dict(row))
    if request.method == "POST" and form.is_valid():
        retention.set_retention(project=request.project, actor=request.actor, **form.cleaned_data)
        messages.success(request, "Saved. Older data is deleted within minutes, in parts.")
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
    return render(request, "trajectories/_doomed.html", {"problem": "Enter a number of days for each field."})


def _preview(row: Retention) -> dict[str, Any]:
    doomed = retention.doomed(row)
    by_source = [(source.label, doomed.trajectories.get(source)) for source in retention.BY_SOURCE]
    return {"doomed": doomed, "by_source": by_source, "limit": retention.COUNTED_UP_TO, "takes_used": row.takes_used}
