"""A rubric, or a reward recipe, as a form: its parts in order, each with its settings as somebody wrote them, right or
wrong.

The whole draft travels with the form, so that adding, moving and trying need no place on the server. What is wrong is
said by `core.verifiers.rubric`, the one that judges too, and shown at the field that it names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.verifiers import VerifierError
from flywheel.core.verifiers.rubric import KIND, MOST_PARTS, PARTS_OF_RECIPES, REWARD, is_rubric
from flywheel.core.verifiers.rubric_parts import PARTS, PartType, Setting
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Refused
from flywheel.environments.models import EnvironmentVersion

WHOLE = ("code", "json", "prose", "reward_model")
"""Kinds of settings whose input is as wide as the form."""
_PLACE = re.compile(r"parts\.(\d+)\.(\w+)([^:]*): (.*)", re.DOTALL)
_TASK = re.compile(r"t?-?(\d{1,9})")


@dataclass(slots=True)
class Line:
    """One part of the rubric, as the page shows it."""

    number: int
    type: str
    name: str
    weight: str
    is_required: bool
    values: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    shapes: bool = False
    is_of_recipe: bool = False
    sample: str = ""
    """Of a judge of a recipe: the share of attempts that it is asked about while it is watched; empty for the usual."""

    @property
    def can_sample(self) -> bool:
        return self.is_of_recipe and self.type == "judge"

    @property
    def kind(self) -> PartType:
        return (PARTS_OF_RECIPES if self.is_of_recipe else PARTS)[self.type]

    @property
    def fields(self) -> list[dict[str, Any]]:
        """Its settings: the `key` of each, and the `name` of its input."""
        return [
            {
                "key": key,
                "name": f"p{self.number}-{key}",
                "setting": setting,
                "is_whole": setting.kind in WHOLE,
                "value": self.values.get(key, ""),
                "error": self.errors.get(key, ""),
            }
            for key, setting in self.kind.settings.items()
            if not setting.is_frozen
        ]

    @property
    def row(self) -> dict[str, Any]:
        """The part as data. Raises VerifierError for JSON that is none."""
        row: dict[str, Any] = {"type": self.type, "name": self.name.strip() or self.type}
        row["weight"] = _number(self.weight.strip() or "0")
        row |= {name: True for name, is_on in (("required", self.is_required), ("shapes", self.shapes)) if is_on}
        if self.can_sample and self.sample.strip():
            row["sample"] = _number(self.sample.strip())
        for key, setting in self.kind.settings.items():
            value = self.values.get(key, "").replace("\r\n", "\n")
            if setting.kind == "code" or value.strip():
                row[key] = _read(setting, value, f"parts.{self.number}.{key}")
        return row


@dataclass(slots=True)
class Draft:
    lines: list[Line]
    tasks: str = ""
    rollouts: str = "5"
    trajectories: str = ""
    problem: str = ""
    """What is wrong and belongs to no field."""
    focus: str = ""
    """The input to go on in: of the part that was added, or the one that is wrong."""
    kind: str = KIND
    """Of the rubric that it makes: a verifier's, or a reward recipe."""

    @property
    def reward_models(self) -> list[str]:
        """Return what its parts that ask a reward model name it; empty texts where nothing is chosen yet."""
        return [
            line.values.get(key, "")
            for line in self.lines
            for key, setting in line.kind.settings.items()
            if setting.kind == "reward_model"
        ]

    @classmethod
    def of(cls, version: EnvironmentVersion, tasks: list[int], trajectory: str = "") -> "Draft":
        """That of a version; a kind's own verifier is a rubric of this one part, or of its weighed parts."""
        spec = version.verifier
        rows: list[dict[str, Any]] = [{"type": "environment", "name": "effect"}]
        if is_rubric(spec):
            rows = spec["parts"]
        elif weights := spec.get("weights"):
            rows = [{"type": "environment", "name": p, "part": p, "weight": w} for p, w in weights.items() if w]
        lines = [_line(number, row) for number, row in enumerate(rows)]
        return cls(lines, ", ".join(f"t-{each}" for each in tasks), trajectories=trajectory[:64])

    @classmethod
    def of_recipe(cls, parts: Sequence[Mapping[str, Any]]) -> "Draft":
        """That of a reward recipe with these parts."""
        return cls([_line(number, row, REWARD) for number, row in enumerate(parts)], kind=REWARD)

    @classmethod
    def read(cls, sent: Mapping[str, str], of_kind: str = KIND) -> "Draft":
        count = number(sent.get("parts", "")) or 0
        lines: list[Line] = []
        for place in range(min(count, MOST_PARTS)):
            kind = sent.get(f"p{place}-type", "")
            if kind in PARTS:
                settings = PARTS[kind].settings.items()
                values = {key: sent.get(f"p{place}-{key}", "") for key, setting in settings if not setting.is_frozen}
                name, weight = sent.get(f"p{place}-name", ""), sent.get(f"p{place}-weight", "")
                required, shapes = (bool(sent.get(f"p{place}-{name}")) for name in ("required", "shapes"))
                line = Line(len(lines), kind, name[:100], weight[:40], required, values, {}, shapes, of_kind == REWARD)
                line.sample = sent.get(f"p{place}-sample", "")[:40]
                lines.append(line)
        trajectories = sent.get("trajectories", "")[:2000]
        return cls(lines, sent.get("tasks", "")[:400], sent.get("rollouts", "")[:6], trajectories, kind=of_kind)

    @property
    def is_recipe(self) -> bool:
        return self.kind == REWARD

    @property
    def types(self) -> dict[str, PartType]:
        """The types that can be added."""
        judging = {name: each for name, each in PARTS.items() if not each.only_shapes}
        return PARTS_OF_RECIPES if self.is_recipe else judging

    def change(self, do: str, kind: str) -> None:
        """Add a part of a kind, or take away or move the one that a button names: `remove-2`, `up-2`, `down-2`."""
        verb, _, text = do.partition("-")
        if verb == "add" and kind in self.types and len(self.lines) < MOST_PARTS:
            taken = {line.name for line in self.lines}
            names = [kind, *(f"{kind}_{number}" for number in range(2, MOST_PARTS + 2))]
            values = {key: setting.first for key, setting in PARTS[kind].settings.items() if setting.first}
            shapes = PARTS[kind].only_shapes
            name, weight = next(n for n in names if n not in taken), "-1" if shapes else "1"
            self.lines.append(Line(len(self.lines), kind, name, weight, False, values, {}, shapes, self.is_recipe))
            self.focus = self.lines[-1].fields[0]["name"]
        at = number(text)
        if at is not None and at < len(self.lines):
            if verb == "remove":
                del self.lines[at]
            elif verb in ("up", "down"):
                other = max(0, min(len(self.lines) - 1, at + (1 if verb == "down" else -1)))
                self.lines.insert(other, self.lines.pop(at))
        for place, line in enumerate(self.lines):
            line.number = place

    @property
    def spec(self) -> dict[str, Any]:
        """The rubric as data. Raises VerifierError for what cannot be read."""
        return {"kind": self.kind, "parts": [line.row for line in self.lines]}

    def is_of(self, verifier: Mapping[str, Any]) -> bool:
        """Whether it says what a verifier says, whatever was looked up when that was saved; one that cannot be read
        says nothing of the kind."""
        try:
            return self.spec == {**verifier, "parts": [_without_frozen(part) for part in verifier["parts"]]}
        except VerifierError:
            return False

    @property
    def numbers(self) -> list[int]:
        """The tasks that it is tried on. Raises Refused."""
        found = [(_TASK.fullmatch(word), word) for word in self.tasks.replace(",", " ").split()]
        if wrong := next((word for match, word in found if match is None), ""):
            raise Refused(f"tasks: {wrong[:40]!r} is not of the form t-12")
        return [int(match[1]) for match, _ in found if match]

    @property
    def trace_ids(self) -> list[str]:
        """The trajectories that it is tried on, too."""
        return self.trajectories.replace(",", " ").split()

    @property
    def count(self) -> int:
        """Rollouts of each task. Raises Refused."""
        count = number(self.rollouts)
        if count is None:
            raise Refused(f"rollouts: {self.rollouts!r} is not a whole number")
        return count

    def refuse(self, error: Exception) -> None:
        """Show what is wrong at the field that it names, else above all."""
        match = _PLACE.fullmatch(str(error))
        number = int(match[1]) if match else -1
        if match is None or number >= len(self.lines):
            self.problem = str(error)
            return
        _, key, rest, words = match.groups()
        inside = rest.strip(".")
        self.lines[number].errors[key] = f"{inside}: {words}" if inside else words
        self.focus = f"p{number}-{key}"


