"""Runs that are repeated: launched again with the very same base, data, tasks, settings, tuning and seed.

`TrainingRun.spec_digest` is of exactly these, so two runs of one digest repeat each other, whoever launched them.
"""

import uuid
from dataclasses import dataclass, replace
from itertools import count, islice

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.edge.refusals import Refused, Stale
from flywheel.training.datasets import dataset_builder
from flywheel.training.launch import run_control, run_sweeps
from flywheel.training.models import TrainingRun

SEEDS = (2, 5)
"""The fewest and the most other seeds that are launched at once."""


@dataclass(frozen=True, slots=True)
class Repeat:
    run: TrainingRun
    is_earlier: bool
    has_same_weights: bool | None
    """Whether the two made the same weights, bit by bit; None until both have made some."""


def repeats_of(run: TrainingRun) -> list[Repeat]:
    """The project's other runs of the same spec, the oldest first."""
    same = TrainingRun.objects.filter(project=run.project_id, spec_digest=run.spec_digest).exclude(pk=run.pk)
    rows = same.select_related("produced__weights", "produced__adapter").order_by("pk")
    return [Repeat(each, each.pk < run.pk, _has_same_weights(run.trained, each.trained)) for each in rows]


def _has_same_weights(one: Artifact | None, other: Artifact | None) -> bool | None:
    return _tensors(one) == _tensors(other) if one and other else None


def _tensors(artifact: Artifact) -> dict[str, str]:
    """Digests of the files that hold weights. The others may name a path or a library's release."""
    return {name: entry["sha256"] for name, entry in artifact.manifest.items() if name.endswith(".safetensors")}


def repeat(run: TrainingRun, *, key: uuid.UUID, actor: Actor, seed: int | None = None) -> tuple[TrainingRun, bool]:
    """Launch it again, under another seed if one is given. Returns the new run and whether it is new.

    Raises Refused as a launch does, and for files that are gone; Stale for a run that is not over.
    """
    request = _request(run, key)
    return run_control.launch(request if seed is None else replace(request, seed=seed), actor)


def repeat_with_other_seeds(run: TrainingRun, *, number: int, key: uuid.UUID, actor: Actor) -> list[TrainingRun]:
    """Launch it under the next `number` seeds that no run like it has: a sweep, of which the same key gives the same
    runs. After the largest seed comes 0. Raises as `repeat` does."""
    rows = ("base", "teacher", "reward_recipe", "dataset", "replay", "task_set")
    names = (*rows, "algorithm", "settings", "tuning", "environment_weights")
    alike = {name: getattr(run, name) for name in names}
    taken = set(TrainingRun.objects.filter(project=run.project_id, **alike).values_list("seed", flat=True))
    others = ((run.seed + more) % (run_control.MAX_SEED + 1) for more in count(1))
    seeds = list(islice((seed for seed in others if seed not in taken), number))
    return run_sweeps.launch_sweep(_request(run, key), {"seed": seeds}, actor)[0]


def _request(run: TrainingRun, key: uuid.UUID) -> run_control.LaunchRequest:
    if not run.is_finished:
        raise Stale(f"{run} is {run.state}; repeat it when it has finished")
    for field, version in (("base", run.base), ("teacher", run.teacher)):
        for artifact in filter(None, (version.weights, version.adapter) if version else ()):
            if gone := artifacts.missing(artifact):
                raise Refused(f"{gone[0]} of {version} is missing from the storage", field=field)
    for field, dataset in (("dataset", run.dataset), ("replay", run.replay)):
        try:
            if dataset:
                dataset_builder.open_rows(dataset).close()
        except FileNotFoundError:
            raise Refused(f"the rows of {dataset} are missing from the storage", field=field) from None
    return run_control.LaunchRequest(
        key=key,
        base=run.base,
        algorithm=run.algorithm,
        task_set=run.task_set,
        teacher=run.teacher,
        reward=run.reward_recipe,
        dataset=run.dataset,
        replay=run.replay,
        environment_weights=run.environment_weights,
        settings=run.settings,
        has_all_settings=True,
        tuning=run.tuning,
        seed=run.seed,
        budget=run.budget,
        override_reason=run.override_reason or f"repeats {run}",
    )
