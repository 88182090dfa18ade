"""Promotion pages: candidates with their evidence, the decision about them, the log, the way back."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Membership, Permission
from flywheel.agents.models import Agent, Version
from flywheel.core.errors import FieldError
from flywheel.edge.numbers import number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import refusal_shown, show_at_field
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.rollout_looks import note_look
from flywheel.promotions import sealed_comparison
from flywheel.promotions.candidacy import call_harmless
from flywheel.promotions.candidacy import propose as propose_candidate
from flywheel.promotions.gate_policy import (
    change_policy,
    current_policy,
    deciding_set,
    with_planned_margins,
)
from flywheel.promotions.live_version import give_reason, last_ramp, make_first, promote, reject
from flywheel.promotions.live_version import roll_back as roll_back_to
from flywheel.promotions.models import Candidate, Policy, Promotion, Ramp
from flywheel.promotions.pages import summaries
from flywheel.promotions.pages.forms import DecisionForm, PolicyForm, RollBackForm
from flywheel.promotions.pages.ramp_context import earlier_ramp, open_ramps, ramps_of
from flywheel.promotions.pages.ramp_pages.ramp_forms import CELLS, PlanForm
from flywheel.promotions.ramps.ramp_moves import begin
from flywheel.promotions.ramps.ramp_proposals import live_traffic, proposed_plan
from flywheel.system import env

LOG_SHOWN = 50
RAMPS_SHOWN = 5
REASON_MOST = 2000


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    candidates = Candidate.objects.filter(project=request.project).select_related(
        "agent", "version__agent", "baseline__agent", "proposed_by", "run", "version_eval__task_set"
    )
    decided = candidates.exclude(state=Candidate.State.WAITING).defer("report")
    page = page_at(request, decided, limit=20)
    context = {
        "waiting": candidates.filter(state=Candidate.State.WAITING),
        "page": page,
        "running": open_ramps(request.project),
        "ramps": ramps_of(request.project).exclude(state__in=Ramp.OPEN)[:RAMPS_SHOWN],
        "agents": summaries.live_agents(request.project),
        "log": summaries.promotion_log(request.project, LOG_SHOWN),
    }
    return render(request, "promotions/index.html", context)


@require_GET
@requires(Permission.VIEW)
def candidate(request: PageRequest, pk: int) -> HttpResponse:
    row = _candidate(request, pk)
    form = DecisionForm(initial={"generation": row.agent.generation})
    return _show(request, row, form)


@require_GET
@requires(Permission.VIEW)
def final(request: PageRequest, pk: int) -> HttpResponse:
    """Show a candidate's standing at the sealed part, asked for again while that is being attempted, and once more when
    its suites have ended."""
    row = _candidate(request, pk)
    final = sealed_comparison.final(row)
    context: dict[str, Any] = {"candidate": row, "final": final}
    if final is None or final["state"] != "unfinished":
        # What it decides is shown anew beside it, and what is typed there stays.
        context = {**context, **_decision_context(request, row, _decision_form(request, row)), "is_polled": True}
    return render(request, "promotions/_final.html", context)


@require_GET
@requires(Permission.APPROVE)
def plan(request: PageRequest, pk: int) -> HttpResponse:
    """Fragment: the plan of a release by steps as it is filled in; with `rows` its stages alone have changed."""
    row = _candidate(request, pk)
    form = _decision_form(request, row)
    data = request.GET.copy()
    if "add" in data:
        for cell, value in zip(CELLS, ("", "100", "60"), strict=True):
            data.appendlist(cell, value)
    elif (gone := number(data.get("remove", ""))) is not None:
        for cell in CELLS:
            data.setlist(cell, [value for at, value in enumerate(data.getlist(cell)) if at != gone])
    plan_form = _plan_form(row, data if "rows" in data else None) if form.is_by_steps else None
    context: dict[str, Any] = {"candidate": row, "form": form, "plan_form": plan_form}
    if "rows" not in data:  # what the button says follows the choice
        context = {**_decision_context(request, row, form), **context, "is_polled": True}
    return render(request, "promotions/_plan.html", context)


@require_POST
@requires(Permission.APPROVE)
def open_sealed(request: PageRequest, pk: int) -> HttpResponse:
    row = _candidate(request, pk)
    sealed_comparison.open_sealed(candidate=row, actor=request.actor)
    return redirect(f"{reverse('promotions:candidate', args=[request.project.slug, pk])}#final")


@require_POST
@requires(Permission.APPROVE)
def approve(request: PageRequest, pk: int) -> HttpResponse:
    row = _candidate(request, pk)
    form = DecisionForm(request.POST)
    plan_form = _plan_form(row, request.POST) if form.is_by_steps else None
    plan = plan_form.plan() if plan_form else None
    if form.is_valid() and (plan is not None) == form.is_by_steps:
        with refusal_shown(form):
            if plan is not None:
                ramp = begin(candidate=row, plan=plan, actor=request.actor, **form.decision)
                messages.success(request, f"Approved. {row.version} is released by steps.")
                return redirect("promotions:ramp", request.project.slug, ramp.pk)
            promotion = promote(candidate=row, actor=request.actor, **form.decision)
            messages.success(
                request, f"{promotion.after} is now live. Roll back to {row.baseline} any time from this page."
            )
            return redirect("promotions:index", request.project.slug)
    return _show(request, _candidate(request, pk), form, status=422, plan_form=plan_form)


@require_POST
@requires(Permission.APPROVE)
def decline(request: PageRequest, pk: int) -> HttpResponse:
    row = _candidate(request, pk)
    form = DecisionForm(request.POST)
    if form.is_valid():
        with refusal_shown(form):
            reject(candidate=row, actor=request.actor, reason=form.cleaned_data["reason"])
            messages.success(request, f"{row} is rejected; {row.agent} stays at {row.agent.live}.")
            return redirect("promotions:index", request.project.slug)
    return _show(request, row, form, status=422)


@require_POST
@requires(Permission.APPROVE)
def harmless(request: PageRequest, pk: int) -> HttpResponse:
    """Say that there is no harm in a never event, for a reason."""
    row = _candidate(request, pk)
    result, reason = number(request.POST.get("result", "")), request.POST.get("reason", "")
    call_harmless(candidate=row, result=result or 0, actor=request.actor, reason=reason)
    return redirect(f"{reverse('promotions:candidate', args=[request.project.slug, pk])}#never-events")


@require_POST
@requires(Permission.APPROVE)
def roll_back(request: PageRequest, agent: str) -> HttpResponse:
    row = get_object_or_404(Agent.objects.select_related("live"), project=request.project, name=agent)
    form = RollBackForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was rolled back: choose a version on this page.")
        return redirect("promotions:index", request.project.slug)
    to = get_object_or_404(Version, agent=row, number=form.cleaned_data.pop("version"))
    move = roll_back_to(agent=row, to=to, actor=request.actor, **form.cleaned_data)
    messages.success(request, f"{to} is live again.")
    if move.unserved:
        by = "by choosing its base again under Evals › vLLM server" if env.serve() else "make serve"
        messages.warning(request, f"But {move.unserved}. Restart it ({by}) to serve the live version.")
    return redirect("promotions:index", request.project.slug)


@require_POST
@requires(Permission.APPROVE)
def say_why(request: PageRequest, agent: str, generation: int) -> HttpResponse:
    """Add the reason of a rollback that was made without."""
    rows = Promotion.objects.filter(agent__project=request.project, agent__name=agent)
    give_reason(
        promotion=get_object_or_404(rows, generation=generation),
        actor=request.actor,
        reason=request.POST.get("reason", "")[:REASON_MOST],
    )
    return redirect("promotions:index", request.project.slug)


@require_POST
@requires(Permission.APPROVE)
def first(request: PageRequest, agent: str, number: int) -> HttpResponse:
    row = get_object_or_404(Agent, project=request.project, name=agent)
    version = get_object_or_404(Version, agent=row, number=number)
    make_first(agent=row, version=version, actor=request.actor, reason=request.POST.get("reason") or "first version")
    messages.success(request, f"{version} is live.")
    return redirect("agents:agent", request.project.slug, agent)


@require_POST
@requires(Permission.TRAIN)
def propose(request: PageRequest) -> HttpResponse:
    """Make a candidate of two evals of the same set: any version, trained here or not, can be put forward."""
    runs = EvalRun.objects.filter(project=request.project)
    version_eval = get_object_or_404(runs, pk=request.POST.get("candidate"))
    baseline_eval = get_object_or_404(runs, pk=request.POST.get("baseline"))
    row = propose_candidate(version_eval=version_eval, baseline_eval=baseline_eval, actor=request.actor)
    return redirect("promotions:candidate", request.project.slug, row.pk)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Permission.ADMIN)
def policy(request: PageRequest) -> HttpResponse:
    with transaction.atomic():
        present = current_policy(request.project, request.actor) if request.method == "POST" else None
    newest = present or request.project.policies.order_by("-version").first()
    rules = newest.rules if newest else summaries.DEFAULT_RULES
    form = PolicyForm(request.POST) if request.method == "POST" else PolicyForm.of(rules)
    if request.method == "POST" and form.is_valid():
        try:
            wanted = form.rules(rules)
            if "plan" in request.POST:
                form = PolicyForm.of(with_planned_margins(request.project, wanted))
                return render(request, "promotions/policy.html", _policy_page(request, form, newest))
            made = change_policy(
                project=request.project,
                actor=request.actor,
                rules=wanted,
                reason=request.POST.get("reason", ""),
            )
        except FieldError as error:
            show_at_field(form, error)
        except ValueError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, f"{made} is now in force. Existing verdicts keep their rules.")
            return redirect("promotions:policy", request.project.slug)
    context = _policy_page(request, form, newest)
    return render(request, "promotions/policy.html", context, status=422 if form.errors else 200)


def _policy_page(request: PageRequest, form: PolicyForm, newest: Policy | None) -> dict[str, Any]:
    return {
        "form": form,
        "policy": newest,
        "deciding_set": deciding_set(request.project),
        "history": request.project.policies.select_related("created_by"),
        "reason": request.POST.get("reason", ""),
    }


def _candidate(request: PageRequest, pk: int) -> Candidate:
    rows = Candidate.objects.filter(project=request.project).select_related(
        "agent__live__agent",
        "version__agent",
        "version__created_by",
        "baseline__agent",
        "proposed_by",
        "run",
        "policy",
        "version_eval__task_set__environment_version__environment",
        "baseline_eval__task_set",
    )
    return get_object_or_404(rows, pk=pk)


def _decision_form(request: PageRequest, row: Candidate) -> DecisionForm:
    """The form as far as it was filled in where a fragment is asked for."""
    filled = {"how": request.GET.get("how", ""), "override": "override" in request.GET}
    return DecisionForm(initial={"generation": row.agent.generation, **filled})


def _plan_form(row: Candidate, data: Any = None) -> PlanForm:
    traffic = live_traffic(row.baseline)
    return PlanForm(proposed_plan(row, traffic), row.project, traffic, data)


def _show(
    request: PageRequest, row: Candidate, form: DecisionForm, status: int = 200, plan_form: PlanForm | None = None
) -> HttpResponse:
    if form.errors and not plan_form:  # said at the very end of a long page, which the focus brings into view
        form.fields["reason"].widget.attrs["autofocus"] = True
    for each in (row.version_eval, row.baseline_eval):
        note_look(each, request.actor)
    promotion = row.promotions.select_related("approved_by").first()
    context = {**_decision_context(request, row, form), "candidate": row, "promotion": promotion}
    context |= {"plan_form": plan_form, "ramp": row.ramps.select_related("split").first()}
    return render(request, "promotions/candidate.html", context, status=status)


def _decision_context(request: PageRequest, row: Candidate, form: DecisionForm) -> dict[str, Any]:
    """The evidence, the form, and why whoever looks may not decide (empty where they may)."""
    context = summaries.candidate_context(row, request.project)
    form.fields["override"].widget.attrs["required"] = context["is_against"]
    barred = ""
    if Permission.APPROVE not in request.permissions:
        barred = "An approver decides."
    elif request.actor.user.pk in {row.proposed_by_id, row.version.created_by_id}:
        barred = "You launched this candidate's run, so another approver must decide."
        if not Membership.objects.filter(project=request.project).exclude(user=request.actor.user).exists():
            barred += " You are the only member: add one under Settings."
    is_undecided = row.state in Candidate.UNDECIDED
    earlier = earlier_ramp(row, last_ramp(row)) if is_undecided else None
    return {**context, "form": form, "barred": barred, "earlier": earlier, "is_undecided": is_undecided}
