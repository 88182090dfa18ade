"""Regression suites: of an agent, and beside a comparison."""

from django.contrib import messages
from django.db.models import Case, When
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST
from django_htmx.http import trigger_client_event

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent
from flywheel.edge.htmx import answer
from flywheel.edge.refusals import refusal_shown
from flywheel.environments.models import Suite
from flywheel.environments.task_sets import suite_definitions
from flywheel.evals.models import EvalRun
from flywheel.promotions import suite_standings
from flywheel.promotions.models import Candidate
from flywheel.promotions.pages.suite_forms import RetireForm, SuiteForm

RETIRED_SHOWN = 50


@require_GET
@requires(Permission.VIEW)
def of_agent(request: PageRequest, agent: str) -> HttpResponse:
    """An agent's suites; for htmx the part that the agent's page shows."""
    found = _agent(request, agent)
    present = list(suite_definitions.present(found))
    like = next((suite for suite in present if suite.name == request.GET.get("change")), None)
    return _show(request, found, SuiteForm.start(suite_definitions.sets_for(request.project), present, like), like)


@require_POST
@requires(Permission.BUILD)
def put(request: PageRequest, agent: str) -> HttpResponse:
    found = _agent(request, agent)
    form = SuiteForm(suite_definitions.sets_for(request.project), request.POST)
    if form.is_valid():
        with refusal_shown(form, margin="points"):
            suite, is_new = suite_definitions.put(agent=found, actor=request.actor, **form.content())
            suite_standings.check_waiting(suite)
            said = f"Every candidate of {found} runs {suite} from now on."
            messages.success(request, said if is_new else f"{suite} already has this content.")
            return redirect("agents:agent", request.project.slug, found.name)
    like = suite_definitions.present(found).filter(name=form.cleaned_data.get("name", "")).first()
    return _show(request, found, form, like, status=422)


@require_POST
@requires(Permission.BUILD)
def retire(request: PageRequest, agent: str, suite: str) -> HttpResponse:
    """Retire the version that the page showed."""
    found, form = _agent(request, agent), RetireForm(request.POST)
    if not form.is_valid():
        said = "; ".join(f"{name}: {' '.join(map(str, problems))}" for name, problems in form.errors.items())
        messages.error(request, f"Nothing was retired: {said}")
        return redirect("promotions:suites", request.project.slug, agent)
    row = get_object_or_404(found.suites, name=suite, version=form.cleaned_data["version"])
    suite_definitions.retire(suite=row, actor=request.actor, reason=form.cleaned_data["reason"])
    messages.success(request, f"{row} is retired; candidates no longer run it.")
    return redirect("promotions:suites", request.project.slug, agent)


@require_POST
@requires(Permission.BUILD)
def run(request: PageRequest, agent: str, suite: str) -> HttpResponse:
    """Evaluate the live version at the suite."""
    row = get_object_or_404(suite_definitions.present(_agent(request, agent)), name=suite)
    found = suite_standings.run_live(suite=row, actor=request.actor)
    return redirect("evals:run", request.project.slug, found.pk)


@require_GET
@requires(Permission.VIEW)
def beside(request: PageRequest, candidate: int, baseline: int) -> HttpResponse:
    """Fragment of a comparison: how the newer version stands at the suites, and with `tile` how many it passed. It asks
    again while they run."""
    new, old = _eval(request, candidate), _eval(request, baseline)
    if not _is_pair(new, old):
        return HttpResponse()
    row = _candidate_of(new, old)
    stands = suite_standings.standings_of(row) if row else suite_standings.standings(new, old)
    is_open = row is None or row.state == Candidate.State.WAITING
    context = suite_standings.context(stands, candidate, baseline, is_open=is_open)
    context["has_tile"] = context["is_polled"] = "tile" in request.GET
    response = render(request, "promotions/_standings.html", context) if stands else HttpResponse()
    return response if context["is_running"] else trigger_client_event(response, "suites-ended")


@require_POST
@requires(Permission.TRAIN)
def run_beside(request: PageRequest, candidate: int, baseline: int) -> HttpResponse:
    """Start what is missing, and let what failed go on."""
    new, old = _eval(request, candidate), _eval(request, baseline)
    if not _is_pair(new, old):
        raise Http404
    row = _candidate_of(new, old)
    if row is None:
        problems = suite_standings.start(version_eval=new, baseline_eval=old, actor=request.actor)
    else:
        problems = suite_standings.start_for(candidate=row, actor=request.actor)
    for problem in problems:
        messages.error(request, f"Not started: {problem}.")
    if row is not None:
        return redirect("promotions:candidate", request.project.slug, row.pk)
    return redirect("evals:compare", request.project.slug, candidate, baseline)


def _is_pair(new: EvalRun, old: EvalRun) -> bool:
    """Whether they are of two versions of one agent."""
    return new.version.agent_id == old.version.agent_id and new.version_id != old.version_id


def _candidate_of(new: EvalRun, old: EvalRun) -> Candidate | None:
    """The candidate that the two evals made: the one that waits, else the newest."""
    rows = Candidate.objects.filter(version_eval=new, baseline_eval=old).select_related(
        "agent", "version_eval__version__agent", "baseline_eval__version__agent"
    )
    waits = Case(When(state=Candidate.State.WAITING, then=1), default=0)
    return rows.order_by(waits.desc(), "-pk").first()


def _show(request: PageRequest, agent: Agent, form: SuiteForm, like: Suite | None, status: int = 200) -> HttpResponse:
    context = {
        "agent": agent,
        "results": suite_standings.live_results([agent])[agent.pk],
        "form": form,
        "like": like,
        "can_be_made": suite_definitions.sets_for(request.project).exists(),
    }
    retired = agent.suites.exclude(retired_at=None).select_related("retired_by", "created_by", "task_set")
    context["retired"] = retired.order_by("-retired_at")[:RETIRED_SHOWN]
    return answer(request, "promotions/suites.html", "promotions/_suites.html", context, status)


def _agent(request: PageRequest, name: str) -> Agent:
    return get_object_or_404(Agent.objects.select_related("live", "project"), project=request.project, name=name)


def _eval(request: PageRequest, pk: int) -> EvalRun:
    return get_object_or_404(EvalRun.objects.select_related("version__agent"), project=request.project, pk=pk)
