"""Evals and datasets that a request names, found in its project."""

from django.http import HttpRequest

from flywheel.accounts.access import keyed
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Missing, Refused, at_field, one
from flywheel.environments.models import RewardRecipe
from flywheel.environments.versions.reward_recipes import find_reward_recipe
from flywheel.evals.models import EvalRun
from flywheel.training.models import Dataset


def eval_of(request: HttpRequest, number: int | None) -> EvalRun | None:
    if number is None:
        return None
    with at_field("rollouts"):
        return one(EvalRun.objects.filter(project=keyed(request).project), pk=number)


def recipe_of(request: HttpRequest, ref: str) -> RewardRecipe | None:
    """The reward recipe that is meant; None for an empty reference."""
    if not ref:
        return None
    with at_field("reward"):
        return find_reward_recipe(keyed(request).project, ref)


def dataset_of(request: HttpRequest, name: str, version: int) -> Dataset:
    rows = Dataset.objects.filter(project=keyed(request).project).select_related("task_set", "created_by")
    return one(rows, name=name, version=version)


def dataset_by_ref(request: HttpRequest, ref: str, field: str = "dataset") -> Dataset | None:
    if not ref:
        return None
    name, at, text = ref.partition("@")
    version = number(text)
    if at and version is None:
        raise Refused(f"{ref[:100]!r} is not of the form name@version", field=field)
    with at_field(field):
        if version is not None:
            return dataset_of(request, name, version)
        rows = Dataset.objects.filter(project=keyed(request).project, name=name).select_related("task_set")
        newest = rows.order_by("-version").first()
        if newest is None:
            raise Missing(f"there is no dataset {name[:100]!r}")
        return newest
