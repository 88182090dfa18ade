"""Generating tasks from the environment's page, and how far it is."""

from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.kinds import KINDS
from flywheel.edge import job_pages
from flywheel.edge.numbers import form_key
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Generation
from flywheel.environments.pages.environments.environment_forms import GenerateForm
from flywheel.environments.pages.environments.environment_views import environment_page
from flywheel.environments.tasks import seeded_tasks


@require_POST
@requires(Permission.BUILD)
def start(request: PageRequest, name: str) -> HttpResponse:
    row = get_object_or_404(Environment.objects.select_related("agent"), project=request.project, name=name)
    kind = KINDS[row.kind]
    if kind.generate is None:
        raise Http404
    form = GenerateForm(request.POST, kind=kind)
    if form.is_valid():
        asked = form.cleaned_data
        try:
            seeded_tasks.submit(
                environment=row,
                actor=request.actor,
                count=asked["count"],
                seed=asked["seed"],
                options=form.options,
                key=form_key(request.POST.get("key", "")),
            )
        except Refused as error:
            form.add_error(None, str(error))
        else:
            return redirect("environments:environment", request.project.slug, row.name)
    return environment_page(request, row, generate=form, status=422)


def _find(request: PageRequest, pk: int) -> Generation:
    rows = Generation.objects.select_related("environment", "created_by")
    return get_object_or_404(rows, project=request.project, pk=pk)


def _page(job: Generation) -> list[str]:
    return [job.environment.name]


live = job_pages.live(
    _find,
    "environments/_generation.html",
    requires(Permission.VIEW),
    lambda _, job: {"generation": job, "environment": job.environment},
)
cancel = job_pages.cancel(_find, "environments:environment", requires(Permission.BUILD), of=_page)
resume = job_pages.resume(_find, "environments:environment", requires(Permission.BUILD), of=_page)
