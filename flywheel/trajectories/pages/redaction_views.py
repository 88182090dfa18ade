"""A dry run of the redaction policy over the newest of what is stored."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.trajectories.operations.redaction_scan import scan

NEWEST = 100
"""Trajectories, and as many of each thing beside them."""
WITHIN_S = 5.0


@require_GET
@requires(Permission.ADMIN)
def dry_run(request: PageRequest) -> HttpResponse:
    """Show what the policy would take out of what is stored, by kind and place."""
    redactor = redactor_of(request.project)
    report = scan(request.project, redactor, NEWEST, WITHIN_S)
    context = {
        "report": report,
        "counts": report.counts.most_common(),
        "places": report.by_count(),
        "newest": NEWEST,
        "version": redactor.version,
        "command": f".venv/bin/python manage.py redact --project {request.project.slug}"
        f" --apply --user {request.actor.user.username}",
    }
    return render(request, "trajectories/_redaction.html", context)
