"""Reward recipes: the project's, one version of one, and the form of the next."""

from django.contrib import messages
from django.db.models import OuterRef, Subquery
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.agents.models import Version
from flywheel.core.errors import FieldError
from flywheel.core.verifiers.rubric import REWARD
from flywheel.edge.htmx import answer
from flywheel.edge.paging import page_at
from flywheel.environments.models import RewardRecipe, TaskSet
from flywheel.environments.pages.verifier_editor.reward_model_views import offered
from flywheel.environments.pages.verifier_editor.verifier_forms import Draft
from flywheel.environments.versions import reward_recipes

FIRST = (
    {"type": "environment", "name": "task", "weight": 1},
    {"type": "length", "name": "length", "weight": -0.5, "free": 64, "most": 96},
)
"""Parts that a new recipe begins with."""
OFFERED = 50
"""Versions and task sets whose audit can be looked at, the newest."""


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """Every recipe by its newest version, newest first."""
    own = request.project.reward_recipes
    newest = own.filter(name=OuterRef("name")).order_by("-number").values("pk")[:1]
    rows = own.filter(pk=Subquery(newest)).select_related("created_by")
    return render(request, "environments/reward_recipes.html", {"page": page_at(request, rows)})


@require_GET
@requires(Permission.VIEW)
def recipe(request: PageRequest, name: str, number: int) -> HttpResponse:
    """One version, with the others of its name."""
    rows = RewardRecipe.objects.filter(project=request.project, name=name)
    found = get_object_or_404(rows.select_related("created_by"), number=number)
    others = page_at(request, rows.select_related("created_by"))
    context = {"recipe": found, "page": others}
    if not found.rubric.is_own_verdict:
        versions = Version.objects.filter(agent__project=request.project).select_related("agent")
        context |= {
            "versions": versions.order_by("-pk")[:OFFERED],
            "task_sets": TaskSet.objects.filter(project=request.project).order_by("-pk")[:OFFERED],
        }
    return render(request, "environments/reward_recipe.html", context)


@require_http_methods(["GET", "POST"])
@requires(Permission.BUILD)
def make(request: PageRequest) -> HttpResponse:
    """A form of parts, as a verifier's: every button sends the whole draft, and `do` says what it wants."""
    if request.method == "GET":
        like = request.GET.get("of", "")
        found = reward_recipes.find_reward_recipe(request.project, like) if like else None
        draft = Draft.of_recipe(found.parts if found else FIRST)
        return _page(request, draft, found.name if found else "")
    draft, name, do = (
        Draft.read(request.POST.dict(), REWARD),
        request.POST.get("name", "")[:200],
        request.POST.get("do"),
    )
    problem = ""
    try:
        if do == "save":
            return _save(request, draft, name)
        draft.change(do or "", request.POST.get("kind", ""))
    except FieldError as error:
        if error.field == "name":
            problem = error.problem
        else:
            draft.refuse(error)
        return _page(request, draft, name, problem, 422)
    return _page(request, draft, name)


def _save(request: PageRequest, draft: Draft, name: str) -> HttpResponse:
    made, is_new = reward_recipes.reward_recipe(
        project=request.project, name=name, parts=draft.spec["parts"], actor=request.actor
    )
    if is_new:
        messages.success(request, f"Saved as {made}.")
    else:
        messages.info(request, f"No changes: {made} already has these parts.")
    address = reverse("environments:reward_recipe", args=[request.project.slug, made.name, made.number])
    return HttpResponse(headers={"HX-Redirect": address}) if request.htmx else redirect(address)


def _page(request: PageRequest, draft: Draft, name: str, problem: str = "", status: int = 200) -> HttpResponse:
    context = {"draft": draft, "name": name, "problem": problem, "reward_models": offered(request.project, draft)}
    return answer(request, "environments/recipe_form.html", "environments/_recipe_form.html", context, status)