def _without_frozen(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part without what no form asks for."""
    settings = PARTS[part["type"]].settings
    return {key: value for key, value in part.items() if key not in settings or not settings[key].is_frozen}


def _line(number: int, row: Mapping[str, Any], of_kind: str = KIND) -> Line:
    settings = PARTS[row["type"]].settings
    values = {
        key: _shown(setting, row[key]) for key, setting in settings.items() if key in row and not setting.is_frozen
    }
    name, weight = row.get("name", row["type"]), f"{row.get('weight', 1):.15g}"
    shapes = bool(row.get("shapes")) or PARTS[row["type"]].only_shapes
    sample = f"{row['sample']:.15g}" if "sample" in row else ""
    required = bool(row.get("required"))
    return Line(number, row["type"], name, weight, required, values, {}, shapes, of_kind == REWARD, sample)


def _shown(setting: Setting, value: Any) -> str:
    match setting.kind:
        case "json":
            return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict | list) else None)
        case "flag":
            return "on" if value else ""
        case "number":
            return f"{value:.15g}"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _read(setting: Setting, value: str, where: str) -> Any:
    match setting.kind:
        case "code" | "text":
            return value
        case "flag":
            return True
        case "json":
            try:
                return json.loads(value.strip())
            except (ValueError, RecursionError) as error:
                raise VerifierError(f"{where}: not valid JSON: {error}") from None
        case "number":
            return _number(value.strip())
    return value.strip()


def _number(text: str) -> Any:
    """The number, or the text as it is, for the rubric to refuse."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number
