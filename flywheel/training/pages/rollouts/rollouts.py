"""Rollouts to learn from: collecting them, looking at what a choice leaves of them, writing a dataset."""

from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.edge.refusals import Refused, refusal_shown
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.pages import run_facts
from flywheel.evals.runs.submission import submit
from flywheel.system import env
from flywheel.training.pages.rollouts.collection_form import CollectForm
from flywheel.training.rollouts import rollout_choice, selection_overview
from flywheel.training.rollouts.rollout_datasets import write
from flywheel.training.rollouts.rollout_selection import NotForTraining, drop, take_back

SUGGESTED = 200
LOGGED = 200
RUNS = 50
CHOSEN = tuple(rollout_choice.Choice.__slots__)


@require_http_methods(["GET", "POST"])
@requires(Permission.TRAIN)
def collect_page(request: PageRequest) -> HttpResponse:
    if request.method == "GET":
        return _form(request, CollectForm.start(request.project, request.GET.dict()))
    form = CollectForm(request.project, request.POST)
    if form.is_valid() and (version := form.policy(request.actor)):
        with refusal_shown(form):
            run, _ = submit(
                key=form.cleaned_data["key"],
                version=version,
                task_set=form.cleaned_data["task_set"],
                actor=request.actor,
                split=Split.TRAIN,  # nobody may learn from what is held out
                settings=form.settings,
            )
            return redirect("training:rollouts", request.project.slug, run.pk)
    return _form(request, form, status=422)


def _form(request: PageRequest, form: CollectForm, status: int = 200) -> HttpResponse:
    versions = Version.objects.filter(agent__project=request.project).select_related("agent", "agent__live")
    runs = EvalRun.objects.filter(project=request.project, split=Split.TRAIN)
    context = {
        "form": form,
        "versions": versions.order_by("-pk")[:SUGGESTED],
        "sets": TaskSet.objects.filter(project=request.project).order_by("-pk")[:SUGGESTED],
        "runs": runs.select_related("version__agent", "task_set", "created_by").order_by("-pk")[:RUNS],
        "vllm_url": env.vllm_url(),
        "tab": "rollouts",
    }
    return render(request, "training/collect.html", context, status=status)


@require_GET
@requires(Permission.VIEW)
def rollouts(request: PageRequest, run: int) -> HttpResponse:
    """A run's rollouts under the choice of the address; one that goes on shows how far it is."""
    return _page(request, _run(request, run))


def _page(request: PageRequest, run: EvalRun, status: int = 200, **wrong: str) -> HttpResponse:
    context = {"run": run, "so_far": run_facts.so_far(run), "tab": "rollouts", **wrong}
    if not run.is_finished:
        context["events"] = list(run.events.order_by("-id")[:LOGGED])[::-1]
        return render(request, "training/rollouts.html", context)
    given = request.GET.dict()
    try:
        found = selection_overview.shown(run, given)
    except NotForTraining as error:
        return render(request, "training/rollouts.html", {**context, "refused": str(error)}, status=409)
    page = selection_overview.listed(found, given.get("show", "kept"), given.get("cursor", ""))
    page.query = request.GET
    context |= {
        "shown": found,
        "page": page,
        "chart": selection_overview.histogram(found.rollouts, found.choice, run),
        "forms": rollout_choice.FORMS,
        "synthetics": rollout_choice.SYNTHETIC,
        "which": selection_overview.SHOW,
        "showing": given.get("show", "kept"),
        "address": urlencode({name: given[name] for name in CHOSEN if name in given}),
        "suggested": selection_overview.suggested(run, found.choice.form),
    }
    return render(request, "training/rollouts.html", context, status=status)


@require_POST
@requires(Permission.TRAIN)
def write_dataset(request: PageRequest, run: int) -> HttpResponse:
    """The choice of the address as a dataset."""
    found, name = _run(request, run), request.POST.get("name", "").strip()
    try:
        choice = rollout_choice.read({key: request.GET[key] for key in CHOSEN if key in request.GET})
        made = write(name=name, run=found, choice=choice, actor=request.actor)
    except Refused as error:
        return _page(request, found, 422, not_written=error.problem, name=name)
    return redirect("training:dataset", request.project.slug, made.name, made.version)


@require_POST
@requires(Permission.TRAIN)
def drop_rollout(request: PageRequest, run: int, number: int, sample: int) -> HttpResponse:
    drop(result=_result(request, run, number, sample), reason=request.POST.get("reason", ""), actor=request.actor)
    return _back(request, run)


@require_POST
@requires(Permission.TRAIN)
def take_rollout_back(request: PageRequest, run: int, number: int, sample: int) -> HttpResponse:
    take_back(result=_result(request, run, number, sample), actor=request.actor)
    return _back(request, run)


def _back(request: PageRequest, run: int) -> HttpResponse:
    """To the list, under the choice that the address has."""
    address = reverse("training:rollouts", args=[request.project.slug, run])
    return redirect(f"{address}?{request.GET.urlencode()}#rollouts")


def _run(request: PageRequest, pk: int) -> EvalRun:
    rows = EvalRun.objects.select_related(
        "project", "version__agent", "task_set__environment_version__environment", "created_by"
    )
    return get_object_or_404(rows, project=request.project, pk=pk)


def _result(request: PageRequest, run: int, number: int, sample: int) -> Result:
    rows = Result.objects.select_related("run__project", "task").filter(run__project=request.project)
    return get_object_or_404(rows, run=run, run__split=Split.TRAIN, task__number=number, sample=sample)
