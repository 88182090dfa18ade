"""Worlds of a team's own Python in the browser: editing one, trying it, writing its tasks, saying what is right."""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.worlds import own_world, server_world
from flywheel.core.errors import FieldError
from flywheel.edge.jobs import StaleState
from flywheel.environments.models import Environment, Play, WorldTrial
from flywheel.environments.pages.world_editor.server_forms import ServerForm, StandInForm, written
from flywheel.environments.pages.world_editor.world_forms import (
    CallForm,
    ConfigForm,
    DraftForm,
    FunctionsForm,
    RightForm,
    TaskForm,
    lines_of,
)
from flywheel.environments.playground import episode_moves, played_targets
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions import world_trials
from flywheel.environments.versions.environment_versions import environment_version, latest

FORMS: dict[str, type[ConfigForm | ServerForm | FunctionsForm]] = {
    own_world.KIND: ConfigForm,
    server_world.KIND: ServerForm,
    episode_replay.KIND: FunctionsForm,
}


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def edit(request: PageRequest, world: str) -> HttpResponse:
    """The source and the settings of a world, or what stands in for a replay's tools: functions, or with `by=server`
    a tool server. Saving makes the next version."""
    row = get_object_or_404(Environment, project=request.project, name=world, kind__in=FORMS)
    version = latest(row)
    is_replay = row.kind == episode_replay.KIND
    is_server = is_replay and request.GET.get("by", version.config.get("unknown")) == "server"
    form = (StandInForm if is_server else FORMS[row.kind])(request.POST or None, version=version)
    if request.method == "POST" and form.is_valid():
        config = _replay_config(version.config, form) if is_replay else form.config
        try:
            made = environment_version(environment=row, actor=request.actor, config=config, verifier=version.verifier)
        except FieldError as error:
            form.refuse(error)
        else:
            if made == version:
                messages.info(request, f"No changes: {made} already has this content.")
            else:
                messages.success(request, proof_jobs.proof_notice(row, made))
            return redirect("environments:environment", request.project.slug, row.name)
    context = {
        "environment": row,
        "version": version,
        "form": form,
        "tools": form.tool_lines,
        "is_replay": is_replay,
        "is_server": is_server,
        "becomes_played": is_replay and version.config.get("judged") != "end",
    }
    return render(request, "environments/world.html", context, status=422 if form.errors else 200)


def _replay_config(before: Mapping[str, Any], form: DraftForm) -> dict[str, Any]:
    """The settings of a replay in which what stands in the form takes the place of whatever stood in for its tools."""
    kept = {name: value for name, value in before.items() if name not in ("source", "simulator", "server")}
    if isinstance(form, StandInForm):
        return kept | {"judged": "end", "unknown": "server", "server": form.config}
    return kept | {"judged": "end", "unknown": "python", **form.config}


@require_POST
@requires(Permission.BUILD)
def try_world(request: PageRequest) -> HttpResponse:
    """Show the tools that a draft defines, and let a worker begin it and make a call; of a server, read them."""
    form = _draft_form(request)
    calling = CallForm(request.POST)
    trial: WorldTrial | None = None
    if form.is_valid() and calling.is_valid():
        try:
            trial = world_trials.submit(
                project=request.project,
                config=form.config,
                actor=request.actor,
                key=uuid.uuid4(),
                seed=calling.cleaned_data["seed"],
                tool=calling.cleaned_data["tool"],
                arguments=calling.cleaned_data["arguments"],
            )
        except FieldError as error:
            form.refuse(error)
    problems = [text for each in (form, calling) for texts in each.errors.values() for text in texts]
    context = {"trial": trial, "problems": problems, "tools": form.tool_lines}
    return render(request, "environments/_world_trial.html", context, status=200 if trial else 422)


