"""Reward recipes by `name@version`: the next version of one, and what a reference means."""

import re
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.references import SHOWN, UnknownReference, listed
from flywheel.core.digests import digest
from flywheel.core.envs import build
from flywheel.core.envs.wrappers.rubric_environment import check_parts
from flywheel.core.verifiers import VerifierError, rubric
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion, RewardRecipe
from flywheel.environments.proofs import judge_endpoints
from flywheel.environments.versions import reward_parts
from flywheel.environments.versions.environment_versions import check_name

_FORM = re.compile(r"(?P<name>[\w-]+)(?:@(?P<number>\d{1,9}))?", re.ASCII)


@transaction.atomic
def reward_recipe(
    *, project: Project, name: str, parts: list[dict[str, Any]], actor: Actor
) -> tuple[RewardRecipe, bool]:
    """Return the version of the recipe with these parts, and whether it is new: its newest where nothing changed, else
    the next number. Raises Refused, and VerifierError which names the part and its field."""
    check_name(name)
    spec = {"kind": rubric.REWARD, "parts": parts}
    rubric.read(spec)
    judge_endpoints.check(project, spec)
    parts = reward_parts.frozen(project, spec)["parts"]
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    newest, content = project.reward_recipes.filter(name=name).order_by("-number").first(), digest(parts)
    if newest and newest.digest == content:
        return newest, False
    made = RewardRecipe.objects.create(
        project=project,
        name=name,
        number=newest.number + 1 if newest else 1,
        parts=parts,
        digest=content,
        created_by=actor.user,
    )
    actor.record(project=project, action="environments.reward_recipe", subject=made, digest=content)
    return made, True


def check_goes_with(recipe: RewardRecipe, version: EnvironmentVersion) -> None:
    """Raise Refused for a recipe that could not judge in this version of an environment."""
    try:
        judge_endpoints.check(recipe.project, recipe.spec)
        check_parts(build(version.environment.kind, version.config, version.verifier), recipe.rubric)
    except VerifierError as error:
        raise Refused(f"{recipe} does not go with {version}: {error}", field="reward") from error


def find_reward_recipe(project: Project, ref: str) -> RewardRecipe:
    """The recipe that `name@version` means, or the newest of a name alone. Raises UnknownReference."""
    match = _FORM.fullmatch(ref.strip())
    if match is None:
        raise UnknownReference(f"{ref[:100]!r} is not of the form recipe@version")
    rows = project.reward_recipes.filter(name=match["name"]).order_by("-number")
    found = (rows.filter(number=int(match["number"])) if match["number"] else rows).first()
    if found is not None:
        return found
    if numbers := [str(number) for number in rows.values_list("number", flat=True)[: SHOWN + 1]]:
        raise UnknownReference(f"{match['name']} has no version {match['number']}; it has {listed(numbers)}")
    names = list(project.reward_recipes.order_by("name").values_list("name", flat=True).distinct())
    there_are = f"this project has {listed(names)}" if names else "this project has none yet, make one first"
    raise UnknownReference(f"there is no reward recipe {match['name']!r}; {there_are}")
