"""References as people and programs write them, `name@version`, and what they point at in a project."""

import re

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent, Version
from flywheel.edge.refusals import Missing

SHOWN = 8
"""Names that a refusal lists before it says `…`."""

_FORM = re.compile(r"(?P<name>[\w-]+)(?:@(?:v?(?P<number>\d{1,9})|(?P<live>live)))?", re.ASCII)


class UnknownReference(Missing):
    """Nothing is called so; the message says what is."""


def find_agent(project: Project, name: str) -> Agent:
    """Raises UnknownReference."""
    agent = Agent.objects.filter(project=project, name=name).select_related("live").first()
    if agent is None:
        raise UnknownReference(f"there is no agent {name!r}; {_there_are(project)}")
    return agent


def current_version(agent: Agent) -> Version | None:
    """The live version, or the newest where none is live yet."""
    return agent.live or agent.versions.order_by("-number").first()


def find_version(project: Project, ref: str) -> Version:
    """The version that `name@number` or `name@live` means, or the newest of a name alone. Raises UnknownReference."""
    match = _FORM.fullmatch(ref.strip())
    if match is None:
        raise UnknownReference(f"{ref!r} is not a version: expected agent@version, for example {_example(project)}")
    agent = find_agent(project, match["name"])
    if match["live"]:
        if agent.live is None:
            raise UnknownReference(f"{agent} has no live version")
        return _whole(agent, agent.live.number)
    if match["number"] is None:
        newest = agent.versions.order_by("-number").values_list("number", flat=True).first()
        if newest is None:
            raise UnknownReference(f"{agent} has no version yet")
        return _whole(agent, newest)
    try:
        return _whole(agent, int(match["number"]))
    except Version.DoesNotExist:
        raise UnknownReference(f"{agent} has no version {match['number']}; {_versions(agent)}") from None


def listed(names: list[str]) -> str:
    """The first few names, for a refusal that says what there is."""
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def _whole(agent: Agent, number: int) -> Version:
    return Version.objects.select_related("agent", "weights", "adapter").get(agent=agent, number=number)


def _there_are(project: Project) -> str:
    names = list(Agent.objects.filter(project=project).order_by("name").values_list("name", flat=True)[: SHOWN + 1])
    return f"this project has {listed(names)}" if names else "this project has no agent yet"


def _versions(agent: Agent) -> str:
    numbers = agent.versions.order_by("-number").values_list("number", flat=True)
    return f"it has {listed([str(number) for number in numbers[: SHOWN + 1]])}" if numbers else "it has none yet"


def _example(project: Project) -> str:
    newest = Version.objects.filter(agent__project=project).select_related("agent").order_by("-pk").first()
    return str(newest) if newest else "assistant@1"
