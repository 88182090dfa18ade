"""Several datasets as one: a run that learns in several environments at once, each with its weight.

A mix is a dataset like any other: frozen rows, named by their content, checked against every held-out set. The first of
its parts is the one by whose held-out tasks a run on it is compared; what it does to the others is evaluated beside.

Each row says which environment it belongs to, and its task's name begins with that environment's, since tasks of
different environments bear the same numbers. Rows that were uploaded or come of trajectories belong to none; they are
told of the first part's. The mix has as many rows as its parts together. A part whose weight gives
it more rows than it has is gone through several times, one that gets fewer gives a sample: seeded by the content, so
that the same parts and weights are the same mix.
"""

import json
import math
import random
from collections.abc import Sequence
from typing import Any

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.core.digests import digest
from flywheel.edge.refusals import Refused
from flywheel.environments.versions.environment_versions import check_name
from flywheel.training.datasets import contamination_checks, dataset_builder, dataset_files
from flywheel.training.datasets.dataset_files import Draft
from flywheel.training.models import Dataset

MOST_PARTS = 20
HEAVIEST = 1_000_000
MOST_TIMES = 100
"""So often at most a part's rows come again."""

Part = tuple[Dataset, float]


@transaction.atomic
def mix(*, name: str, parts: Sequence[Part], actor: Actor) -> Dataset:
    """Keep the mix as the next version of a dataset, or return the one that has its rows already.

    Raises Refused where the parts do not go together, or where one has a held-out task of another.
    """
    check_name(name)
    kept = dataset_files.keep(name, draft(parts), actor)
    contamination_checks.check_all(kept)
    for task_set in kept.task_sets:
        if problem := contamination_checks.refusal(contamination_checks.checked(kept, task_set), task_set):
            raise Refused(problem, field="parts")
    return kept


def draft(parts: Sequence[Part]) -> Draft:
    """The rows of the mix, and its recipe. Raises Refused."""
    check(parts)
    counts = shares([part.rows for part, _ in parts], [weight for _, weight in parts])
    drawn = random.Random(digest([[part.digest, weight] for part, weight in parts]))
    rows: list[dict[str, Any]] = []
    first = parts[0][0]
    for (part, _), count in zip(parts, counts, strict=True):
        try:
            with dataset_builder.open_rows(part) as file:
                own = [_placed(json.loads(line), part, first) for line in file]
        except FileNotFoundError:
            raise Refused(f"the rows of {part} are missing from the storage", field="parts") from None
        rows += own * (count // len(own)) + drawn.sample(own, count % len(own))
    drawn.shuffle(rows)
    origin = first.origin if len({part.origin for part, _ in parts}) == 1 or first.task_set else Dataset.Origin.UPLOAD
    return Draft(first.kind, first.task_set, rows, _recipe(parts, counts, rows), first.project, origin)


def check(parts: Sequence[Part]) -> None:
    """Raise Refused for parts that do not go together."""
    if not 2 <= len(parts) <= MOST_PARTS:
        raise Refused(f"{len(parts)} datasets are no mix; expected from 2 to {MOST_PARTS}", field="parts")
    first, places = parts[0][0], set()
    for number, (part, weight) in enumerate(parts):
        if part.kind != first.kind:
            raise Refused(
                f"{part} holds {part.get_kind_display()}, {first} {first.get_kind_display()}; a mix is of one kind",
                field=f"parts.{number}",
            )
        if part.mix:
            raise Refused(f"{part} is a mix itself; name what it is made of", field=f"parts.{number}")
        if part.task_set is not None and first.task_set is None:
            raise Refused(
                f"a run on the mix is compared by its first dataset's tasks, and {first} has none; put {part} first",
                field="parts.0",
            )
        place = part.task_set.environment_version.environment.name if part.task_set else part.name
        if (place, part.task_set is None) in places:
            raise Refused(
                f"{place} is there already; a mix has each environment, and each name from elsewhere, once",
                field=f"parts.{number}",
            )
        places.add((place, part.task_set is None))
        if isinstance(weight, bool) or not 0 < weight <= HEAVIEST:
            raise Refused(
                f"{weight!r} is not a number above 0, of {HEAVIEST:,} at most", field=f"parts.{number}.weight"
            )


def parts_of(kept: Dataset) -> list[dict[str, Any]]:
    """The parts of a mix for a page or a program, with the datasets themselves."""
    found = Dataset.objects.in_bulk([part["dataset"] for part in kept.mix])
    return [{**part, "dataset": found[part["dataset"]]} for part in kept.mix]


def shares(rows: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Share the rows out among the parts: by weight, at least one each, as many in all as there are. Raises Refused."""
    whole, total = sum(rows), math.fsum(weights)
    exact = [whole * weight / total for weight in weights]
    counts = [max(1, math.floor(share)) for share in exact]
    # What rounding left over goes to those that lost most by it (largest remainder).
    for number in sorted(range(len(rows)), key=lambda i: counts[i] - exact[i])[: max(0, whole - sum(counts))]:
        counts[number] += 1
    for number, (count, own) in enumerate(zip(counts, rows, strict=True)):
        if count > MOST_TIMES * own:
            raise Refused(
                f"its {own} rows would come {count // own} times; {MOST_TIMES} is the most",
                field=f"parts.{number}.weight",
            )
    return counts


def _placed(row: dict[str, Any], part: Dataset, first: Dataset) -> dict[str, Any]:
    """Name the environment of a row, and rows of one name in several parts apart. What belongs to no task is prompted
    as in the environment that the run is compared in."""
    task_set = part.task_set or first.task_set
    environment = task_set.environment_version.environment.name if task_set else ""
    place = environment if part.task_set else part.name
    named: dict[str, Any] = {
        name: f"{place}/{row[name]}" for name in ("task_id", "id", "group", "attempt") if name in row
    }
    return {**row, **named, **({"environment": environment} if environment else {})}


def _recipe(parts: Sequence[Part], counts: Sequence[int], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "mix": [
            {
                "dataset": part.pk,
                "name": str(part),
                "digest": part.digest,
                "environment": str(part.task_set.environment_version) if part.task_set else "",
                "task_set": part.task_set_id,
                "weight": weight,
                "rows": count,
                "of": part.rows,
            }
            for (part, weight), count in zip(parts, counts, strict=True)
        ],
        "tasks": sum(part.recipe.get("tasks", 0) for part, _ in parts),
        "from_failures": sum(part.recipe.get("from_failures", 0) for part, _ in parts),
        "from_rollouts": sum(row.get("origin") == "rollout" for row in rows),
        "synthetic": sum(row.get("synthetic", False) for row in rows),
        **_written_for(parts),
        "from_traces": list(dict.fromkeys(name for part, _ in parts for name in part.recipe.get("from_traces", ()))),
        **dataset_builder.judgements(rows),
        "chosen_by_reward": any(part.is_chosen_by_reward for part, _ in parts),
        "duplicates": 0,
    }


def _written_for(parts: Sequence[Part]) -> dict[str, Any]:
    """Say for which version all parts are written, and how many native calls those make that are for none. No config
    where they are for several, for then nobody may learn from the mix as one; none said where all were uploaded."""
    uploaded = [part for part, _ in parts if part.origin == Dataset.Origin.UPLOAD]
    whose = [
        {name: part.recipe.get(name) for name in ("version", "config")} for part, _ in parts if part not in uploaded
    ]
    calls = {"native_calls": sum(part.recipe.get("native_calls", 0) for part in uploaded)}
    if not whose:
        return calls
    is_one = all(one["config"] == whose[0]["config"] for one in whose)
    return calls | (whose[0] if is_one else {"version": None, "config": None})
