"""An agent's turns, what each is made of, and the draft with which the next one begins."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent
from flywheel.edge import htmx
from flywheel.edge.paging import Page, page_at
from flywheel.environments.models import Task
from flywheel.environments.tasks.taskless_failures import look_at
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.failures.models import Failure, Recurrence
from flywheel.promotions.lineage.passport_kinds import passport
from flywheel.promotions.models import Watch
from flywheel.promotions.turns import drafts
from flywheel.promotions.turns.stations import STATIONS, came_back, station_of
from flywheel.promotions.turns.turn_bounds import Turn, ended_by, present, promotions_of, rolled_back, turn_numbered


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest, agent: str) -> HttpResponse:
    """The open turn, and those before."""
    row = _agent(request, agent)
    page = page_at(request, promotions_of(row), limit=20)
    turns = ended_by(row, page.items)
    context = {
        "agent": row,
        "turn": present(row),
        "page": page,
        "turns": turns,
        "rolled_back": rolled_back(row, turns),
        "stations": STATIONS.values(),
    }
    return render(request, "promotions/turns.html", context)


@require_GET
@requires(Permission.VIEW)
def turn(request: PageRequest, agent: str, turn: int) -> HttpResponse:
    """One turn: its stations, counted after the page is there, or the list that the address names."""
    row = turn_numbered(_agent(request, agent), turn)
    key = request.GET.get("station", "")
    context: dict[str, Any] = {"agent": row.agent, "turn": row, "key": key, "stations": STATIONS.values()}
    if htmx.wants_fragment(request):
        context["counts"] = [(station, station.counted(row)) for station in STATIONS.values()]
    elif key:
        station = station_of(key)
        page = page_at(request, station.rows(row), keys=station.kind.keys)
        context |= {"station": station, "page": page}
        context["rows"] = [passport(station.kind, each, request.project) for each in page.items]
    else:
        context["watch"] = Watch.objects.filter(promotion=row.ended_by).first() if row.ended_by else None
        context["is_rolled_back"] = bool(rolled_back(row.agent, [row]))
    return htmx.answer(request, "promotions/turn.html", "promotions/_stations.html", context)


@require_GET
@requires(Permission.VIEW)
def draft(request: PageRequest, agent: str) -> HttpResponse:
    """The draft of the next task set, whose failures are classified page by page."""
    row = _agent(request, agent)
    known = drafts.environments_of(row)
    asked = request.GET.get("environment", "")
    chosen = next((each for each in known if each.name == asked), known[0] if known else None)
    found, turn = None, present(row)
    context: dict[str, Any] = {"agent": row, "environments": known, "environment": chosen}
    context |= {"back": _back(request, turn), "since": drafts.last_set(turn)}
    if chosen is not None:
        found = drafts.draft_of(turn, chosen)
        show = request.GET.get("show", "")
        rows = found.shown(show).select_related("trajectory__result__task", "labelled_by")
        page = page_at(request, rows, keys=("is_back", "id"), is_counted=True)
        context |= {"draft": found, "page": page, "show": show if show in drafts.SHOWN else "", "shown": drafts.SHOWN}
        context |= {"rows": _rows(request, found, page), "name": drafts.name_of_set(chosen)}
    return render(request, "promotions/draft.html", context)


@require_POST
@requires(Permission.BUILD)
def start(request: PageRequest, agent: str) -> HttpResponse:
    """Make the tasks of the next turn, or go on making them."""
    row = _agent(request, agent)
    environment = drafts.environment_of(row, request.POST.get("environment", ""))
    made = drafts.start(agent=row, environment=environment, actor=request.actor)
    (messages.warning if made.refused or made.unproved else messages.success)(request, str(made))
    address = reverse("promotions:draft", args=[request.project.slug, row.name])
    return redirect(f"{address}?{urlencode({'environment': environment.name})}")


@require_POST
@requires(Permission.BUILD)
def freeze(request: PageRequest, agent: str) -> HttpResponse:
    row = _agent(request, agent)
    environment = drafts.environment_of(row, request.POST.get("environment", ""))
    name = request.POST.get("name", "").strip()
    made = drafts.freeze(agent=row, environment=environment, name=name, actor=request.actor)
    return redirect("environments:task_set", request.project.slug, made.name, made.version)


def _rows(
    request: PageRequest, found: drafts.Draft, page: Page[Failure]
) -> list[tuple[Failure, str, Task | None, str]]:
    """Each failure with its bucket's name, its task, and why that is left out or there is none."""
    known = every(request.project)
    without = look_at([each for each in page.items if each.pk not in found.of], found.environment.kind)
    reasons = {each.failure.pk: each.reason or "no task yet: start the turn" for each in without}
    frozen = set(found.frozen)
    rows = []
    for each in page.items:
        task = found.of.get(each.pk)
        reason = reasons.get(each.pk, "") if task is None else found.left.get(task, "")
        reason = reason or ("in a task set already" if task in frozen else "")
        rows.append((each, known[each.bucket].label if each.bucket in known else each.bucket, task, reason))
    return rows


def _back(request: PageRequest, turn: Turn) -> list[tuple[Recurrence, str]]:
    known = every(request.project)
    rows = came_back(turn).select_related("version__agent")
    return [(row, known[row.bucket].label if row.bucket in known else row.bucket) for row in rows]


def _agent(request: PageRequest, name: str) -> Agent:
    rows = Agent.objects.filter(project=request.project).select_related("live__agent", "project")
    return get_object_or_404(rows, name=name)
