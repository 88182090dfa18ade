"""The story: an invented company's workplace assistant, and the requests its customers send.

A request is one sentence that asks for one tool call. Its wording belongs to one of three groups:

  known      what the policy was built with
  new        what production brings: the policy mostly fails, people correct it, it learns
  reserved   what production brings too, but nobody trains on: shows whether learning spreads to other wordings

A session is a customer. Each customer has people and topics of its own, whose names no other customer of the same seed
has, so whatever splits by session measures on names that training never saw. They are names of people and plain nouns
in the `production` world; in the `pretraining` world, with which the policy was built, they are invented words, none of
which is a name of production.

Everything is a pure function of its arguments and the same on every version of Python: choices come from hashes.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from flywheel.core.envs import Task
from flywheel.core.envs.agent_config import AgentConfig
from flywheel.core.traces.tooling import call_text

AGENT = "workplace-assistant"
SYSTEM_PROMPT = "You are a workplace assistant. Answer with one tool call."

Group = Literal["known", "new", "reserved"]
World = Literal["pretraining", "production"]
Kind = Literal["people", "subjects"]
T = TypeVar("T")

PRODUCTION_MIX: Mapping[Group, float] = {"known": 0.45, "new": 0.45, "reserved": 0.10}

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
PRIORITIES = ("low", "normal", "high")
NOUNS = ("audit", "budget", "contract", "launch", "merger", "report", "review", "survey", "upgrade", "workshop")
OPENINGS = ("", "", "", "Hi! ", "Hello. ", "Good morning. ")
CLOSINGS = ("", "", "", " Thanks!", " Thank you.")


def _tool(name: str, description: str, properties: Mapping[str, Any], unsafe: bool = False) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "parameters": parameters} | ({"x-unsafe": True} if unsafe else {})


_PERSON = {"type": "string", "x-refers": "people"}
_TOPIC = {"type": "string", "x-entity": True}

TOOLS: list[dict[str, Any]] = [
    _tool(
        "calendar.create_event",
        "Put a meeting with a person into the calendar.",
        {"person": _PERSON, "topic": _TOPIC, "day": {"type": "string", "enum": list(DAYS)}},
    ),
    _tool("email.send", "Send an email to one person.", {"to": _PERSON, "subject": _TOPIC}),
    _tool("email.send_all", "Send an email to everybody in the company.", {"subject": _TOPIC}, unsafe=True),
    _tool("tasks.assign", "Make a person responsible for a topic.", {"person": _PERSON, "topic": _TOPIC}),
    _tool(
        "tickets.create", "Open a ticket.", {"title": _TOPIC, "priority": {"type": "string", "enum": list(PRIORITIES)}}
    ),
]

AGENT_CONFIG = AgentConfig(SYSTEM_PROMPT, tuple(TOOLS), "json")
"""As the story's versions ask the policy."""

RENAMED = {"person": "employee"}
"""Arguments by what the company's systems call them once the world has changed."""

ROUND = 1_000
"""Added to the seed when its names are used up."""

RETIRED_TOOL = "reminders.set"
"""A tool that the agent no longer has. What the policy was built with still calls it now and then."""


@dataclass(frozen=True, slots=True)
class Wording:
    id: str
    group: Group
    tool: str
    text: str
    """With {person}, {topic}, {day}, {priority} where they occur."""
    formerly: str = ""
    """The retired tool that answered this wording when the policy's first data was collected."""


_FILLED_BY = {"person": "person", "to": "person", "topic": "topic", "subject": "topic", "title": "topic"}