def _draft_form(request: PageRequest) -> DraftForm:
    """The form that was sent, told by its fields."""
    is_whole = "max_turns" in request.POST
    if "base_url" in request.POST:
        return (ServerForm if is_whole else StandInForm)(request.POST)
    return (ConfigForm if is_whole else FunctionsForm)(request.POST)


@require_GET
@requires(Permission.BUILD)
def trial(request: PageRequest, world_trial: int) -> HttpResponse:
    """Answer the editor's poll, every second while a worker tries the world. With `take` the server's definitions take
    the place of those in the form, of the tools that stand there."""
    return _shown(request, _trial(request, world_trial), is_taken="take" in request.GET)


@require_POST
@requires(Permission.BUILD)
def stop_trial(request: PageRequest, world_trial: int) -> HttpResponse:
    """Do not wait for the worker any longer."""
    found = _trial(request, world_trial)
    with suppress(StaleState):  # it was quicker
        found.cancel(request.actor)
    return _shown(request, _trial(request, world_trial))


def _shown(request: PageRequest, found: WorldTrial, *, is_taken: bool = False) -> HttpResponse:
    """Show a trial. What was left out or marked in the form stays so: its definitions are replaced on request alone, or
    if there are none."""
    now = world_trials.tools_of(found)
    context: dict[str, Any] = {"trial": found, "tools": lines_of(now)}
    if found.report.get("tools"):
        chosen = server_world.tools_of(found.config.get("tools", []))
        tools = server_world.renewed(chosen, now) if is_taken else chosen or now
        names = {tool["name"] for tool in tools}
        context = {
            "trial": found,
            "tools": lines_of(tools),
            "read": written(tools) if is_taken or not chosen else "",
            "changed": server_world.changed_tool(tools, now),
            "left_out": [tool["name"] for tool in now if tool["name"] not in names],
        }
    return render(request, "environments/_world_trial.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def write_task(request: PageRequest, world: str) -> HttpResponse:
    """A new task of a world; without what is wanted it is opened in the playground."""
    row = _world(request, world)
    form = TaskForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            made = own_tasks.write(
                environment=row,
                actor=request.actor,
                prompt=data["prompt"],
                state=form.beginning,
                target=data["target"],
                group=data["group"],
                slice_=data["slice"],
            )
        except FieldError as error:
            form.add_error(error.field if error.field in form.fields else None, error.problem)
        else:
            if not own_tasks.is_draft(made):
                messages.success(request, f"{made} is written. A worker proves it.")
                return redirect("environments:task", request.project.slug, row.name, made.number)
            play = episode_moves.start(task=made, actor=request.actor)
            messages.success(request, f"{made} is ready. Play it correctly, then choose Mark as correct.")
            return redirect("environments:play", request.project.slug, play.pk)
    context = {"environment": row, "form": form}
    return render(request, "environments/own_task.html", context, status=422 if form.errors else 200)


@require_POST
@requires(Permission.BUILD)
def say_right(request: PageRequest, play: int) -> HttpResponse:
    """Make what was played what is wanted of its task."""
    rows = Play.objects.select_related("task__environment", "environment_version__environment")
    row = get_object_or_404(rows, project=request.project, pk=play)
    form = RightForm(request.POST, play=row)
    if not form.is_valid():
        messages.warning(request, "Nothing was saved: your selection is no longer a change of this play.")
        return redirect("environments:play", request.project.slug, row.pk)
    made = played_targets.make(row, played_targets.target_of(row, **form.cleaned_data), request.actor)
    messages.success(request, f"{made} has its target. A worker proves it.")
    return redirect("environments:task", request.project.slug, made.environment.name, made.number)


def _world(request: PageRequest, name: str) -> Environment:
    worlds = [kind for kind in FORMS if KINDS[kind].is_world]
    return get_object_or_404(Environment, project=request.project, name=name, kind__in=worlds)


def _trial(request: PageRequest, pk: int) -> WorldTrial:
    return get_object_or_404(WorldTrial, project=request.project, pk=pk)
