"""Which agent and which version a trajectory belongs to, from the names that it reports."""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence

from django.db.models import Q
from django.utils.text import slugify

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
from flywheel.system.sql import planned
from flywheel.trajectories.models import Trajectory

_LABEL = re.compile(r"(?:(?P<agent>[^@]+)@)?v?(?P<number>[0-9]{1,9})")


def resolve(project: Project, trajectories: Sequence[Trajectory], version: Version | None = None) -> None:
    """Point the trajectories at their agent, made when it is unknown, and at their version when it is known.

    With `version` given, all of them are of that version, whatever they report.
    """
    if version is not None:
        for row in trajectories:
            row.agent_id, row.version_id = version.agent_id, version.pk
        return
    names = {row.trace_id: slug_of(row.agent_name) for row in trajectories}
    wanted = {(names[row.trace_id], number) for row in trajectories if (number := _number(row.version_label))}
    said = {names[row.trace_id]: row.agent_name for row in trajectories if names[row.trace_id]}
    labels = sorted({row.version_label for row in trajectories})
    known = _resolve(project, said, sorted({n for _, n in wanted}), labels)
    for row in trajectories:
        name = names[row.trace_id]
        row.agent_id, versions = known.get(name, (None, {}))
        number = _number(row.version_label, name)
        row.version_id = (versions.get(number) if number else None) or versions.get(row.version_label)


@functools.lru_cache(maxsize=4096)
def slug_of(name: str) -> str:
    """The name under which an agent that calls itself `name` stands in the project; empty where it has no name.

    Addresses and references (`agent@7`) take Latin letters and digits only. What is lost of other scripts leaves a
    digest, so that agents with different names are different agents.
    """
    slug = slugify(name)[:100]
    plain = unicodedata.normalize("NFKD", name)
    letters = [letter for letter in plain if letter.isalpha() and not letter.isascii()]
    is_whole = all(unicodedata.name(letter, "").startswith("LATIN ") for letter in letters)
    if not plain.strip() or (slug and is_whole):
        return slug
    return f"{slug[:90] or 'agent'}-{hashlib.sha256(plain.encode(errors='replace')).hexdigest()[:8]}"


Known = dict[str, tuple[int | None, dict[int | str, int]]]
"""An agent's key and those of its versions by number and by what is reported, by the agent's name."""


def _resolve(project: Project, said: Mapping[str, str], numbers: list[int], labels: list[str]) -> Known:
    """The agents of these names, made where they are unknown, with their versions of these numbers and labels. `said`
    has for each name what the agent calls itself."""
    if not said:
        return {}
    known = _read(project, sorted(said), numbers, labels)
    if missing := [name for name in sorted(said) if name not in known]:
        seen_as = {name: SEEN if said[name].isascii() else f"{SEEN} as {said[name]}" for name in missing}
        new = [Agent(project=project, name=name, description=words) for name, words in seen_as.items()]
        Agent.objects.bulk_create(new, ignore_conflicts=True)
        known |= _read(project, missing, numbers, labels)
    return known


SEEN = "seen in telemetry"
IS_SEEN = Q(description=SEEN) | Q(description__startswith=f"{SEEN} as ")
"""Agents that were made here, and that nobody has described since."""


_READ = """
SELECT agent.name, agent.id, version.number, version.id, reported.label, reported.version_id FROM agents_agent AS agent
LEFT JOIN agents_version AS version ON version.agent_id = agent.id AND version.number = ANY(%s::int[])
LEFT JOIN trajectories_reportedversion AS reported ON reported.agent_id = agent.id AND reported.label = ANY(%s)
WHERE agent.project_id = %s AND agent.name = ANY(%s)
"""


def _read(project: Project, names: list[str], numbers: list[int], labels: list[str]) -> Known:
    """On the path of every request, so not by way of the ORM."""
    known: Known = {}
    for name, agent, number, version, label, linked in planned(_READ, [numbers, labels, project.pk, names]):
        versions = known.setdefault(name, (agent, {}))[1]
        if number is not None:
            versions[number] = version
        if label is not None:
            versions[label] = linked
    return known


@functools.lru_cache(maxsize=4096)
def _number(label: str, agent: str = "") -> int | None:
    """The version number that a label means: `7`, `v7`, `agent@7`. None when it is another agent's."""
    match = _LABEL.fullmatch(label)
    if match is None or (agent and match["agent"] and slug_of(match["agent"]) != agent):
        return None
    return int(match["number"])
