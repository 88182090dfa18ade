"""Reward models that verifiers and recipes ask: looked up by name, frozen by their weights, refused where their
canaries fail; and who asks one."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from flywheel.accounts.models import Project
from flywheel.agents.models import RewardModel
from flywheel.core.verifiers import VerifierError, reward_model_rules, rubric
from flywheel.edge.numbers import number
from flywheel.environments.models import EnvironmentVersion, RewardRecipe

KIND = "reward_model"


def frozen(project: Project, verifier: Mapping[str, Any]) -> dict[str, Any]:
    """The verifier, or the recipe, with the digest of the weights in each part that asks a reward model.

    Raises VerifierError for one that is not there, that has other weights than the part says, that failed a canary,
    or that would pass answers that nobody wants.
    """
    if not rubric.has_parts(verifier):
        return dict(verifier)
    read = rubric.read(verifier).parts
    rows = zip(verifier["parts"], read, strict=True)
    return {**verifier, "parts": [_frozen(project, at, row, part) for at, (row, part) in enumerate(rows)]}


def models_of(project: Project, verifier: Mapping[str, Any]) -> dict[str, RewardModel]:
    """The reward models that a verifier or a recipe asks and that are still there, by the digest of their weights."""
    parts = rubric.read(verifier).parts if rubric.has_parts(verifier) else ()
    digests = [part.settings.get("digest", "") for part in parts if part.type == KIND]
    rows = RewardModel.objects.filter(project=project, weights__digest__in=digests).select_related("weights", "base")
    return {row.weights.digest: row for row in rows}


def verifiers_that_ask(model: RewardModel) -> QuerySet[EnvironmentVersion]:
    """Versions of environments whose verifier has it as a part, newest first."""
    rows = EnvironmentVersion.objects.filter(
        environment__project=model.project_id, verifier__parts__contains=[_part(model)]
    )
    return rows.select_related("environment").order_by("-pk")


def recipes_that_ask(model: RewardModel) -> QuerySet[RewardRecipe]:
    """Reward recipes that have it as a part, newest first."""
    return RewardRecipe.objects.filter(project=model.project_id, parts__contains=[_part(model)])


def _part(model: RewardModel) -> dict[str, str]:
    return {"type": KIND, "digest": model.weights.digest}


def _frozen(project: Project, at: int, row: Mapping[str, Any], part: rubric.Part) -> dict[str, Any]:
    if part.type != KIND:
        return dict(row)
    name, _, version = part.settings["model"].partition("@")
    rows = RewardModel.objects.filter(project=project, name=name, number=number(version) or 0)
    model = rows.select_related("weights").first()
    if model is None:
        newest = RewardModel.objects.filter(project=project).first()
        there = f"expected name@number, for example {newest}" if newest else "this project has none; train one first"
        raise VerifierError(f"parts.{at}.model: there is no reward model {part.settings['model'][:100]!r}; {there}")
    if problems := model.problems:
        raise VerifierError(f"parts.{at}.model: {model} failed its canaries: {'; '.join(problems)}")
    if problem := reward_model_rules.passing(model.canaries, part.settings["least"]):
        raise VerifierError(f"parts.{at}.least: {part.settings['least']:g} is too low for {model}: {problem}")
    if part.settings.get("digest", model.weights.digest) != model.weights.digest:
        short = part.settings["digest"][:12]
        raise VerifierError(
            f"parts.{at}.digest: {model} has the weights {model.weights.digest[:12]}, not {short}; leave it empty to "
            "take these"
        )
    return {**row, "digest": model.weights.digest}
