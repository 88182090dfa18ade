"""The environments room: its environments, and one of them with its versions, its tasks and what is frozen of them."""

import io
import json
import re
import uuid
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import Forbidden, PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core import envs, verifiers
from flywheel.core.detectors.standard_buckets import Bucket
from flywheel.core.envs.kinds import KINDS, Kind
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.worlds import own_world, server_world
from flywheel.core.envs.worlds.tool_stubs import server_stubs, stubs
from flywheel.core.errors import FieldError
from flywheel.edge.jobs import FINISHED
from flywheel.edge.numbers import key
from flywheel.edge.paging import page_at
from flywheel.environments import ledger, task_statistics
from flywheel.environments.exchange import task_files
from flywheel.environments.models import MEASURED, Environment, Split, TaskSet
from flywheel.environments.pages.environments.environment_forms import (
    AttachForm,
    EnvironmentForm,
    GeneratedForm,
    GenerateForm,
    NewServerForm,
    ReplayForm,
    SettingsForm,
    VersionForm,
    WorldForm,
)
from flywheel.environments.pages.world_editor.world_forms import DraftForm, WorldSettingsForm, lines_of
from flywheel.environments.proofs import labelled_attempts, proof_jobs
from flywheel.environments.task_sets import frozen_sets, task_selection
from flywheel.environments.tasks.bulk_tasks import count_without_task, tasks_from_all, without_task
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.trajectories.annotations.project_buckets import every
from flywheel.trajectories.models import Source

SETS_AT_ONCE = 20
STARTERS_SHOWN = 5


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    own = request.project.environments.select_related("agent").order_by("name")
    rows = list(count_without_task(task_statistics.counts(own)))
    rates = task_statistics.rates_of(rows)
    found = [
        {
            "environment": row,
            "kind": KINDS[row.kind].label,
            "rates": [solved for solved in rates[row.pk] if solved.split == Split.HELD_OUT][:2],
        }
        for row in rows
    ]
    sets, of = request.project.task_sets.all(), request.GET.get("environment", "")
    if of:
        sets = sets.filter(environment_version__environment__name=of)
    counted = task_statistics.sizes(sets.select_related("environment_version__environment"))
    page = page_at(request, counted, limit=SETS_AT_ONCE)
    page.total = sets.count()
    funnel = task_statistics.funnel(request.project) if found else []
    return render(request, "environments/index.html", {"found": found, "page": page, "of": of, "funnel": funnel})


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def create(request: PageRequest) -> HttpResponse:
    """A new environment of the kind in the address."""
    name = request.GET.get("kind", next(iter(KINDS)))
    kind = KINDS.get(name)
    if kind is None:
        raise Http404
    _refuse_attaching(request, kind)
    form = _new_form(request, name, kind)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        version = data.get("version") or (_version_named(request) if isinstance(form, WorldForm) else None)
        content: dict[str, Any] = {"config": {}, "verifier": {"kind": name}}
        terms = Terms(kind=name, agent=version.agent if version else None)
        if isinstance(form, ReplayForm):
            tools = version.tools if version else environment_versions.recorded_tools(request.project)
            content["config"] = {"tools": tools, **form.config}
        elif version and kind.from_failures:
            content = {"config": {"tools": version.tools}, "verifier": data["verifier"]}
        if isinstance(form, AttachForm | WorldSettingsForm):
            content["config"] = form.config
        if not isinstance(form, AttachForm):
            splits = {field: data[field] for field in ("held_out_share", "sealed_share", "reserved_slices")}
            terms = replace(terms, **splits)
        try:
            made = environment_versions.environment(
                project=request.project,
                name=data["name"],
                actor=request.actor,
                terms=terms,
                description=data["description"],
                **content,
            )
        except FieldError as error:
            if isinstance(form, DraftForm):
                form.refuse(error)
            else:
                form.add_error(None, str(error))
        else:
            next_step = _next_step(form, kind, version)
            messages.success(request, f"Environment {made} is ready. {next_step}")
            return redirect("environments:environment", request.project.slug, made.name)
    may_attach = Permission.ADMIN in request.permissions
    kinds = [(each, found) for each, found in KINDS.items() if may_attach or not found.is_external]
    context: dict[str, Any] = {"form": form, "kind": kind, "chosen": name, "kinds": kinds}
    if isinstance(form, EnvironmentForm) and not form.has_versions:
        sent = request.project.trajectories.filter(source=Source.PRODUCTION, agent__isnull=False)
        context["traffic_of"] = sent.order_by("-started_at", "-id").values_list("agent__name", flat=True).first()
    if isinstance(form, DraftForm):
        context["tools"] = form.tool_lines
    if isinstance(form, WorldForm | ReplayForm | NewServerForm):
        context["versions"] = _versions_with_tools(request)[:STARTERS_SHOWN]
        context["has_recorded"] = bool(environment_versions.recorded_tools(request.project))
    return render(request, "environments/create.html", context, status=422 if request.method == "POST" else 200)


