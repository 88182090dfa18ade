"""A new version from what production sends: a form that is filled in, for a person to look at and confirm."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent
from flywheel.agents.pages.forms import VersionForm
from flywheel.edge.refusals import refusal_shown
from flywheel.trajectories.operations import traffic_versions


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def new_version(request: PageRequest, name: str) -> HttpResponse:
    """Show the proposal of the newest runs, or of those that report `?label=`; a POST makes the version of the form."""
    agent = get_object_or_404(Agent.objects.select_related("live", "project"), project=request.project, name=name)
    # What is linked is what was looked at, whatever newer runs report by now.
    found = traffic_versions.proposal(agent, request.POST.get("label", request.GET.get("label")))
    content = found.content
    form = VersionForm(agent, None, initial={**content["sampling"], **content["endpoint"], **content})
    if request.method == "POST":
        form = VersionForm(agent, None, request.POST, request.FILES)
        if form.is_valid():
            with refusal_shown(form):
                made, is_new, linked = traffic_versions.make(
                    agent=agent,
                    actor=request.actor,
                    label=found.reported.label,
                    is_linked="link" in request.POST,
                    content=form.content(),
                    note=form.cleaned_data["note"],
                )
                what = f"Version {made.number} {'created' if is_new else 'has exactly this content'}."
                runs = f" {linked:,} run{'s' if linked != 1 else ''} linked to it." if linked else ""
                messages.success(request, what + runs)
                return redirect("agents:version", request.project.slug, agent.name, made.number)
    context = {"agent": agent, "form": form, "found": found, "is_linked": "link" in request.POST or not form.is_bound}
    return render(request, "agents/new_version.html", context, status=422 if form.is_bound else 200)
