"""A condition on trajectories, said for one project so that an index leads to what it finds.

`fields.py` says what a filter means; what is said here finds the same in that project, leaf by leaf. Names of agents
and numbers of versions become their keys, since through a join no index of the trajectories is reached, a label of a
bucket becomes its key, and a pattern of tools or tags becomes the names that are like it. A beginning of attributes
that many have lately is looked for in the order of the list.
"""

from typing import Any

from django.db.models import Q

from flywheel.agents.models import Agent, Version
from flywheel.trajectories.annotations import project_buckets
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import known_values
from flywheel.trajectories.search.fields import BEGINNING

Leaf = tuple[str, Any]
LATELY = 1_000
"""Newest trajectories in which a beginning is looked for."""
OFTEN = 50
"""So many of them have it where walking the list finds a page sooner than an index finds and sorts all that do."""


def narrowed(where: Q, project: int) -> Q:
    """The same condition on trajectories of this project."""
    parts = [narrowed(part, project) if isinstance(part, Q) else part for part in where.children]
    parts = [_leaf(part, project) if isinstance(part, tuple) else part for part in parts]
    return Q.create(parts, where.connector, where.negated)


def _leaf(leaf: Leaf, project: int) -> Leaf:
    path, value = leaf
    match path.split("__"):
        case ["agent", "name", *lookup]:
            named = {"__".join(["name", *lookup]): value}
            return "agent__in", list(Agent.objects.filter(project=project, **named).values_list("pk", flat=True))
        case ["version", "number"]:
            numbered = Version.objects.filter(agent__project=project, number=value)
            return "version__in", list(numbered.values_list("pk", flat=True))
        case ["label_bucket" | "proposed_bucket" as field] if value:
            keys = project_buckets.keys_named(project, value)
            return (field, keys[0]) if len(keys) == 1 else (f"{field}__in", keys)
        case ["tool_names" | "tags" as field, "any_like"]:
            names = known_values.like(project, field, value)
            if names is not None:
                return (f"{field}__overlap", names) if names else ("pk__in", [])
        case ["attributes", "sent"] if value.endswith(BEGINNING) and _is_frequent(value, project):
            return "attributes__sent_often", value
    return leaf


def _is_frequent(beginning: str, project: int) -> bool:
    newest = Trajectory.objects.filter(project=project).order_by("-started_at", "-id").values("pk")[:LATELY]
    return Trajectory.objects.filter(pk__in=newest, attributes__sent_often=beginning).count() >= OFTEN
