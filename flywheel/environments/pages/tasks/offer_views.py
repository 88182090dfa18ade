"""A failure's way to a task: a fragment on the review page and on the trajectory's own."""

from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.kinds import KINDS
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Task
from flywheel.environments.proofs.red_green_proof import failed_checks
from flywheel.environments.tasks import recorded_tasks
from flywheel.environments.tasks.bulk_tasks import taking_failures
from flywheel.failures.pages.desk import decision_form
from flywheel.failures.pages.desk.open_queue_views import refused
from flywheel.failures.queues import open_queue


@require_GET
@requires(Permission.VIEW)
def offer(request: PageRequest, trace_id: str) -> HttpResponse:
    """Tasks that came of a trajectory, and the button that makes one."""
    return render(request, "environments/_make.html", _offer(request, _trajectory(request, trace_id)))


@require_POST
@requires(Permission.BUILD)
def make_task(request: PageRequest, trace_id: str) -> HttpResponse:
    """Make a task of the trajectory's decision. Sent with the decision form, what that decides is saved first."""
    trajectory = _trajectory(request, trace_id)
    if "seen" in request.POST and not decision_form.is_settled(trajectory, request.POST.dict()):
        failure, written = decision_form.save(trajectory, request.actor, request.POST.dict())
        if failure is None:
            return refused(request, open_queue.Filters.read(request.project, request.GET.dict()), trajectory, written)
    failure = trajectory.failures.filter(current=True).select_related("trajectory").first()
    chosen = request.project.environments.filter(name=request.POST.get("environment", "")).first()
    made, is_new, problem = None, False, ""
    if failure is None:
        problem = "No decision on what went wrong yet: choose a category first"
    elif chosen is None:
        problem = "Choose an environment"
    else:
        try:
            made, is_new = recorded_tasks.task_from(failure=failure, environment=chosen, actor=request.actor)
        except Refused as error:
            problem = str(error)
    if request.htmx:
        context = _offer(request, trajectory) | {"made": made, "is_new": is_new, "problem": problem, "seen": failure}
        context["failed"] = failed_checks(made) if made else []
        return render(request, "environments/_make.html", context)
    if made is None:
        messages.error(request, f"No task was made. {problem}.")
        return redirect("failures:review", request.project.slug, trace_id)
    return redirect("environments:task", request.project.slug, made.environment.name, made.number)


def _offer(request: PageRequest, trajectory: Any) -> dict[str, Any]:
    environments = list(taking_failures(request.project).order_by("name"))
    environments.sort(key=lambda row: KINDS[row.kind].is_world)  # a world, which may lack the tools, is chosen last
    # Made of it, or asking the very same.
    tasks = Task.objects.filter(Q(source=trajectory) | Q(also__trajectory=trajectory), project=trajectory.project_id)
    own = next((row for row in environments if row.agent_id and row.agent_id == trajectory.agent_id), None)
    return {
        "trajectory": trajectory,
        "on_desk": "desk" in request.GET or "seen" in request.POST,
        "environments": environments,
        "chosen": own or (environments[0] if environments else None),
        "current": trajectory.failures.filter(current=True).first(),
        "tasks": tasks.select_related("environment").order_by("-pk").distinct(),
    }


def _trajectory(request: PageRequest, trace_id: str) -> Any:
    return get_object_or_404(request.project.trajectories.select_related("agent", "version__agent"), trace_id=trace_id)