WORDINGS: dict[str, Wording] = {
    wording.id: wording
    for wording in (
        Wording("email", "known", "email.send", "Email {person} about the {topic}."),
        Wording("send-email", "known", "email.send", "Send {person} an email about the {topic}."),
        Wording("write-to", "known", "email.send", "Write to {person} about the {topic}."),
        Wording("email-all", "known", "email.send_all", "Email everyone about the {topic}."),
        Wording("let-everyone-know", "known", "email.send_all", "Let everyone know about the {topic}."),
        Wording("schedule", "known", "calendar.create_event", "Schedule the {topic} with {person} on {day}."),
        Wording("book", "known", "calendar.create_event", "Book {person} for the {topic} on {day}."),
        Wording("meeting", "known", "calendar.create_event", "Set up a meeting with {person} on {day}: {topic}."),
        Wording("open-ticket", "known", "tickets.create", "Open a {priority} priority ticket for the {topic}."),
        Wording("file-ticket", "known", "tickets.create", "File a ticket about the {topic}, priority {priority}."),
        Wording("create-ticket", "known", "tickets.create", "Create a ticket: {topic}, {priority} priority."),
        Wording("assign", "known", "tasks.assign", "Assign the {topic} to {person}."),
        Wording("give", "known", "tasks.assign", "Give the {topic} to {person}."),
        Wording("remind", "known", "tasks.assign", "Remind {person} of the {topic}.", formerly=RETIRED_TOOL),
        Wording("let-know", "new", "email.send", "Let {person} know about the {topic}."),
        Wording("not-everyone", "new", "email.send", "Tell {person}, not everyone, about the {topic}."),
        Wording("find-time", "new", "calendar.create_event", "Find time on {day} for the {topic} with {person}."),
        Wording("see-on", "new", "calendar.create_event", "I need to see {person} on {day} because of the {topic}."),
        Wording("broken", "new", "tickets.create", "The {topic} is in trouble, log it as {priority}."),
        Wording("look-into", "new", "tickets.create", "Someone must look into the {topic}, urgency {priority}."),
        Wording("takes-over", "new", "tasks.assign", "{person} takes over the {topic}."),
        Wording("up-to", "new", "tasks.assign", "From now on the {topic} is up to {person}."),
        Wording("drop-line", "reserved", "email.send", "Drop {person} a line on the {topic}."),
        Wording("meet", "reserved", "calendar.create_event", "Could {person} and I meet on {day} for the {topic}?"),
        Wording("stuck", "reserved", "tickets.create", "We are stuck with the {topic}, treat it as {priority}."),
        Wording("deal-with", "reserved", "tasks.assign", "Have {person} deal with the {topic}."),
    )
}


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    session_id: str
    prompt: str
    wording: str
    """A key of WORDINGS."""
    target: dict[str, Any]
    """`{"tool": name, "arguments": {…}}`"""
    state: dict[str, Any]
    """The customer's world: `{"people": [name, …]}`"""

    @property
    def group(self) -> Group:
        return WORDINGS[self.wording].group

    @property
    def answer(self) -> str:
        """The right call, as the text that the policy should write."""
        return call_text(self.target["tool"], self.target["arguments"])

    def to_task(self) -> Task:
        return Task(self.id, self.prompt, self.target, self.state, cluster=self.session_id, slice=self.wording)


def environment_config() -> dict[str, Any]:
    """The settings of the `tool_call` environment in which the story plays."""
    return {"tools": TOOLS}


def sessions(
    n: int, seed: int, mix: Mapping[Group, float] = PRODUCTION_MIX, world: World = "production", first: int = 0
) -> list[Request]:
    """The requests, about three each, of customers `first` to `first + n - 1` of the endless row that `seed` means."""
    return [request for index in range(first, first + n) for request in _customer(index, seed, mix, world)]


def newcomer(number: int, seed: int) -> list[Request]:
    """The requests of customer `number` of a row that goes on for ever under plain names: when all are used up it
    begins again, in another order (`ROUND`). Unlike the customers of one seed, those of two rounds share names."""
    size = min(len(_names("production", kind)) for kind in get_args(Kind)) // 2
    round_, index = divmod(number, size)
    return sessions(1, seed + ROUND * round_, first=index)


def _customer(index: int, seed: int, mix: Mapping[Group, float], world: World) -> list[Request]:
    """Two people, two topics, and two to four requests about them."""
    session_id = f"{'p' if world == 'pretraining' else 'c'}{seed}-{index:04d}"
    people, subjects = ([_name(2 * index + place, seed, world, kind) for place in range(2)] for kind in get_args(Kind))
    topics = [f"{name} {_pick(NOUNS, session_id, name)}" for name in subjects]
    requests = []
    for number in range(2 + _number(session_id, "requests") % 3):
        key = f"{session_id}-{number}"
        group = _draw(mix, key, "group")
        wording = _pick([wording for wording in WORDINGS.values() if wording.group == group], key, "wording")
        slots = {
            "person": _pick(people, key, "person"),
            "topic": _pick(topics, key, "topic"),
            "day": _pick(DAYS, key, "day"),
            "priority": _pick(PRIORITIES, key, "priority"),
        }
        prompt = _pick(OPENINGS, key, "opening") + wording.text.format(**slots) + _pick(CLOSINGS, key, "closing")
        target = {"tool": wording.tool, "arguments": _arguments(wording.tool, slots)}
        requests.append(Request(key, session_id, prompt, wording.id, target, {"people": people}))
    return requests


