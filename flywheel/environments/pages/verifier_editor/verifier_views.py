"""The editor of an environment's verifier: compose, try on examples, save as the next version."""

import uuid
from contextlib import suppress

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.core.errors import FieldError
from flywheel.edge import job_pages
from flywheel.edge.htmx import answer
from flywheel.edge.jobs import StaleState
from flywheel.edge.numbers import key
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, EnvironmentVersion, Proving, Trial
from flywheel.environments.pages.verifier_editor.reward_model_views import offered
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.environments.proofs import labelled_attempts, proof_jobs
from flywheel.environments.versions import trials
from flywheel.environments.versions.environment_versions import environment_version, latest


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def verifier(request: PageRequest, name: str) -> HttpResponse:
    """A form of parts. Every button sends the whole draft; `do` says what it wants."""
    row = _environment(request, name)
    version = latest(row)
    if request.method == "GET":
        trajectory = request.GET.get("trajectory", "")
        tasks = [] if trajectory else trials.suggested(row)
        return _page(request, row, version, Draft.of(version, tasks, trajectory), None)
    draft = Draft.read(request.POST.dict())
    trial = row.trials.filter(pk=key(request.POST.get("trial", "")) or 0).first()
    do = request.POST.get("do", "")
    try:
        if do == "save":
            return _save(request, row, version, draft)
        if do == "try":
            trial = trials.submit(
                environment=row,
                verifier=draft.spec,
                actor=request.actor,
                key=_key(request),
                tasks=draft.numbers,
                rollouts=draft.count,
                trajectories=draft.trace_ids,
            )
        else:
            draft.change(do, request.POST.get("kind", ""))
    except FieldError as error:
        draft.refuse(error)
        return _page(request, row, version, draft, trial, status=422)
    return _page(request, row, version, draft, trial)


def _save(request: PageRequest, row: Environment, version: EnvironmentVersion, draft: Draft) -> HttpResponse:
    made = environment_version(environment=row, actor=request.actor, config=version.config, verifier=draft.spec)
    if made == version:
        messages.info(request, f"No changes: {made} already has this verifier.")
    else:
        messages.success(request, proof_jobs.proof_notice(row, made))
    address = reverse("environments:environment", args=[request.project.slug, row.name])
    return HttpResponse(headers={"HX-Redirect": address}) if request.htmx else redirect(address)


def _page(
    request: PageRequest,
    row: Environment,
    version: EnvironmentVersion,
    draft: Draft,
    trial: Trial | None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "environment": row,
        "version": version,
        "draft": draft,
        "trial": trial,
        "is_of_another": trial is not None and not draft.is_of(trial.verifier),
        "is_saved": draft.is_of(Draft.of(version, []).spec),
        "key": uuid.uuid4(),
        "reward_models": offered(request.project, draft),
    }
    if request.method == "GET":
        probes = labelled_attempts.probes_of(version)
        context |= {"probes": probes, "waiting_probes": sum(not probe.is_judged for probe in probes)}
    return answer(request, "environments/verifier.html", "environments/_verifier.html", context, status)


@require_GET
@requires(Permission.BUILD)
def trial(request: PageRequest, trial: int) -> HttpResponse:
    """Answer the editor's poll, every second while a verifier is tried."""
    return render(request, "environments/_trial.html", {"trial": _trial(request, trial)})


@require_POST
@requires(Permission.BUILD)
def stop_trial(request: PageRequest, trial: int) -> HttpResponse:
    """Let the worker stop; what it said by then is shown on."""
    found = _trial(request, trial)
    with suppress(StaleState):  # it was quicker
        found.cancel(request.actor)
    return render(request, "environments/_trial.html", {"trial": _trial(request, trial)})


@require_POST
@requires(Permission.BUILD)
def prove(request: PageRequest, name: str) -> HttpResponse:
    """Ask for the proofs that wait; with `measure`, for those in which a model is asked for recorded results; with
    `probes`, for those whose labelled attempts were not judged yet."""
    row = _environment(request, name)
    version = latest(row)
    proof_jobs.forget_spoiled(row)
    if "measure" in request.POST:
        proof_jobs.measure_again(row)
    if "probes" in request.POST:
        labelled_attempts.let_wait(version)
    if proof_jobs.waiting(row, version).exists():
        proof_jobs.ask(row, request.actor)
    else:
        messages.info(request, f"No tasks are waiting for a proof under {version}.")
    return redirect("environments:environment", request.project.slug, row.name)


def _environment(request: PageRequest, name: str) -> Environment:
    return get_object_or_404(Environment.objects.select_related("agent"), project=request.project, name=name)


def _trial(request: PageRequest, pk: int) -> Trial:
    return get_object_or_404(Trial.objects.select_related("environment"), project=request.project, pk=pk)


def _key(request: PageRequest) -> uuid.UUID:
    try:
        return uuid.UUID(request.POST.get("key", ""))
    except ValueError:
        raise Refused("the form is incomplete: load the page again") from None


def _proving(request: PageRequest, pk: int) -> Proving:
    return get_object_or_404(Proving.objects.select_related("environment"), project=request.project, pk=pk)


proving_live = job_pages.live(
    _proving, "environments/_proving.html", requires(Permission.VIEW), lambda _, job: {"proving": job}
)
stop_proving = job_pages.cancel(
    _proving, "environments:environment", requires(Permission.BUILD), of=lambda job: [job.environment.name]
)
