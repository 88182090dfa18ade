"""What every page shows around its content: the rooms with their live counts, the projects, what this person may do."""

from types import SimpleNamespace
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent
from flywheel.environments.models import Task
from flywheel.evals.models import EvalRun
from flywheel.promotions.models import Candidate
from flywheel.training.models import TrainingRun
from flywheel.trajectories.models import Trajectory

ROOMS = [
    ("overview", "Overview", "o"),
    ("agents", "Agents", "a"),
    ("trajectories", "Trajectories", "t"),
    ("failures", "Failures", "f"),
    ("environments", "Environments", "e"),
    ("evals", "Evals", "v"),
    ("training", "Training", "r"),
    ("promotions", "Promotions", "p"),
    ("settings", "Settings", "s"),
]
COUNTED_UP_TO = 999
"""Counts in the rail never cost more than reading this many index entries."""


def context(request: HttpRequest) -> dict[str, Any]:
    """Template context. Empty where no project is chosen; fragments that htmx asks for get no counts."""
    project = getattr(request, "project", None)
    if project is None:
        return {}
    permissions = request.permissions  # type: ignore[attr-defined]
    found: dict[str, Any] = {
        "project": project,
        "can": SimpleNamespace(**{p.value: p in permissions for p in Permission}),
    }
    if getattr(request, "htmx", None):
        return found
    namespace = request.resolver_match.namespace if request.resolver_match else ""
    counts = _counts(project)
    found["projects"] = request.user.projects()  # type: ignore[union-attr]
    found["rooms"] = [
        {
            "key": key,
            "label": label,
            "url": reverse(f"{key}:index", args=[project.slug]),
            "shortcut": shortcut,
            "count": counts.get(key),
            "current": key == namespace,
        }
        for key, label, shortcut in ROOMS
        if key != "settings" or Permission.ADMIN in permissions
    ]
    return found


def _counts(project: Any) -> dict[str, int]:
    """What waits or is there, per room, each capped so that it stays cheap at any size."""

    def capped(rows: Any) -> int:
        return int(rows[: COUNTED_UP_TO + 1].count())

    return {
        "agents": Agent.objects.filter(project=project).count(),
        "trajectories": capped(Trajectory.objects.filter(project=project).exclude(source="rollout")),
        "failures": capped(
            Trajectory.objects.filter(project=project, label="", proposed_bucket__gt="").exclude(source="rollout")
        ),
        "environments": capped(Task.objects.filter(project=project, retired_at=None)),
        "evals": capped(EvalRun.objects.filter(project=project)),
        "training": capped(TrainingRun.objects.filter(project=project)),
        "promotions": capped(Candidate.objects.filter(project=project, state=Candidate.State.WAITING)),
    }