@require_GET
@requires(Permission.BUILD)
def server_starter(request: PageRequest) -> FileResponse:
    """The program of a tool server to begin with: a function for each tool that the address names, or none yet."""
    found = _tools_of(request)
    if found is None and "of" in request.GET:
        raise Http404
    content = io.BytesIO(server_stubs(*(found or ("an agent", []))).encode())
    return FileResponse(content, as_attachment=True, filename="server.py", content_type="text/x-python")


def _starter(request: PageRequest) -> dict[str, str]:
    """The source to begin with, if the address names tools: a function for each."""
    found = _tools_of(request)
    return {"source": stubs(*found)} if found else {}


def _tools_of(request: PageRequest) -> tuple[str, list[dict[str, Any]]] | None:
    """Whose tools the address names, and these: a version's, or those that recorded runs bring."""
    if request.GET.get("of") == "recorded":
        tools = environment_versions.recorded_tools(request.project)
        return ("recorded runs", tools) if tools else None
    chosen = _version_named(request)
    return (str(chosen), chosen.tools) if chosen else None


def _functions(request: PageRequest) -> dict[str, Any]:
    """A replay to begin with whose tools have a function each, still to be written."""
    source = _starter(request)
    return source and {**source, "unknown": "python", "judged": "end", "version": _version_named(request)}


def _version_named(request: PageRequest) -> Version | None:
    """The version in the address whose tools a world begins with; the failures of its agent can become tasks there."""
    return _versions_with_tools(request).filter(pk=key(request.GET.get("of", "")) or 0).first()


def _versions_with_tools(request: PageRequest) -> QuerySet[Version]:
    """The newest version of each agent of the project that has tools, from which a world may begin."""
    rows = Version.objects.filter(agent__project=request.project).exclude(tools=[])
    return rows.select_related("agent").order_by("agent", "-number").distinct("agent")


def _next_step(form: forms.Form, kind: Kind, version: Version | None) -> str:
    if isinstance(form, WorldSettingsForm):
        return f"Write its tasks here{f', or make tasks of failures of {version.agent}' if version else ''}."
    if kind.from_failures:
        return f"Failures of {version.agent if version else 'any agent'} can become its tasks."
    return "Import the rows of its data here." if kind.is_external else "Generate its tasks here."


def _new_form(
    request: PageRequest, name: str, kind: Kind
) -> EnvironmentForm | ReplayForm | AttachForm | GeneratedForm | WorldForm | NewServerForm:
    sent = request.POST or None
    if name == own_world.KIND:
        return WorldForm(sent, initial=_starter(request))
    if name == server_world.KIND:
        return NewServerForm(sent)
    if name == episode_replay.KIND:
        return ReplayForm(sent, project=request.project, initial=_functions(request))
    if kind.from_failures:
        return EnvironmentForm(sent, project=request.project)
    return AttachForm(sent) if kind.is_external else GeneratedForm(sent, kind=kind)


@require_GET
@requires(Permission.VIEW)
def environment(request: PageRequest, name: str) -> HttpResponse:
    return environment_page(request, _environment(request, name))


@require_GET
@requires(Permission.VIEW)
def setting(request: PageRequest, name: str, of_version: int) -> FileResponse:
    """One setting of a version, or all of them, as a JSON file."""
    version = get_object_or_404(_environment(request, name).versions, number=of_version)
    found, key = version.config, request.GET.get("name")
    if key is not None:
        if key not in found:
            raise Http404
        found = found[key]
    content = json.dumps(found, indent=2, ensure_ascii=False).encode()
    filename = f"{name}@{of_version}-{re.sub('[^A-Za-z0-9_-]+', '_', key or 'settings')[:60]}.json"
    return FileResponse(io.BytesIO(content), as_attachment=True, filename=filename, content_type="application/json")


@require_POST
@requires(Permission.BUILD)
def make_version(request: PageRequest, name: str) -> HttpResponse:
    """Save verifier weights, prompt and tools as the next version; every task is proved again under it."""
    row = _environment(request, name)
    _refuse_attaching(request, KINDS[row.kind])
    newest = row.versions.order_by("-number").first()
    form = _version_form(row)(request.POST, request.FILES, version=newest)
    if form.is_valid():
        try:
            made = environment_versions.environment_version(
                environment=row, actor=request.actor, config=form.content, verifier=form.cleaned_data["verifier"]
            )
        except FieldError as error:
            form.add_error(None, str(error))
        else:
            if made == newest:
                messages.info(request, f"No changes: {made} already has this content.")
            else:
                messages.success(request, proof_jobs.proof_notice(row, made))
            return redirect("environments:environment", request.project.slug, row.name)
    return environment_page(request, row, form, status=422)


