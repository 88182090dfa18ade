"""Agreement of an environment's verifier with people: a fragment that its verifier's page loads."""

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.environments.models import Environment
from flywheel.environments.versions.environment_versions import latest
from flywheel.evals.verifier_agreement import agreements, note_looks


@require_GET
@requires(Permission.VIEW)
def people(request: PageRequest, name: str) -> HttpResponse:
    """Agreement, kappa and the disagreements under the newest version."""
    row = get_object_or_404(Environment, project=request.project, name=name)
    version = latest(row)
    found = agreements(version)
    note_looks(found, request.actor)
    return render(request, "evals/_people.html", {"environment": row, "version": version, "found": found})
