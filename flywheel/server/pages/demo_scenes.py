"""The demo's story, one scene at a time: what a visitor does next, in one line above every page of the demo.

A scene is over when its act is done, whoever looks: it is read from the project's own rows, so that a restart, another
browser or another order of clicks never loses the thread.
"""

from dataclasses import dataclass

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from flywheel.accounts import demo_accounts
from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.demo_accounts import PROJECT, ROLES
from flywheel.accounts.models import Permission, Project
from flywheel.evals.models import RewardAudit
from flywheel.failures.models import Failure
from flywheel.promotions.models import Candidate
from flywheel.training.models import TrainingRun

SETS = 2
"""Task sets of the story."""
REVIEWED = 5
"""Failures that a visitor reviews before the story goes on."""


@dataclass(frozen=True, slots=True)
class Scene:
    number: int
    words: str
    act: str
    """What the button says."""
    username: str
    """Of the account that does it."""
    url: str
    is_passing: bool = False
    """Whether it may end while the visitor stays on one page, so that its line looks again by itself."""

    total = 5


@require_GET
@requires(Permission.VIEW)
def scene(request: PageRequest) -> HttpResponse:
    """Show the line again while a scene passes by itself. Empty where there is none, or it was hidden."""
    is_told = demo_accounts.others(request) and not demo_accounts.is_dismissed(request)
    found = scene_of(request.project) if is_told else None
    return render(request, "_demo_scene.html", {"scene": found}) if found else HttpResponse()


def scene_of(project: Project) -> Scene | None:
    """Return the scene that the demo's project is at; None for every other project."""
    if not project.is_demo or project.slug != PROJECT:
        return None

    def at(name: str, *rest: int) -> str:
        return reverse(name, args=[project.slug, *rest])

    run = TrainingRun.objects.filter(project=project, created_by__username__in=ROLES).order_by("-pk").first()
    if run is None and (left := REVIEWED - _reviewed(project)) > 0:
        words = (
            f"Review {left} {'failure' if left == 1 else 'failures'}: press y to confirm what the detector found, "
            "c to enter what was right, x to turn it into a test."
        )
        return Scene(1, words, "Review", "reviewer", at("failures:queue"), is_passing=True)
    if run is None and not _is_measured(project):
        words = "An earlier run still trains, and the live version tries the new tasks. Then the form is filled in."
        return Scene(2, words, "Watch", "trainer", at("training:index"), is_passing=True)
    if run is None:
        words = "Your team has labelled the rest of last week. Train on all of it: the form is filled in."
        return Scene(2, words, "Open the form", "trainer", at("training:launch"))
    candidate = run.candidates.order_by("-pk").first()
    if candidate is None and run.is_finished and run.produced_id is None:
        return Scene(
            2, f"{run} ended without a new version. Train again.", "Open the form", "trainer", at("training:launch")
        )
    if candidate is None:
        words = "Watch it learn. The line to look at is success on held-out tasks, which it never trains on."
        return Scene(3, words, "Watch", "trainer", at("training:run", run.pk), is_passing=True)
    if candidate.state == Candidate.State.WAITING:
        words = "Decide: what got better, what broke, and what the gate says of it."
        return Scene(4, words, "Open the candidate", "approver", at("promotions:candidate", candidate.pk))
    if candidate.state != Candidate.State.PROMOTED:
        words = f"{candidate.version} was not promoted. Label more failures, or train again."
        return Scene(2, words, "Open the form", "trainer", at("training:launch"))
    if candidate.agent.live_id == candidate.version_id:
        words = f"{candidate.version} is live and answers new customers. Watch production rise. Roll back: it falls."
    else:
        words = f"{candidate.agent.live} answers again, and production falls. This is the end: look around."
    return Scene(5, words, "Watch production", "approver", at("overview:index"))


def _is_measured(project: Project) -> bool:
    """Whether the story's own run is over, and both task sets have their baseline and audit."""
    runs = TrainingRun.objects.filter(project=project).exclude(created_by__username__in=ROLES)
    audits = RewardAudit.objects.filter(project=project).exclude(finished_at=None)
    return runs.exclude(finished_at=None).exists() and audits.count() >= SETS


def _reviewed(project: Project) -> int:
    return Failure.objects.filter(project=project, current=True, labelled_by__username__in=ROLES).count()
