"""Pages of reward audits: where a reward stands, one output after the other to judge, and what came of it."""

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.references import find_version
from flywheel.core.evidence.reward_audit_rule import LEAST, MOST, RENEWAL, RULE, clean_passes
from flywheel.edge.htmx import answer
from flywheel.edge.jobs import State
from flywheel.edge.numbers import key, number
from flywheel.edge.paging import page_at
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, RewardRecipe, Split
from flywheel.environments.task_sets.task_set_references import find_task_set
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals.models import EvalRun, RewardAudit
from flywheel.evals.pages import reward_audit_desk
from flywheel.evals.reward_audits import audit_lifecycle
from flywheel.evals.reward_audits.reward_standing import (
    Judged,
    audits_of,
    overrides_of,
    renewable,
    runs_of,
    scores_of,
    standing,
)

OFFERED = 20
WANTED_ATTEMPTS = 2 * MOST
"""An eval that is started for an audit makes about so many: half of them may be alike, or pass alike."""
LEAST_SAMPLES = 4
"""So that a task's solve rate says something."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """Every audit, newest first."""
    page = page_at(request, audit_lifecycle.rows(request.project))
    return render(request, "evals/reward_audits.html", {"page": page})


@require_GET
@requires(Permission.VIEW)
def reward(request: PageRequest) -> HttpResponse:
    """Where the reward of one version on one task set stands, and what may be done about it."""
    if not request.GET.get("version") or not request.GET.get("task_set"):
        return redirect("evals:reward_audits", request.project.slug)
    judged = _judged(request, request.GET.dict())
    version, task_set = judged.version, judged.task_set
    assert task_set is not None
    train = task_set.members.filter(split=Split.TRAIN).count()
    context = {
        "version": version,
        "task_set": task_set,
        "judged": judged,
        "standing": standing(judged),
        "audits": audit_lifecycle.rows(request.project).filter(pk__in=audits_of(judged).values("pk"))[:OFFERED],
        "overrides": overrides_of(judged).select_related("created_by")[:OFFERED],
        **_offered(judged),
        "train": train,
        "samples": max(LEAST_SAMPLES, -(-WANTED_ATTEMPTS // max(train, 1))),
        "rule": RULE,
        "clean": clean_passes(0, 0, RULE.false_passes),
        "least": LEAST,
        "most": MOST,
        "size": audit_lifecycle.SIZE,
        "renewal": RENEWAL,
        "renews": renewable(judged),
    }
    return render(request, "evals/reward.html", context)


def _offered(judged: Judged) -> dict[str, Any]:
    """The evals whose outputs can be audited; of a recipe's, those that it has to score first, and where it does."""
    runs = list(runs_of(judged)[:OFFERED])
    if not judged.is_by_recipe:
        return {"runs": runs}
    jobs = list(scores_of(judged).select_related("run", "created_by")[:OFFERED])
    scored = {job.run_id for job in jobs if job.state == State.SUCCEEDED}
    begun = {job.run_id for job in jobs if not job.is_finished}
    return {
        "runs": [run for run in runs if run.pk in scored],
        "to_score": [(run, uuid.uuid4()) for run in runs if run.pk not in scored | begun],
        "scoring": [job for job in jobs if job.state != State.SUCCEEDED],
    }


@require_GET
@requires(Permission.VIEW)
def of_environment(request: PageRequest, name: str) -> HttpResponse:
    """Show the part of an environment's page on the audits of its verifiers."""
    environment = get_object_or_404(Environment, project=request.project, name=name)
    rows = audit_lifecycle.rows(request.project).filter(run__task_set__environment_version__environment=environment)
    context = {"environment": environment, "audits": rows[:OFFERED], "newest": environment.versions.last()}
    return render(request, "evals/_reward_audits.html", context)


