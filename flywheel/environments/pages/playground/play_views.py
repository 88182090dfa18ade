"""The playground's page: one episode, a person's moves in it and a version's."""

import uuid
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core.envs.worlds.stand_ins import server_of
from flywheel.core.traces import tooling
from flywheel.edge import job_pages
from flywheel.edge.numbers import form_key, number
from flywheel.edge.polling import loaded_anew
from flywheel.environments.models import Environment, Play, Split, Task
from flywheel.environments.pages.playground.play_forms import AskForm, MoveForm
from flywheel.environments.pages.world_editor.world_forms import RightForm
from flywheel.environments.playground import episode_moves, played_targets
from flywheel.environments.playground.world_state import state
from flywheel.environments.tasks.own_tasks import is_draft


@require_POST
@requires(Permission.BUILD)
def start(request: PageRequest, name: str, number: int) -> HttpResponse:
    task = get_object_or_404(_tasks(request, name), number=number)
    return _to(request, episode_moves.start(task=task, actor=request.actor))


@require_POST
@requires(Permission.BUILD)
def start_any(request: PageRequest, name: str) -> HttpResponse:
    """An episode of a task that is trained on and that nobody has played yet, while there is one."""
    tasks = _tasks(request, name).filter(split=Split.TRAIN, retired_at=None).order_by("number")
    chosen = tasks.filter(plays=None).first() or tasks.first()
    if chosen is None:
        messages.warning(request, "There is no task to train on yet; a held-out one can be played from its own page.")
        return redirect("environments:environment", request.project.slug, name)
    return _to(request, episode_moves.start(task=chosen, actor=request.actor))


@require_GET
@requires(Permission.VIEW)
def play(request: PageRequest, play: int) -> HttpResponse:
    row = _find(request, play)
    tool = tooling.find(episode_moves.environment_of(row).tools, request.GET.get("tool", ""))
    return _page(request, row, MoveForm(tool=tool))


@require_GET
@requires(Permission.VIEW)
def live(request: PageRequest, play: int) -> HttpResponse:
    """Answer the page's poll, each second while a version makes its moves; at the end the page is loaded anew."""
    row = _find(request, play)
    if episode_moves.waiting(row) is None:
        return loaded_anew()
    return render(request, "environments/_talk.html", _talk(row))


@require_POST
@requires(Permission.BUILD)
def say(request: PageRequest, play: int) -> HttpResponse:
    row = _find(request, play)
    tool = tooling.find(episode_moves.environment_of(row).tools, request.POST.get("tool", ""))
    form = MoveForm(request.POST, tool=tool)
    if not form.is_valid():
        return _page(request, row, form, status=422)
    message = form.message(f"call-{len(row.moves)}")
    episode_moves.say(play=row, message=message, at=_at(request))
    return _to(request, row)


@require_POST
@requires(Permission.BUILD)
def ask(request: PageRequest, play: int) -> HttpResponse:
    row = _find(request, play)
    form = AskForm(request.POST, versions=_versions(request))
    if not form.is_valid():
        return _page(request, row, MoveForm(tool=None), asking=form, status=422)
    episode_moves.ask(
        play=row,
        version=form.cleaned_data["version"],
        actor=request.actor,
        at=_at(request),
        key=form_key(request.POST.get("key", "")),
        to_the_end="to_the_end" in request.POST,
        temperature=form.cleaned_data["temperature"],
    )
    return _to(request, row)


@require_POST
@requires(Permission.BUILD)
def take_back(request: PageRequest, play: int) -> HttpResponse:
    row = _find(request, play)
    episode_moves.take_back(play=row, at=_at(request))
    return _to(request, row)


@require_POST
@requires(Permission.BUILD)
def judge(request: PageRequest, play: int) -> HttpResponse:
    """Have an episode judged whose verdict was stopped, or failed."""
    row = _find(request, play)
    episode_moves.have_judged(play=row, actor=request.actor, at=_at(request))
    return _to(request, row)


@require_POST
@requires(Permission.BUILD)
def stop(request: PageRequest, play: int) -> HttpResponse:
    """Do not wait for the version any longer."""
    row = _find(request, play)
    if (turn := episode_moves.waiting(row)) is not None:
        with job_pages.refusal_told(request, "Not stopped"):
            turn.cancel(request.actor)
    return _to(request, row)


def _tasks(request: PageRequest, name: str) -> QuerySet[Task]:
    environment = get_object_or_404(Environment, project=request.project, name=name)
    return environment.tasks.select_related("environment")


def _page(
    request: PageRequest, row: Play, form: MoveForm, asking: AskForm | None = None, status: int = 200
) -> HttpResponse:
    env, slug, name = episode_moves.environment_of(row), request.project.slug, row.task.environment.name
    versions = _versions(request)
    hinted = episode_moves.hint(row) if "hint" in request.GET and not row.is_over else None
    context: dict[str, Any] = _talk(row) | {
        "form": form,
        "tools": env.tools,
        "state": state(row),
        "is_unanswered": episode_moves.unanswered(row),
        "loses_sessions": (server := server_of(env)) is not None and not server.resets,
        "right": _right_form(row),
        "too_many": played_targets.too_many(row),
        "is_draft": is_draft(row.task),
        "tool": form.tool,
        "asking": asking or AskForm(versions=versions),
        "versions": versions,
        "max_turns": env.max_turns,
        "token_limit": env.token_limit,
        "hinted": hinted.to_json() if hinted else None,
        "wants_hint": "hint" in request.GET,
        "key": uuid.uuid4(),
        "turn": row.turns.select_related("version__agent").first(),
        "lineage": [
            {"label": name, "url": reverse("environments:environment", args=[slug, name])},
            {"label": str(row.task), "url": reverse("environments:task", args=[slug, name, row.task.number])},
            {"label": str(row), "current": True},
        ],
    }
    return render(request, "environments/play.html", context, status=status)


def _right_form(row: Play) -> RightForm | None:
    """For saying that this is right, where its task is a draft and something was played."""
    return None if played_targets.why_not(row) else RightForm(play=row)


def _talk(row: Play) -> dict[str, Any]:
    """The conversation, each message of the policy with its move."""
    moves = iter(row.made)
    said = [
        {**message, "move": next(moves, None)} if message["role"] == "assistant" else message
        for message in row.messages
    ]
    return {"play": row, "task": row.task, "said": said, "waiting": episode_moves.waiting(row)}


def _versions(request: PageRequest) -> list[Version]:
    rows = Version.objects.filter(agent__project=request.project).select_related("agent").order_by("-pk")
    return episode_moves.usable(list(rows[:50]))


def _at(request: PageRequest) -> int:
    at = number(request.POST.get("at", ""))
    return -1 if at is None else at


def _to(request: PageRequest, row: Play) -> HttpResponse:
    return redirect("environments:play", request.project.slug, row.pk)


def _find(request: PageRequest, pk: int) -> Play:
    rows = Play.objects.select_related("task__environment", "environment_version__environment", "created_by")
    return get_object_or_404(rows, project=request.project, pk=pk)
