"""The page of sandboxes that the workers' machines offer for code that nobody vouches for."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.environments.models import SandboxReport


@require_GET
@requires(Permission.BUILD)
def sandbox(request: PageRequest) -> HttpResponse:
    return render(request, "environments/sandbox.html", {"machines": SandboxReport.objects.all()})
