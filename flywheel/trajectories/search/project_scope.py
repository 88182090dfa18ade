"""A condition on trajectories, said for one project so that an index leads to what it finds.

`fields.py` says what a filter means; what is said here finds the same in that project, leaf by leaf. Names of agents
and numbers of versions become their keys, since through a join no index of the trajectories is reached, and a pattern
of tools or tags becomes the names that are like it.
"""

from typing import Any

from django.db.models import Q

from flywheel.agents.models import Agent, Version
from flywheel.trajectories.search import known_values

Leaf = tuple[str, Any]


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
        case ["tool_names" | "tags" as field, "any_like"]:
            names = known_values.like(project, field, value)
            if names is not None:
                return (f"{field}__overlap", names) if names else ("pk__in", [])
    return leaf
