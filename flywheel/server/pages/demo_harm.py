"""The demo's switch on the page of its running ramp: a visitor harms the candidate, and sees it taken back."""

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission, Project
from flywheel.promotions.models import Ramp
from flywheel.system import demo_switch


@require_POST
@requires(Permission.APPROVE)
def switch(request: PageRequest) -> HttpResponse:
    """Let the candidate's server answer badly, or well again. No other project has it."""
    if not has_switch(request.project):
        raise Http404
    demo_switch.turn(on=request.POST.get("harm") == "on")
    if demo_switch.is_on():
        messages.warning(request, "The candidate's server answers badly now. The judge takes it back by itself.")
    else:
        messages.success(request, "The candidate's server answers as usual again.")
    ramp = Ramp.objects.filter(agent__project=request.project).order_by("-pk").first()
    slug = request.project.slug
    return redirect("promotions:ramp", slug, ramp.pk) if ramp else redirect("promotions:ramps", slug)


def has_switch(project: Project) -> bool:
    return project.is_demo and project.slug == demo_switch.PROJECT
