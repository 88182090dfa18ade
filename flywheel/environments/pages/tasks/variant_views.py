"""Synthetic variants from the page of a task."""

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.task_variants import MOST, READ, Spec
from flywheel.edge.numbers import form_key, number
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Task
from flywheel.environments.tasks import synthetic_variants


@require_POST
@requires(Permission.BUILD)
def vary(request: PageRequest, name: str, number: int) -> HttpResponse:
    """Swap what is ticked, with the values that somebody gave, in its own words and in others."""
    rows = Task.objects.select_related("environment__project", "generation__origin", "project")
    task = get_object_or_404(rows, project=request.project, environment__name=name, number=number)
    synthetic_variants.submit(
        task=task,
        actor=request.actor,
        count=_whole(request, "count"),
        seed=_whole(request, "seed"),
        spec=_spec(request, task),
        key=form_key(request.POST.get("key", "")),
    )
    return redirect("environments:task", request.project.slug, name, number)


def _whole(request: PageRequest, name: str) -> int:
    value = number(request.POST.get(name, "").strip())
    if value is None:
        raise Refused("expected a whole number", field=name)
    return value


def _spec(request: PageRequest, task: Task) -> Spec:
    swap, values = [], {}
    for place, entity in enumerate(synthetic_variants.offered(task)):
        if request.POST.get(f"swap-{place}"):
            swap.append(entity.text)
        if given := _lines(request.POST.get(f"values-{place}", "")):
            values[entity.text] = tuple(given)
    return Spec(tuple(swap), values, tuple(_lines(request.POST.get("wordings", ""))))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def context(request: PageRequest, task: Task) -> dict[str, Any]:
    """Return the task page's context: what can be swapped, for who may do so, what is being made, and what was made."""
    is_variant = task.generation is not None and task.generation.origin_id is not None
    may_vary = Permission.BUILD in request.permissions
    can_vary = may_vary and task.is_proved and task.retired_at is None and not is_variant
    found = synthetic_variants.offered(task) if can_vary else []
    return {
        "entities": list(enumerate(found)),
        "not_all": {"entities": MOST, "characters": READ} if len(found) == MOST or len(task.prompt) > READ else None,
        "varying": task.variations.select_related("created_by", "environment").order_by("-pk").first(),
        "variants": Task.objects.filter(generation__origin=task).order_by("-number")[:12],
        "variation_key": uuid.uuid4(),
    }
