"""The deletion of one trajectory: what it would take, and the button."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.templatetags.numbers import count
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.operations.deletion import delete, held_by


@require_http_methods(["GET", "POST"])
@requires(Permission.ADMIN)
def delete_page(request: PageRequest, trace_id: str) -> HttpResponse:
    """Show where the trajectory's content is, what of that goes and what stays; and the button."""
    rows = Trajectory.objects.select_related("agent")
    row = get_object_or_404(rows, project=request.project, trace_id=trace_id)
    if request.method == "POST":
        steps = delete(trajectory=row, actor=request.actor, reason=request.POST.get("reason", "")[:1000].strip())
        messages.success(request, f"Trajectory {trace_id[:12]} was deleted with its {count(steps)} steps.")
        return redirect("trajectories:index", request.project.slug)
    return render(request, "trajectories/delete.html", {"trajectory": row, "held": held_by(row)})
