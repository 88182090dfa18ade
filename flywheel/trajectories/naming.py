"""Which agent and which version a trajectory belongs to, from the names that it reports."""

import functools
import re
from collections.abc import Sequence

from django.utils.text import slugify

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
from flywheel.sql import planned
from flywheel.trajectories.models import Trajectory

_LABEL = re.compile(r"(?:(?P<agent>[\w.-]+)@)?v?(?P<number>\d{1,9})", re.ASCII)


def resolve(project: Project, trajectories: Sequence[Trajectory], version: Version | None = None) -> None:
    """Point the trajectories at their agent, made when it is unknown, and at their version when it is known.

    With `version` given, all of them are of that version, whatever they report.
    """
    if version is not None:
        for row in trajectories:
            row.agent, row.version = version.agent, version
        return
    names = {row.trace_id: slug_of(row.agent_name) for row in trajectories}
    wanted = {(names[row.trace_id], number) for row in trajectories if (number := _number(row.version_label))}
    known = _known(project, sorted({name for name in names.values() if name}), sorted({n for _, n in wanted}))
    for row in trajectories:
        name = names[row.trace_id]
        row.agent_id, versions = known.get(name, (None, {}))
        number = _number(row.version_label, name)
        row.version_id = versions.get(number) if number else None


@functools.lru_cache(maxsize=4096)
def slug_of(name: str) -> str:
    """The name under which an agent that calls itself `name` stands in the project."""
    return slugify(name)[:100]


Known = dict[str, tuple[int | None, dict[int, int]]]
"""An agent's key and those of its versions by number, by the agent's name."""


def _known(project: Project, names: list[str], numbers: list[int]) -> Known:
    """The agents of these names, made where they are unknown, with their versions of these numbers."""
    if not names:
        return {}
    known = _read(project, names, numbers)
    if missing := [name for name in names if name not in known]:
        new = [Agent(project=project, name=name, description="seen in telemetry") for name in missing]
        Agent.objects.bulk_create(new, ignore_conflicts=True)
        known |= _read(project, missing, numbers)
    return known


_READ = """
SELECT agent.name, agent.id, version.number, version.id FROM agents_agent AS agent
LEFT JOIN agents_version AS version ON version.agent_id = agent.id AND version.number = ANY(%s::int[])
WHERE agent.project_id = %s AND agent.name = ANY(%s)
"""


def _read(project: Project, names: list[str], numbers: list[int]) -> Known:
    """On the path of every request, so not by way of the ORM."""
    known: Known = {}
    for name, agent, number, version in planned(_READ, [numbers, project.pk, names]):
        versions = known.setdefault(name, (agent, {}))[1]
        if number is not None:
            versions[number] = version
    return known


@functools.lru_cache(maxsize=4096)
def _number(label: str, agent: str = "") -> int | None:
    """The version number that a label means: `7`, `v7`, `agent@7`. None when it is another agent's."""
    match = _LABEL.fullmatch(label)
    if match is None or (agent and match["agent"] and slug_of(match["agent"]) != agent):
        return None
    return int(match["number"])