@require_POST
@requires(Permission.BUILD)
def begin(request: PageRequest) -> HttpResponse:
    rows = EvalRun.objects.select_related("project", "version__agent", "task_set__environment_version__environment")
    run = get_object_or_404(rows, project=request.project, pk=key(request.POST.get("run", "")))
    size, seed = number(request.POST.get("size", "")) or 0, number(request.POST.get("seed", "1"))
    # What is no number is refused as one that is out of range.
    audit, _ = audit_lifecycle.begin(
        run=run,
        actor=request.actor,
        recipe=_recipe(request, request.POST.dict()),
        size=size,
        seed=-1 if seed is None else seed,
        is_renewal="renewal" in request.POST,
    )
    return redirect("evals:reward_audit", request.project.slug, audit.pk)


@require_GET
@requires(Permission.VIEW)
def audit(request: PageRequest, audit: int) -> HttpResponse:
    """The desk while it is open, blind; its result once it is finished."""
    found = _audit(request, audit)
    if found.finished_at is not None:
        return render(request, "evals/reward_audit_result.html", reward_audit_desk.result(found))
    context = reward_audit_desk.desk(found, request.actor, place=number(request.GET.get("item", "")) or 0)
    return answer(request, "evals/reward_audit.html", "evals/_audit_desk.html", context)


@require_POST
@requires(Permission.REVIEW)
def judge(request: PageRequest, audit: int, place: int) -> HttpResponse:
    """Keep the answer and show the next output that waits."""
    found = _audit(request, audit)
    item = get_object_or_404(found.items, place=place)
    notice = ""
    try:
        if not audit_lifecycle.judge(
            item=item, actor=request.actor, answer=request.POST.get("answer", ""), note=request.POST.get("note", "")
        ):
            notice = f"Output {place} was judged by someone else in the meantime; nothing was changed."
    except Refused as error:
        return _desk(request, found, place=place, notice=f"Not saved: {error.problem}.")
    return _desk(request, found, after=place, notice=notice)


@require_POST
@requires(Permission.REVIEW)
def undo(request: PageRequest, audit: int) -> HttpResponse:
    found = _audit(request, audit)
    item = audit_lifecycle.undo(audit=found, actor=request.actor)
    notice = "" if item else "You have no judgement to undo here."
    return _desk(request, found, place=item.place if item else 0, notice=notice)


@require_POST
@requires(Permission.REVIEW)
def finish(request: PageRequest, audit: int) -> HttpResponse:
    found = _audit(request, audit)
    audit_lifecycle.finish(audit=found, actor=request.actor)
    return redirect("evals:reward_audit", request.project.slug, found.pk)


@require_POST
@requires(Permission.APPROVE)
def override(request: PageRequest) -> HttpResponse:
    """Leave to train on a reward whose audit is not green."""
    given = request.POST.dict()
    judged = _judged(request, given)
    audit_lifecycle.override(judged=judged, actor=request.actor, reason=given.get("reason", ""))
    return redirect(f"{reverse('evals:reward', args=[request.project.slug])}?{judged.query}")


def _desk(request: PageRequest, found: RewardAudit, **where: Any) -> HttpResponse:
    if not request.htmx or found.finished_at is not None:
        response = redirect("evals:reward_audit", request.project.slug, found.pk)
        return HttpResponse(headers={"HX-Redirect": response.url}) if request.htmx else response
    return render(request, "evals/_audit_desk.html", reward_audit_desk.desk(found, request.actor, **where))


def _judged(request: PageRequest, given: dict[str, str]) -> Judged:
    """The version, task set and reward recipe that were named; 404 where there is no such thing."""
    version = find_version(request.project, given.get("version", ""))
    return Judged.now(version, find_task_set(request.project, given.get("task_set", "")), _recipe(request, given))


def _recipe(request: PageRequest, given: dict[str, str]) -> RewardRecipe | None:
    return find_reward_recipe(request.project, given["reward"]) if given.get("reward") else None


def _audit(request: PageRequest, pk: int) -> RewardAudit:
    return get_object_or_404(audit_lifecycle.rows(request.project), pk=pk)
