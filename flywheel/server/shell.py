"""The frame of every page around its content: the rooms with what waits there for this person, the projects, what this
person may do."""

import json
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString

from flywheel.accounts import demo_accounts
from flywheel.accounts.models import Permission, Project
from flywheel.accounts.project_settings import members
from flywheel.server.pages.demo_harm import has_switch
from flywheel.server.pages.demo_scenes import scene_of
from flywheel.server.pages.guides import help_for
from flywheel.system import demo_switch
from flywheel.system.sql import planned
from flywheel.trajectories.annotations.project_buckets import every
from flywheel.trajectories.models import Source

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
        "known_buckets": SimpleLazyObject(lambda: every(project)),
        "approval_offer": SimpleLazyObject(lambda: members.approval_offer(project, request.user)),  # type: ignore[arg-type]
        "can": SimpleNamespace(**{p.value: p in permissions for p in Permission}),
    }
    if getattr(request, "htmx", None):
        return found
    namespace = request.resolver_match.namespace if request.resolver_match else ""
    found["projects"], found["unread_notices"], counts = _around(project, request.user.pk)  # type: ignore[arg-type]
    found["help_url"] = help_for(request.resolver_match.view_name if request.resolver_match else "")
    if project.is_demo:
        found |= _demo(request, project)
    mine = tuple(count if may in permissions else 0 for count, (may, _) in zip(counts, _WAITING.values(), strict=True))
    found["rail"], found["rail_menu"] = _rail(project.slug, namespace, Permission.ADMIN in permissions, mine)
    return found


def _demo(request: HttpRequest, project: Project) -> dict[str, Any]:
    """The accounts that a visitor of the demo may go on as, the scene of its story, and the switch of its ramp."""
    offered = demo_accounts.others(request)
    is_dismissed = demo_accounts.is_dismissed(request)
    scene = scene_of(project) if offered and not is_dismissed else None
    harm = {"is_on": demo_switch.is_on()} if has_switch(project) else None
    return {"demo_accounts": offered, "demo_is_dismissed": is_dismissed, "scene": scene, "demo_harm": harm}


@lru_cache(maxsize=256)
def _rail(slug: str, namespace: str, is_admin: bool, counts: tuple[int, ...]) -> tuple[SafeString, SafeString]:
    """The rooms beside the page, and in its menu: written anew when a count changes, not for every page."""
    known = dict(zip(_WAITING, counts, strict=True))
    rooms = [
        {
            "key": key,
            "label": label,
            "url": reverse(f"{key}:index", args=[slug]),
            "shortcut": shortcut,
            "count": known.get(key, 0),
            "current": key == namespace,
        }
        for key, label, shortcut in ROOMS
        if key != "settings" or is_admin
    ]
    return render_to_string("_rail.html", {"rooms": rooms}), render_to_string("_rail_menu.html", {"rooms": rooms})


def _around(project: Project, user: int) -> tuple[list[dict[str, str]], int, tuple[int, ...]]:
    """The user's projects, their unread notices here, what waits in each room: one statement, since every page asks."""
    ((projects, notices, *counts),) = planned(_AROUND, [user, project.pk, user, *[project.pk] * len(_WAITING)])
    return json.loads(projects), notices, tuple(counts)


_WAITING = {
    "failures": (
        Permission.REVIEW,
        "trajectories_trajectory WHERE project_id = %s AND label = '' AND NOT proposed_bucket = ''"
        f" AND NOT source IN {Source.ATTEMPTS_SQL}",
    ),
    "environments": (
        Permission.BUILD,
        "environments_task WHERE project_id = %s AND retired_at IS NULL AND NOT is_proved",
    ),
    "evals": (Permission.REVIEW, "evals_rewardaudit WHERE project_id = %s AND finished_at IS NULL"),
    "promotions": (Permission.APPROVE, "promotions_candidate WHERE project_id = %s AND state = 'waiting'"),
}
"""Of a room, for whom something waits there, and what."""
_UNREAD = "accounts_inboxentry WHERE project_id = %s AND user_id = %s AND read_at IS NULL"
_CAPPED = f"(SELECT count(*) FROM (SELECT FROM {{}} LIMIT {COUNTED_UP_TO + 1}) AS found)"  # noqa: S608
_AROUND = f"""
SELECT (
    SELECT coalesce(json_agg(json_build_object('slug', slug, 'name', name) ORDER BY name, id), '[]')::text
    FROM accounts_project
    WHERE id IN (SELECT project_id FROM accounts_membership WHERE user_id = %s)
), {", ".join(map(_CAPPED.format, (_UNREAD, *(rows for _, rows in _WAITING.values()))))}
"""  # noqa: S608
