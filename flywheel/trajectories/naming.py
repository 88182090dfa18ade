"""Which agent and which version a trajectory belongs to, from the names that it reports."""

import re
from collections.abc import Sequence

from django.utils.text import slugify

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
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
    agents = _agents(project, {slug for row in trajectories if (slug := slug_of(row.agent_name))})
    wanted: dict[int, set[int]] = {}
    for row in trajectories:
        row.agent = agents.get(slug_of(row.agent_name))
        if row.agent and (number := _number(row.version_label, row.agent)):
            wanted.setdefault(row.agent.pk, set()).add(number)
    numbers = {number for each in wanted.values() for number in each}
    found = Version.objects.filter(agent__in=wanted, number__in=numbers) if wanted else ()
    versions = {(known.agent_id, known.number): known for known in found}
    for row in trajectories:
        number = _number(row.version_label, row.agent) if row.agent else None
        row.version = versions.get((row.agent.pk, number)) if row.agent and number else None


def slug_of(name: str) -> str:
    """The name under which an agent that calls itself `name` stands in the project."""
    return slugify(name)[:100]


def _agents(project: Project, names: set[str]) -> dict[str, Agent]:
    known = {agent.name: agent for agent in Agent.objects.filter(project=project, name__in=names)}
    if missing := sorted(names - set(known)):
        new = [Agent(project=project, name=name, description="seen in telemetry") for name in missing]
        Agent.objects.bulk_create(new, ignore_conflicts=True)
        known |= {agent.name: agent for agent in Agent.objects.filter(project=project, name__in=missing)}
    return known


def _number(label: str, agent: Agent) -> int | None:
    """The version number that a label means: `7`, `v7`, `agent@7`."""
    match = _LABEL.fullmatch(label)
    if match is None or (match["agent"] and slug_of(match["agent"]) != agent.name):
        return None
    return int(match["number"])
