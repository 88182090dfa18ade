"""Old rollouts under another verifier or a reward recipe: asked for on a run's page, shown on a page of its own."""

import uuid

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import job_pages
from flywheel.edge.numbers import form_key, number
from flywheel.environments.models import EnvironmentVersion
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun, Rescore
from flywheel.evals.reward_audits.reward_standing import Judged
from flywheel.evals.runs.rollout_looks import note_look, refuse_sealed


@require_GET
@requires(Permission.VIEW)
def rescores(request: PageRequest, pk: int) -> HttpResponse:
    """Show a run's other verifiers: who judged its rollouts again, and the form that asks for it."""
    run = _run(request, pk)
    refuse_sealed(run)
    old = run.task_set.environment_version
    context = {
        "run": run,
        "old": old,
        "versions": old.environment.versions.select_related("environment").order_by("-number")[:20],
        "jobs": run.rescores.select_related("environment_version__environment", "recipe", "created_by")[:20],
        "key": uuid.uuid4(),
    }
    return render(request, "evals/_rescores.html", context)


@require_POST
@requires(Permission.BUILD)
def start(request: PageRequest, pk: int) -> HttpResponse:
    run, key = _run(request, pk), form_key(request.POST.get("key", ""))
    if reward := request.POST.get("reward", ""):
        recipe = find_reward_recipe(request.project, reward)
        job, _ = run_rescores.submit_recipe(run=run, recipe=recipe, actor=request.actor, key=key)
        return redirect("evals:rescore", request.project.slug, job.pk)
    wanted = request.POST.get("version", "")
    versions = EnvironmentVersion.objects.filter(environment=run.task_set.environment_version.environment)
    version = versions.filter(number=number(wanted) or 0).first()
    if version is None:
        messages.error(request, f"Nothing was scored. Version {wanted[:20]!r} is unknown.")
        return redirect("evals:run", request.project.slug, pk)
    job, _ = run_rescores.submit(run=run, version=version, actor=request.actor, key=key)
    return redirect("evals:rescore", request.project.slug, job.pk)


@require_GET
@requires(Permission.VIEW)
def rescore(request: PageRequest, rescore: int) -> HttpResponse:
    """Show the other verifier's changes: counts, and the attempts, flips first."""
    job = _find(request, rescore)
    note_look(job.run, request.actor)
    context = {
        "job": job,
        "run": job.run,
        "old": job.run.task_set.environment_version,
        "new": job.judge_label,
        "reward": Judged.now(job.run.version, job.run.task_set, job.recipe) if job.recipe else None,
        "changes": run_rescores.changes(job) if job.done else None,
        "rows": run_rescores.ordered(job)[:200],
    }
    return render(request, "evals/rescore.html", context)


def _run(request: PageRequest, pk: int) -> EvalRun:
    rows = EvalRun.objects.select_related("task_set__environment_version__environment", "project")
    return get_object_or_404(rows, project=request.project, pk=pk)


def _find(request: PageRequest, pk: int) -> Rescore:
    rows = Rescore.objects.select_related(
        "project",
        "run__version__agent",
        "run__task_set__environment_version__environment",
        "environment_version__environment",
        "recipe",
        "created_by",
    )
    return get_object_or_404(rows, project=request.project, pk=pk)


live = job_pages.live(_find, "evals/_rescoring.html", requires(Permission.VIEW))
cancel = job_pages.cancel(_find, "evals:rescore", requires(Permission.BUILD))
resume = job_pages.resume(_find, "evals:rescore", requires(Permission.BUILD))