@require_POST
@requires(Permission.BUILD)
def make_all(request: PageRequest, name: str) -> HttpResponse:
    """A task of every labelled failure that has none."""
    row = _environment(request, name)
    made = tasks_from_all(environment=row, actor=request.actor)
    (messages.warning if made.refused or made.unproved else messages.success)(request, str(made))
    return redirect("environments:environment", request.project.slug, row.name)


@require_POST
@requires(Permission.BUILD)
def freeze(request: PageRequest, name: str) -> HttpResponse:
    """Freeze all proved tasks as the next version of a set, or those that filters show."""
    row = _environment(request, name)
    chosen = task_selection.chosen_of(request.POST.dict())
    tasks = (
        list(task_selection.to_freeze(row, task_selection.chosen_tasks(row, chosen))) if any(chosen.values()) else None
    )
    task_set = frozen_sets.freeze(
        environment=row, name=request.POST.get("name", "").strip(), actor=request.actor, tasks=tasks
    )
    return redirect("environments:task_set", request.project.slug, task_set.name, task_set.version)


def _refuse_attaching(request: PageRequest, kind: Kind) -> None:
    """To whose server this installation talks, an admin says."""
    if kind.is_external and Permission.ADMIN not in request.permissions:
        raise Forbidden(Permission.ADMIN)


def _version_form(row: Environment) -> type[VersionForm | SettingsForm]:
    return VersionForm if row.kind == "tool_call" else SettingsForm


def environment_page(
    request: PageRequest,
    row: Environment,
    form: VersionForm | SettingsForm | None = None,
    *,
    generate: GenerateForm | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page, with a form as somebody left it."""
    chosen = task_selection.chosen_of(request.GET.dict())
    found = task_selection.chosen_tasks(row, chosen)
    tasks = found if chosen["split"] == Split.SEALED else found.exclude(split=Split.SEALED)
    tasks = tasks.select_related("source")
    page = page_at(request, tasks, is_counted=True)
    if chosen["split"] in MEASURED:
        ledger.looked(page.items, request.actor)
    tally = task_statistics.counts(Environment.objects.filter(pk=row.pk)).get()
    kind = KINDS[row.kind]
    versions = row.versions.select_related("created_by", "environment").order_by("-number")
    version = versions.first()
    sets = TaskSet.objects.filter(environment_version__environment=row).order_by("-pk")
    last_set = sets.to_train_on().first()  # the name of another is not one for all tasks
    context = {
        "environment": row,
        "kind": kind,
        "world_tools": lines_of(envs.build(row.kind, version.config, {"kind": row.kind}).tools)
        if version and kind.is_world
        else [],
        "takes_rows": row.kind in task_files.KINDS,
        "version": version,
        "versions": versions.defer("config", "verifier")[:20],
        "tally": tally,
        "sealed_sources": _sealed_sources(row),
        "sealed_wanted": frozen_sets.SEALED_SOURCES,
        "disputed_labels": labelled_attempts.disagreements(version) if version else 0,
        "is_outdated": version is not None and version.verifier_digest != verifiers.digest(version.verifier),
        "form": form or _version_form(row)(version=version),
        "generate": generate or (GenerateForm(kind=kind) if kind.generate else None),
        "generate_key": uuid.uuid4(),
        "generation": row.generations.select_related("created_by").order_by("-pk").first(),
        "proving": row.provings.exclude(state__in=FINISHED).first(),
        "unmade": proof_jobs.waiting(row, version).count() + proof_jobs.spoiled(row).count() if version else 0,
        "page": page,
        "chosen": chosen,
        "hides_held_out": chosen["split"] not in MEASURED,
        "is_filtered": any(chosen.values()),
        "to_freeze": task_selection.splits_of(task_selection.to_freeze(row, found)),
        "splits": Split.choices,
        "buckets": _buckets(row),
        "rates": task_statistics.solve_rates(row),
        "simulated": task_statistics.simulator_agreement(row, version),
        "waiting": without_task(row).count(),
        "task_sets": list(sets[: SETS_AT_ONCE + 1]),
        "sets_at_once": SETS_AT_ONCE,
        "set_name": last_set.name if last_set else row.name,
    }
    return render(request, "environments/environment.html", context, status=status)


def _sealed_sources(row: Environment) -> int:
    """Count the sources of its sealed tasks that could stand in a set."""
    sealed = row.tasks.filter(split=Split.SEALED, is_proved=True, retired_at=None).order_by()
    return sealed.values("cluster").distinct().count()


def _buckets(row: Environment) -> list[Bucket]:
    """Those that the environment has tasks of."""
    used = set(row.tasks.order_by().values_list("bucket", flat=True).distinct())
    return [bucket for key, bucket in every(row.project).items() if key in used]


def _environment(request: PageRequest, name: str) -> Environment:
    return get_object_or_404(Environment.objects.select_related("agent"), project=request.project, name=name)
