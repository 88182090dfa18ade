from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Agent, Version
from flywheel.agents.pages.success_chart import held_out_chart
from flywheel.edge import job_pages
from flywheel.edge.jobs import State
from flywheel.edge.numbers import key, number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import Refused, show_at_field
from flywheel.environments import ledger
from flywheel.environments.models import Split, Task, TaskSet
from flywheel.evals.comparisons.rollout_pairs import pairs
from flywheel.evals.comparisons.run_comparison import CannotCompare, comparison, leaks_of, trained_on
from flywheel.evals.models import EvalRun
from flywheel.evals.pages import comparison_context, run_facts, run_table
from flywheel.evals.pages.run_forms import BudgetForm, EvalForm
from flywheel.evals.reward_audits.reward_standing import Judged, audit_of_verifier
from flywheel.evals.runs import rollout_looks, run_budget, submission, unanswered_attempts
from flywheel.evals.runs.first_requests import differences
from flywheel.evals.serving import version_isolation
from flywheel.system import env

LOGGED = 200
"""Lines of the event log on the page, the newest."""
SUGGESTED = 200


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    rows = _filtered(request, EvalRun.objects.filter(project=request.project))
    page = page_at(request, rows, is_counted=True)
    shown = page.items[0].version.agent if page.items else None  # the agent that was asked last of those shown
    context = {
        "page": page,
        "chart": held_out_chart(shown) if shown else None,
        "runs": [{"run": run, "success": run_facts.success(run)} for run in page.items],
        "agents": Agent.objects.filter(project=request.project).order_by("name"),
        "sets": TaskSet.objects.filter(project=request.project).order_by("name").values_list("name", flat=True),
        "states": State.choices,
        "splits": [(split.value, split.label) for split in (Split.HELD_OUT, Split.TRAIN, Split.SEALED)],
        "is_filtered": any(request.GET.get(name) for name in FILTERS),
    }
    return render(request, "evals/index.html", context)


FILTERS = {
    "agent": "version__agent__name",
    "version": "version__number",
    "set": "task_set__name",
    "split": "split",
    "state": "state",
}


def _filtered(request: PageRequest, rows: QuerySet[EvalRun]) -> QuerySet[EvalRun]:
    for name, column in FILTERS.items():
        value = request.GET.get(name, "")
        if name == "version" and number(value) is None:
            continue
        if value:
            rows = rows.filter(**{column: value})
    return rows.select_related("version__agent", "task_set", "created_by").defer("version__system_prompt")


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def new(request: PageRequest) -> HttpResponse:
    if request.method == "GET":
        return _form(request, EvalForm.start(request.project, request.GET.dict()))
    form = EvalForm(request.project, request.POST)
    if not form.is_valid():
        return _form(request, form, status=422)
    chosen = form.cleaned_data
    try:
        run, _ = submission.submit(
            key=chosen["key"],
            version=chosen["version"],
            task_set=chosen["task_set"],
            actor=request.actor,
            split=chosen["split"],
            settings=form.settings,
        )
    except Refused as error:
        show_at_field(form, error)
        return _form(request, form, status=422)
    return redirect("evals:run", request.project.slug, run.pk)


def _form(request: PageRequest, form: EvalForm, status: int = 200) -> HttpResponse:
    versions = Version.objects.filter(agent__project=request.project).select_related("agent", "agent__live")
    sets = TaskSet.objects.filter(project=request.project).order_by("-pk")
    context = {
        "form": form,
        "versions": versions.order_by("-pk")[:SUGGESTED],
        "sets": sets[:SUGGESTED],
        "vllm_urls": env.vllm_urls(),
    }
    return render(request, "evals/new.html", context, status=status)


@require_GET
@requires(Permission.VIEW)
def run(request: PageRequest, pk: int) -> HttpResponse:
    found = _run(request, pk)
    is_sealed = found.split == Split.SEALED
    if not is_sealed:
        rollout_looks.note_look(found, request.actor)
    others = (
        EvalRun.objects.filter(project=request.project, task_set=found.task_set, split=found.split)
        .filter(state=State.SUCCEEDED)
        .exclude(pk=found.pk)
        .select_related("version__agent")
        .order_by("-pk")[:12]
    )
    context = {
        **_live(request, found),
        "lineage": run_facts.lineage(found),
        "openings": ledger.openings(found.task_set),
        "verifier_audit": audit_of_verifier(Judged.of(found)),
        "trained_on": leaks_of(found),
        "unlike_live": differences(found) if found.done else [],
        "tiles": run_facts.tiles(found),
        "familiar": run_facts.familiar(found),
        "origins": run_facts.origins(found),
        "buckets": None if is_sealed else run_facts.slices_chart(found, "buckets", "Success by category"),
        "slices": None if is_sealed else run_facts.slices_chart(found, "slices", "Success by wording"),
        "matrix": run_table.matrix(found, request.GET) if found.done and not is_sealed else None,
        "choices": run_table.SHOW,
        "form": BudgetForm(initial=found.budget),
        "can_resume": unanswered_attempts.can_resume(found),
        "of_policy": run_budget.of_policy(found),
        "of_judges": run_budget.of_judges(found),
        "of_simulator": run_budget.of_simulator(found),
        "others": others if found.state == State.SUCCEEDED and not is_sealed else [],
    }
    return render(request, "evals/run.html", context)


