"""The page on which a team finds out whether its agent's traces arrive: a snippet, a key, and a look at what comes."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.accounts.project_settings import api_keys
from flywheel.edge.numbers import number
from flywheel.system import env
from flywheel.trajectories.ingest.onboarding import snippets
from flywheel.trajectories.ingest.onboarding.diagnosis import diagnose
from flywheel.trajectories.ingest.onboarding.snippets import FIRST, SNIPPETS

SHOW_ONCE = "trajectories.connect_key"
"""Where the session keeps the key between the click that made it and the page that shows it."""
LOOKS_FOR = timedelta(minutes=15)
"""So long a page that is open looks by itself."""
LOOKS_BACK = timedelta(hours=1)


@never_cache
@require_GET
@requires(Permission.VIEW)
def page(request: PageRequest) -> HttpResponse:
    """Choose a framework, make a key, copy, and see what arrives. A key that was just made is shown this once."""
    made: dict[str, Any] = request.session.get(SHOW_ONCE, {})
    if made.get("project") == request.project.slug:
        del request.session[SHOW_ONCE]
    else:
        made = {}
    origin = request.build_absolute_uri("/").rstrip("/")
    port = env.grpc_port()
    context = {
        "chosen": _chosen(request.GET.get("with", "")),
        "chips": snippets.CHIPS,
        "snippets": list(
            snippets.filled(origin, made.get("text", ""), tuple(made.get("scopes", ())), request.project.slug)
        ),
        "made": made,
        "form": uuid.uuid4(),
        "traces_url": request.build_absolute_uri(reverse("ingest:traces")),
        "grpc": f"{request.get_host().rpartition(':')[0] or request.get_host()}:{port}" if port else "",
        **_live(request),
    }
    return render(request, "trajectories/connect.html", context)


@require_GET
@requires(Permission.VIEW)
def live(request: PageRequest) -> HttpResponse:
    """Fragment: what has come or was refused since the page was opened. It stops asking when all is seen."""
    return render(request, "trajectories/_connect_live.html", _live(request))


@require_POST
@requires(Permission.ADMIN)
def make_key(request: PageRequest) -> HttpResponse:
    """A key for the chosen framework, and back to the page, which shows it once."""
    chosen = _chosen(request.POST.get("with", ""))
    back = f"{reverse('trajectories:connect', args=[request.project.slug])}?with={chosen}"
    snippet = SNIPPETS[chosen]
    try:
        form = uuid.UUID(request.POST.get("form", ""))
        made = api_keys.make(
            project=request.project,
            actor=request.actor,
            name=f"my agent ({snippet.label})",
            scopes=[snippet.scope],
            form=form,
        )
    except (ValueError, api_keys.SentTwice):
        return redirect(back)
    request.session[SHOW_ONCE] = {
        "project": request.project.slug,
        "name": made.key.name,
        "text": made.text,
        "scopes": made.key.scopes,
    }
    return redirect(back)


def _live(request: PageRequest) -> dict[str, Any]:
    """Return the fragment's context; `since` and `until` (when to stop asking) go round in its own address."""
    now = timezone.now()
    since = max(_moment(request.GET.get("since", "")) or now, now - LOOKS_BACK - LOOKS_FOR)
    until = _moment(request.GET.get("until", "")) or now + LOOKS_FOR
    found = diagnose(request.project, since=since, user=request.actor.user, now=now)
    return {
        "findings": found.findings,
        "is_done": found.is_done,
        "waiting": found.waiting,
        "is_tired": now > until,
        "since": _milliseconds(since),
        "until": _milliseconds(until),
        "earlier": _milliseconds(now - LOOKS_BACK),
    }


def _chosen(name: str) -> str:
    return name if name in SNIPPETS else FIRST


def _moment(text: str) -> datetime | None:
    """Parse milliseconds since 1970; None for anything else."""
    milliseconds = number(text, most=10**14)
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
