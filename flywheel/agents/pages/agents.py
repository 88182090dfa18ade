from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.pages.downloads import downloads_of
from flywheel.agents.pages.forms import AgentForm, VersionForm
from flywheel.agents.pages.program_snippets import snippet_of
from flywheel.agents.pages.success_chart import held_out_chart, newest_evals, success_chart
from flywheel.agents.registration import make_agent, make_version
from flywheel.agents.version_changes import PROMPT, changes, lines
from flywheel.agents.weights import hub_versions
from flywheel.core.traces.call_forms import LABELS
from flywheel.edge.numbers import number
from flywheel.edge.refusals import refusal_shown
from flywheel.system import env

RECENT = 20
CHARTED = 4
"""Agents whose held-out success is drawn below their list, first by name."""
VERSIONS = 200


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    agents = Agent.objects.filter(project=request.project).select_related("live").order_by("name")
    found = list(agents.annotate(version_count=Count("versions")))
    evals = _newest_evals(found)
    context = {
        "agents": [{"agent": one, "eval": evals.get(one.live_id) if one.live_id else None} for one in found],
        "charts": [chart for one in found[:CHARTED] if (chart := held_out_chart(one, title=one.name))],
    }
    return render(request, "agents/index.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def new_agent(request: PageRequest) -> HttpResponse:
    form = AgentForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with refusal_shown(form):
            made = make_agent(project=request.project, actor=request.actor, **form.cleaned_data)
            return redirect("agents:new_version", request.project.slug, made.name)
    status = 422 if request.method == "POST" else 200
    return render(request, "agents/new.html", {"form": form}, status=status)


@require_GET
@requires(Permission.VIEW)
def agent(request: PageRequest, name: str) -> HttpResponse:
    found = _agent(request, name)
    versions = found.versions.select_related("parent", "created_by").defer("system_prompt", "tools")
    evals = _newest_evals([found])
    promotions = found.promotions.select_related("before", "after", "approved_by", "proposed_by")
    return render(
        request,
        "agents/agent.html",
        {
            "agent": found,
            "split": _split(found),
            "versions": [
                {"version": one, "eval": evals.get(one.pk)} for one in versions.order_by("-number")[:VERSIONS]
            ],
            "promotions": promotions.order_by("-pk")[:RECENT],
            "charts": [chart for chart in (success_chart(found), held_out_chart(found)) if chart],
            "has_runs": _has_runs(found),
        },
    )


@require_GET
@requires(Permission.VIEW)
def version(request: PageRequest, name: str, number: int) -> HttpResponse:
    found = get_object_or_404(
        Version.objects.select_related(
            "agent__live", "agent__project", "weights", "adapter", "created_by",
            "parent__weights", "parent__adapter", "parent__agent",
        ),
        agent=_agent(request, name),
        number=number,
    )  # fmt: skip
    return render(
        request,
        "agents/version.html",
        {
            "form_label": LABELS.get(found.form, ""),
            "snippet": snippet_of(found, request.build_absolute_uri("/").rstrip("/")),
            "version": found,
            "agent": found.agent,
            **downloads_of(found),
            "is_live": found.agent.live_id == found.pk,
            "split": split if (split := _split(found.agent)) and split.candidate_id == found.pk else None,
            "changes": changes(found.parent, found) if found.parent else [],
            "made_by": found.produced_by.first() or next((each.run for each in found.checkpoint_versions.all()), None),
            "draft": found.fix_drafts.select_related("trial").first(),
            "prompt_searches": found.prompt_searches.order_by("-pk")[:RECENT],
            "children": found.children.defer("system_prompt", "tools").order_by("number")[:RECENT],
            "evals": found.eval_runs.select_related("task_set", "created_by").order_by("-pk")[:RECENT],
            "training_runs": found.training_runs.order_by("-pk")[:RECENT],
            "candidates": found.candidates.select_related("baseline").order_by("-pk")[:RECENT],
            "promotions": found.promotions.select_related("before", "approved_by").order_by("-pk")[:RECENT],
        },
    )


@require_GET
@requires(Permission.VIEW)
def difference(request: PageRequest, name: str, number: int, other: int) -> HttpResponse:
    """Show what a version changes of another one of its agent."""
    agent = _agent(request, name)
    rows = agent.versions.select_related("agent", "weights", "adapter")
    after, before = get_object_or_404(rows, number=number), get_object_or_404(rows, number=other)
    found = changes(before, after)
    prompt = next((each for each in found if each.label == PROMPT), None)
    context = {
        "agent": agent,
        "before": before,
        "after": after,
        "changes": [each for each in found if each is not prompt],
        "prompt": lines(prompt.before or "", prompt.after or "") if prompt else [],
        "others": agent.versions.defer("system_prompt", "tools").order_by("-number")[:VERSIONS],
    }
    return render(request, "agents/difference.html", context)


@require_GET
@requires(Permission.VIEW)
def choose_difference(request: PageRequest, name: str) -> HttpResponse:
    """From two chosen numbers to the page of their difference."""
    found = _agent(request, name)
    after, before = (number(request.GET.get(field, "")) for field in ("after", "before"))
    if after is None or before is None:
        return redirect("agents:agent", request.project.slug, found.name)
    return redirect("agents:difference", request.project.slug, found.name, after, before)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def new_version(request: PageRequest, name: str) -> HttpResponse:
    """A version from nothing, or `?like=N` from another one of the agent with something changed."""
    found = _agent(request, name)
    like = None
    if wanted := request.GET.get("like"):
        versions = found.versions.select_related("weights", "adapter")
        like = get_object_or_404(versions, number=number(wanted))
    if request.method == "GET":
        return _version_form(request, found, like, VersionForm.start(found, like))
    form = VersionForm(found, like, request.POST, request.FILES)
    if form.is_valid():
        with refusal_shown(form, name="hub_name", revision="hub_revision"):
            if form.is_of_hub:
                job, _ = hub_versions.request(
                    agent=found,
                    actor=request.actor,
                    source=form.source(),
                    content=form.content(),
                    parent=like,
                    note=form.cleaned_data["note"],
                )
                return redirect("agents:hub_version", request.project.slug, job.pk)
            made, is_new = make_version(
                agent=found, actor=request.actor, content=form.content(), parent=like, note=form.cleaned_data["note"]
            )
            if not is_new:
                messages.info(request, f"Version {made.number} already has this content; no new version was created.")
            return redirect("agents:version", request.project.slug, found.name, made.number)
    return _version_form(request, found, like, form, status=422)


def _version_form(
    request: PageRequest, agent: Agent, like: Version | None, form: VersionForm, status: int = 200
) -> HttpResponse:
    context = {"agent": agent, "like": like, "form": form, "has_runs": _has_runs(agent), "has_hub": bool(env.hub())}
    return render(request, "agents/new_version.html", context, status=status)


def _has_runs(agent: Agent) -> bool:
    """Whether production has sent something that a version can be filled in from."""
    return bool(agent.trajectories.filter(source="production").exists())


def _agent(request: PageRequest, name: str) -> Agent:
    return get_object_or_404(Agent.objects.select_related("live", "project"), project=request.project, name=name)


def _newest_evals(agents: Sequence[Agent]) -> dict[int, Any]:
    """Find each version's newest finished held-out run, by its primary key; on one task set for all versions of an
    agent where there is one.

    That set is the one which most versions were measured on, the newest of them where there are several: success on
    different sets says nothing of which version is better. A regression suite's comes after all others, since what it
    guards mostly succeeds anyway.
    """
    own = Agent.objects.filter(pk__in=[agent.pk for agent in agents])
    guards = set(own.values_list("pk", "suites__task_set_id"))
    runs = newest_evals(agents)
    rows = runs.values_list("version__agent_id", "version_id", "task_set_id", "pk")
    newest = {(version, (agent, task_set)): pk for agent, version, task_set, pk in rows}
    measured: dict[tuple[int, int], list[int]] = {}
    for (_, place), pk in newest.items():
        measured.setdefault(place, []).append(pk)
    common_last = sorted(
        newest, key=lambda pair: (pair[1] not in guards, len(measured[pair[1]]), max(measured[pair[1]]))
    )
    chosen = {version: newest[version, place] for version, place in common_last}
    return {run.version_id: run for run in runs.filter(pk__in=chosen.values()).select_related("task_set")}


def _split(agent: Agent) -> Split | None:
    """The split of its sessions between two versions, with its ramp, while there is one."""
    return (
        agent.splits.filter(closed_at=None).select_related("candidate__agent", "live__agent", "ramp", "shadow").first()
    )