def tools_renamed() -> list[dict[str, Any]]:
    """The tools once the world has changed: arguments have other names, and mean what they meant."""
    changed = []
    for tool in TOOLS:
        parameters = tool["parameters"]
        named = _renamed(parameters["properties"])
        changed.append({**tool, "parameters": {**parameters, "properties": named, "required": list(named)}})
    return changed


def renamed(requests: Sequence[Request]) -> list[Request]:
    """The same requests, which then want the same under other names."""
    return [
        replace(request, target={**request.target, "arguments": _renamed(request.target["arguments"])})
        for request in requests
    ]


def _renamed(by_name: Mapping[str, T]) -> dict[str, T]:
    return {RENAMED.get(name, name): value for name, value in by_name.items()}


def _arguments(tool: str, slots: Mapping[str, str]) -> dict[str, str]:
    definition = next(definition for definition in TOOLS if definition["name"] == tool)
    return {name: slots[_FILLED_BY.get(name, name)] for name in definition["parameters"]["properties"]}


def share(*key: object) -> float:
    """A number in [0, 1) that a hash of the key gives."""
    return _number(*key) / 2**64


def _number(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


def _pick(options: Sequence[T], *key: object) -> T:
    return options[_number(*key) % len(options)]


def _draw(mix: Mapping[Group, float], *key: object) -> Group:
    point = share(*key) * sum(mix.values())
    for group, part in mix.items():
        point -= part
        if point < 0:
            return group
    return next(group for group, part in mix.items() if part > 0)


# Names ----------------------------------------------------------------------------------------------------------------

_LISTS = Path(__file__).parent / "names"
_ONSETS = (
    *"bcdfghjklmnprstvwyz",
    "br",
    "ch",
    "cl",
    "dr",
    "fl",
    "fr",
    "gl",
    "gr",
    "kr",
    "pl",
    "sh",
    "sk",
    "st",
    "th",
    "tr",
)
_VOWELS = (*"aeiouaeiouaeiou", "ai", "ea", "ee", "ia", "ie", "io", "oo", "ou", "y")
_CODAS = ("", "", "", "", *"nrslkmtd", "ll", "nd", "ng", "rn", "rt", "st")
INVENTED = 20_000


@cache
def _names(world: World, kind: Kind) -> tuple[str, ...]:
    """Every name of a world that is one word."""
    if world == "production":
        return tuple((_LISTS / f"{kind}.txt").read_text().split())
    taken = {name.lower() for each in get_args(Kind) for name in _names("production", each)}
    words = dict.fromkeys(_invented(number) for number in range(INVENTED))
    made = (word for word in words if word not in taken and 3 <= len(word) <= 10)
    return tuple(word.capitalize() if kind == "people" else word for word in made)


def _invented(number: int) -> str:
    """A word that is none: one to three syllables, the first perhaps without a consonant before its vowel."""
    syllables = 1 + _number(number, "syllables") % 3
    word = ""
    for place in range(syllables):
        onsets = (*_ONSETS, *"aeiou") if place == 0 else _ONSETS
        word += _pick(onsets, number, place, "onset") + _pick(_VOWELS, number, place, "vowel")
        word += _pick(_CODAS, number, place, "coda") if place == syllables - 1 or syllables == 2 else ""
    return word


def _name(index: int, seed: int, world: World, kind: Kind) -> str:
    """The `index`-th name of a seed: a seeded walk through all names of the world that meets each one once. When they
    are used up, two make one (`Ana-Ravi`), and no two pairs are alike."""
    names = _names(world, kind)
    round_, position = divmod(index, len(names))
    stride = _number(seed, world, kind, "stride") % len(names)
    while math.gcd(stride, len(names)) != 1:
        stride += 1
    place = position * stride + _number(seed, world, kind, "start")
    parts = [names[place % len(names)], names[(place + round_) % len(names)]]
    return "-".join(parts) if round_ else parts[0]