@require_GET
@requires(Permission.VIEW)
def matrix(request: PageRequest, pk: int) -> HttpResponse:
    found = _run(request, pk)
    rollout_looks.note_look(found, request.actor, anew=False)
    context = {"run": found, "matrix": run_table.matrix(found, request.GET), "choices": run_table.SHOW}
    return render(request, "evals/_matrix.html", context)


@require_POST
@requires(Permission.BUILD)
def resume(request: PageRequest, pk: int) -> HttpResponse:
    found, form = _run(request, pk), BudgetForm(request.POST)
    asks_for_budget = any(name in request.POST for name in form.fields)
    if not form.is_valid():
        name, problems = next(iter(form.errors.items()))
        messages.warning(request, f"Not resumed. {name}: {problems[0]}")
        return redirect("evals:run", request.project.slug, pk)
    with job_pages.refusal_told(request, "Not resumed"):
        submission.resume(run=found, actor=request.actor, budget=form.budget if asks_for_budget else None)
    return redirect("evals:run", request.project.slug, pk)


@require_GET
@requires(Permission.VIEW)
def pair(request: PageRequest) -> HttpResponse:
    """From two ticked runs to their comparison: the newer one against the older."""
    chosen = sorted({pk for text in request.GET.getlist("id") if (pk := key(text))})
    if len(chosen) != 2:
        messages.warning(request, f"Select exactly two runs to compare; {len(chosen)} were selected.")
        return redirect("evals:index", request.project.slug)
    return redirect("evals:compare", request.project.slug, chosen[1], chosen[0])


@require_GET
@requires(Permission.VIEW)
def compare(request: PageRequest, candidate: int, baseline: int) -> HttpResponse:
    new_run, old_run = _run(request, candidate), _run(request, baseline)
    context: dict[str, Any] = {"candidate_run": new_run, "baseline_run": old_run}
    try:
        context |= comparison_context.comparison_context(new_run, old_run, comparison(new_run, old_run))
        rollout_looks.note_looks((new_run, old_run), request.actor)
        learnt = trained_on(new_run, old_run)
        context |= {
            "openings": ledger.openings(new_run.task_set),
            "trained_on": learnt,
            "is_invalid": any(each.is_invalid for each in learnt),
        }
    except CannotCompare as error:
        context |= {"problem": str(error), "apart": version_isolation.of(new_run, old_run)}
    return render(request, "evals/compare.html", context)


@require_GET
@requires(Permission.VIEW)
def changed(request: PageRequest, candidate: int, baseline: int, number: int) -> HttpResponse:
    """The rollouts of one task, side by side."""
    new_run, old_run = _run(request, candidate), _run(request, baseline)
    rollout_looks.note_looks((new_run, old_run), request.actor)
    environment = new_run.task_set.environment_version.environment_id
    task = get_object_or_404(
        Task.objects.select_related("environment"), project=request.project, environment=environment, number=number
    )
    change = {"task": task, "pair": pairs(new_run, old_run, [task])[task.pk]}
    context = {"change": change, "candidate_run": new_run, "baseline_run": old_run}
    return render(request, "evals/_pair.html", context)


def _run(request: PageRequest, pk: int) -> EvalRun:
    rows = EvalRun.objects.select_related(
        "project", "version__agent", "task_set__environment_version__environment", "created_by"
    )
    return get_object_or_404(rows, project=request.project, pk=pk)


def _live(request: PageRequest, found: EvalRun) -> dict[str, Any]:
    newest = list(found.events.order_by("-id")[:LOGGED])
    return {
        "run": found,
        "job": found,
        "may_stop": Permission.BUILD in request.permissions,
        "so_far": run_facts.so_far(found),
        "events": newest[::-1],
    }


live = job_pages.live(_run, "evals/_live.html", requires(Permission.VIEW), _live)
cancel = job_pages.cancel(_run, "evals:run", requires(Permission.BUILD))
