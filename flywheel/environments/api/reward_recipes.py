"""Reward recipes for programs: list them, make a version, read one."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.models import RewardRecipe
from flywheel.environments.versions.reward_recipes import reward_recipe

router = Router(tags=["environments"])


class RewardRecipeIn(Body):
    name: str
    """Lower-case letters, digits, `-` and `_`. An existing name makes the recipe's next version."""
    parts: list[dict[str, Any]]
    """`[{"type", "name", "weight", "required", "shapes", …}]`, types and their settings as in `verifier-parts`. The
    part `environment` is the task's own verifier. What `shapes` is added to the score times its weight, which may be
    negative."""


class RewardRecipeOut(Schema):
    name: str
    version: int
    parts: list[dict[str, Any]]
    digest: str
    """SHA-256 of the parts."""
    passes_as_verifier: bool
    """Whether it passes exactly what the task's verifier passes, so that the verifier's reward audit covers it."""
    created_by: Ref
    created_at: datetime

    @staticmethod
    def resolve_version(row: RewardRecipe) -> int:
        return row.number

    @staticmethod
    def resolve_passes_as_verifier(row: RewardRecipe) -> bool:
        return row.rubric.is_own_verdict


@router.get("/reward-recipes", response=page_of(RewardRecipeOut), auth=Key(Scope.READ))
def list_reward_recipes(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List all versions of the project's reward recipes, newest first."""
    rows = RewardRecipe.objects.filter(project=keyed(request).project).select_related("created_by")
    return paginate(rows, query)


@router.post("/reward-recipes", response={200: RewardRecipeOut, 201: RewardRecipeOut}, auth=Key(Scope.BUILD))
def make_reward_recipe(request: HttpRequest, wanted: RewardRecipeIn) -> Status[RewardRecipe]:
    """Create a recipe or its next version: 201 for a new one, 200 with the newest if nothing changed."""
    made, is_new = reward_recipe(
        project=keyed(request).project, name=wanted.name, parts=wanted.parts, actor=keyed(request).actor
    )
    return Status(201 if is_new else 200, made)


@router.get("/reward-recipes/{name}/{version}", response=RewardRecipeOut, auth=Key(Scope.READ))
def get_reward_recipe(request: HttpRequest, name: str, version: int) -> RewardRecipe:
    """Return one version of a recipe."""
    rows = RewardRecipe.objects.filter(project=keyed(request).project).select_related("created_by")
    return one(rows, name=name, number=version)
