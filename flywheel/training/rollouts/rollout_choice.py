"""Which rollouts a dataset is made of: what a person chose, checked, and as the address of a page or a card keeps it.

choice = read({"form": "sft", "reward": "0.6", "parts": "format >= 1", "cap": "4"})      # Raises Refused
choice.as_dict()      only what differs from taking everything
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from flywheel.core.evidence.fix_ladder import LEARNABLE
from flywheel.core.verifiers import PASS
from flywheel.edge.refusals import Refused, check_choice

FORMS: Final = {
    "sft": "demonstrations to imitate",
    "pairs": "pairs of a better and a worse attempt at one task",
    "tasks": "prompts for RL: tasks to practise",
    "scored": "attempts with their scores, good and bad ones",
}
SYNTHETIC: Final = {"": "real and synthetic tasks", "no": "real tasks only", "only": "synthetic tasks only"}
MAX_CAP: Final = 64
_CONDITION = re.compile(r"\s*([A-Za-z][\w.-]{0,63})\s*(>=|<=)\s*(-?\d+(?:\.\d+)?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Condition:
    """On a part of the verdict."""

    part: str
    sign: str
    value: float

    def holds(self, parts: Mapping[str, Any]) -> bool:
        """A part that is missing or unscored meets no condition."""
        found = parts.get(self.part)
        if found is None:
            return False
        return bool(found >= self.value if self.sign == ">=" else found <= self.value)

    def __str__(self) -> str:
        return f"{self.part} {self.sign} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything that decides which rollouts become rows, and which rows."""

    form: str = "sft"
    reward: float | None = PASS
    """The least that a rollout which is imitated or preferred must have; None for any."""
    parts: tuple[Condition, ...] = ()
    turns: int | None = None
    """The most answers in a rollout."""
    tokens: int | None = None
    """The most tokens that the policy wrote in a rollout."""
    synthetic: str = ""
    alike: float | None = 0.95
    """Rollouts whose conversations are so much alike count once; None keeps them all."""
    cap: int | None = 4
    """The most of one task, the best first."""
    gap: float = 0.1
    """For pairs: the least difference of reward."""
    solved_min: float = LEARNABLE[0]
    solved_max: float = LEARNABLE[1]
    """For prompts: how often the task was solved, where groups of attempts differ and so teach."""

    def as_dict(self) -> dict[str, Any]:
        """Return the choice, every field, as JSON."""
        return {**asdict(self), "parts": self.conditions}

    @property
    def conditions(self) -> str:
        return ", ".join(map(str, self.parts))

    @property
    def is_by_reward(self) -> bool:
        """Whether scores decide: of pairs, prompts and scored attempts always."""
        return self.form != "sft" or self.reward is not None or bool(self.parts)


def read(given: Mapping[str, Any]) -> Choice:
    """The choice that a form, an address or a body makes; what is missing stands at its default, what is empty is off.

    Raises Refused.
    """
    if unknown := sorted(set(given) - {field.name for field in fields(Choice)}):
        raise Refused(f"is unknown; use one of {', '.join(f.name for f in fields(Choice))}", field=unknown[0][:100])
    chosen: dict[str, Any] = {}
    for name, known in (("form", FORMS), ("synthetic", SYNTHETIC)):
        if name in given:
            check_choice(given[name], known, field=name)
            chosen[name] = given[name]
    if "parts" in given:
        chosen["parts"] = _conditions(given["parts"])
    for name, low, high in (("reward", -1e6, 1e6), ("alike", 0.5, 1.0)):
        if name in given:
            chosen[name] = _number(name, given[name], low, high)
    for name, high in (("turns", 1_000), ("tokens", 10_000_000), ("cap", MAX_CAP)):
        if name in given:
            chosen[name] = _whole(name, given[name], high)
    for name, low, high in (("gap", 1e-6, 1e6), ("solved_min", 0.0, 1.0), ("solved_max", 0.0, 1.0)):
        if name in given and (number := _number(name, given[name], low, high)) is not None:
            chosen[name] = number
    choice = Choice(**chosen)
    if choice.solved_min > choice.solved_max:
        raise Refused(f"{choice.solved_min:g} is above solved_max, {choice.solved_max:g}", field="solved_min")
    return choice


def _conditions(value: Any) -> tuple[Condition, ...]:
    if not isinstance(value, str):
        raise Refused("expected a text such as 'format >= 1, invalid <= 0'", field="parts")
    found = []
    for text in filter(str.strip, value.split(",")):
        match = _CONDITION.fullmatch(text)
        if match is None or not math.isfinite(float(match[3])):
            raise Refused(f"{text.strip()[:80]!r} is not of the form part >= number or part <= number", field="parts")
        found.append(Condition(match[1], match[2], float(match[3])))
    return tuple(found)


def _number(name: str, value: Any, low: float, high: float) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise Refused(f"{str(value)[:40]!r} is not a number from {low:g} to {high:g}", field=name)
    return number


def _whole(name: str, value: Any, high: int) -> int | None:
    number = _number(name, value, 1, high)
    if number is not None and number != int(number):
        raise Refused(f"{value!r} is not a whole number", field=name)
    return None if number is None else int(number)
