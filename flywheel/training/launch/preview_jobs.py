"""Previews of what would be learnt, which a worker makes (`jobs/training/row_previews.py`): rows in a base's tokens.

A preview is named by what it is made of, so that the same question has its answer at once.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Version
from flywheel.core import recipes
from flywheel.core.digests import digest
from flywheel.edge.refusals import Refused, check_choice
from flywheel.environments.models import TaskSet
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch.run_control import check_settings, untrainable, usual_mode
from flywheel.training.models import Dataset, TokenPreview

NAMESPACE = uuid.UUID("6a1f1d0e-93f0-4a53-8c43-0f2ad3b4a6c1")
"""Of the idempotency keys, which are made of what a preview is of."""


def preview(
    *,
    base: Version,
    dataset: Dataset,
    actor: Actor,
    task_set: TaskSet | None = None,
    algorithm: str = "",
    settings: Mapping[str, Any] | None = None,
) -> tuple[TokenPreview, bool]:
    """Let a worker make the preview, unless it is there. Returns it and whether it is new. Raises Refused.

    Without an algorithm it is the first that learns from such rows; settings are completed as those of a run. The set
    is the dataset's own, or must be given.
    """
    recipe = _recipe(dataset, algorithm)
    task_set = dataset.task_set or task_set
    if task_set is None:
        raise Refused(f"{dataset} comes from elsewhere: choose the task set that will measure it", field="task_set")
    if base.agent.project_id != dataset.project_id or task_set.project_id != dataset.project_id:
        raise Refused(f"{dataset} belongs to another project", field="dataset")
    if problem := untrainable(base):
        raise Refused(problem, field="base")
    if problem := dataset_builder.unfit(dataset, base):
        raise Refused(f"{problem}; build one for {base}", field="dataset")
    complete = check_settings(recipe, base, {"mode": usual_mode(base)}, dict(settings or {}))
    digests = {"base": base.digest, "dataset": dataset.digest, "task_set": task_set.digest}
    content = {"dataset": str(dataset), "algorithm": recipe.name, "settings": complete, **digests}
    return TokenPreview.submit(
        key=uuid.uuid5(NAMESPACE, digest(content)),
        actor=actor,
        project=dataset.project,
        base=base,
        dataset=dataset,
        task_set=task_set,
        algorithm=recipe.name,
        settings=complete,
    )


def _recipe(dataset: Dataset, algorithm: str) -> recipes.Algorithm:
    if not algorithm:
        return recipes.offered(data=dataset.kind)
    check_choice(algorithm, recipes.ALGORITHMS, field="algorithm")
    recipe = recipes.ALGORITHMS[algorithm]
    if recipe.data != dataset.kind:
        raise Refused(
            f"{dataset} holds {dataset.get_kind_display()}; {recipe.label} wants {Dataset.Kind(recipe.data).label}",
            field="algorithm",
        )
    return recipe
