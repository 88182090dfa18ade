"""Reward recipes for programs: list them, make a version, read one; and a reward model with all that asks it."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.api.reward_models import RewardModelOut
from flywheel.agents.models import RewardModel
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema
from flywheel.environments.models import EnvironmentVersion, RewardRecipe
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.reward_recipes import reward_recipe

router = Router(tags=["environments"])
LISTED = 50
"""Verifiers and recipes that use a reward model."""


class RewardRecipeIn(Body):
    name: str
    """Lower-case letters, digits, `-` and `_`. An existing name makes the recipe's next version."""
    parts: list[dict[str, Any]]
    """`[{"type", "name", "weight", "required", "shapes", …}]`, types and their settings as in `verifier-parts`. The
    part `environment` is the task's own verifier. What `shapes` is added to the score times its weight, which may be
    negative. A part with weight 0 that is not required is watched: measured, never learnt from. A watched judge is
    asked about `sample` of the attempts, 0.1 unless set."""


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


class RewardModelDetailOut(RewardModelOut):
    runs: list[int]
    """Ids of the training runs that made it."""
    verifiers: list[Ref]
    """Environment versions whose verifier uses it, newest first."""
    recipes: list[Ref]
    """Reward recipes that use it, newest first."""

    @staticmethod
    def resolve_runs(row: RewardModel) -> list[int]:
        return list(row.training_runs.order_by("-pk").values_list("pk", flat=True))

    @staticmethod
    def resolve_verifiers(row: RewardModel) -> list[EnvironmentVersion]:
        return list(reward_parts.verifiers_that_ask(row)[:LISTED])

    @staticmethod
    def resolve_recipes(row: RewardModel) -> list[RewardRecipe]:
        return list(reward_parts.recipes_that_ask(row)[:LISTED])


@router.get("/reward-models/{name}/{number}", response=RewardModelDetailOut, auth=Key(Scope.READ))
def get_reward_model(request: HttpRequest, name: str, number: int) -> RewardModel:
    """Return one reward model: its canaries, the runs that made it, and what uses it."""
    rows = RewardModel.objects.filter(project=keyed(request).project)
    return one(rows.select_related("weights", "base__agent", "created_by"), name=name, number=number)


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
