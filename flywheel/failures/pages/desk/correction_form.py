"""The corrected action, as a form: fields made from the tool's JSON schema, or the arguments as JSON.

What the form sends is read and checked here, once, for the live preview as for the decision itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import tooling
from flywheel.failures.labels.decisions import correction_problems

TEXT = "(answer in words)"
"""The choice among the tools that stands for no call but a text; no tool can have this name."""
FIELD = "arg."
"""Prefix of the arguments' form fields."""
EMPTY = "empty."
"""Prefix of the ticks that a required text is empty on purpose."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as a form field."""

    name: str
    kind: str
    """`text`, `choice`, `truth`, `number`, or `json` for all that has no field of its own."""
    value: str
    is_required: bool
    choices: list[str] = field(default_factory=list)
    help: str = ""
    error: str = ""
    is_emptied: bool = False
    """Whether it is there, as a text of no letters."""

    @property
    def id(self) -> str:
        return f"{FIELD}{self.name}"

    @property
    def empty_id(self) -> str:
        """The tick's, where the field has one: a text that is required and not written."""
        return f"{EMPTY}{self.name}" if self.is_required and self.kind == "text" and not self.value else ""


@dataclass(slots=True)
class Correction:
    """A corrected action in the making."""

    tools: list[dict[str, Any]]
    tool: str = ""
    """A tool's name, `TEXT`, or empty while none is chosen."""
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    raw: str = ""
    """The arguments as JSON, when they are written so."""
    as_json: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def action(self) -> dict[str, Any] | None:
        """As `Failure.corrected` stores it; None while no tool is chosen."""
        if self.tool == TEXT:
            return {"text": self.text}
        return {"tool": self.tool, "arguments": self.arguments} if self.tool else None

    @property
    def definition(self) -> Mapping[str, Any] | None:
        return tooling.find(self.tools, self.tool)

    @property
    def json(self) -> str:
        return self.raw or json.dumps(self.arguments, indent=2, ensure_ascii=False)

    @property
    def choices(self) -> list[str]:
        """What can be chosen: the tools, what was called though it is none of them, and words."""
        names = [tool["name"] for tool in self.tools]
        extra = [self.tool] if self.tool and self.tool not in (*names, TEXT) and not names else []
        return [*names, *extra, TEXT]

    @property
    def fields(self) -> list[Argument]:
        """The arguments' fields: those of the schema, then those that only the call has."""
        schemas = tooling.properties(self.definition or {})
        required = _required(self.definition)
        names = [*schemas, *(name for name in self.arguments if name not in schemas)]
        return [self._field(name, schemas.get(name, {}), name in required) for name in names]

    @property
    def general(self) -> list[str]:
        """Problems that belong to no field."""
        named = {argument.name for argument in self.fields if argument.error} if not self.as_json else set()
        return [problem for problem in self.problems if problem.partition(":")[0] not in named]

    def _field(self, name: str, schema: Mapping[str, Any], is_required: bool) -> Argument:
        given = self.arguments.get(name)
        error = next((p.partition(": ")[2] for p in self.problems if p.startswith(f"{name}: ")), "")
        kind, choices = _kind(schema, given)
        value = (
            "" if name not in self.arguments else given if isinstance(given, str) and kind != "json" else _json(given)
        )
        hint = schema.get("description", "")
        if kind == "choice" and value and value not in choices:
            choices = [value, *choices]  # what the agent wrote stays visible, with its error
        hint = hint if isinstance(hint, str) else ""
        return Argument(name, kind, value, is_required, choices, hint, error, is_emptied=given == "")


def of_action(tools: list[dict[str, Any]], action: Mapping[str, Any] | None) -> Correction:
    """The form that shows an action: a stored correction, or the agent's own call to start from."""
    made = Correction(tools)
    if action and "tool" in action:
        known = not tools or tooling.find(tools, action["tool"]) is not None
        made.tool = action["tool"] if known else ""
        arguments = action.get("arguments")
        made.arguments = dict(arguments) if isinstance(arguments, Mapping) else {}
        made.problems = correction_problems(tools, made.action) if made.tool else []
    elif action and "text" in action:
        made.tool, made.text = TEXT, str(action["text"])
    return made


def read(tools: list[dict[str, Any]], data: Mapping[str, str]) -> Correction:
    """What the form says, with what is wrong with it.

    `editor` is how the arguments are to be shown, `was` how they were written; the two differ after a switch, as `tool`
    and `was_tool` do.
    """
    made = Correction(tools, tool=data.get("tool", ""), text=data.get("text", ""), as_json=data.get("editor") == "json")
    if not made.tool:
        made.problems = ["tool: choose what should have been called"]
        return made
    if made.tool != TEXT:
        if data.get("was", data.get("editor")) == "json":
            _read_json(made, data.get("arguments", ""))
        else:
            _read_fields(made, data)
    made.problems = made.problems or correction_problems(tools, made.action)
    return made


def _read_json(made: Correction, written: str) -> None:
    made.raw = written
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError) as error:
        made.problems = [f"arguments: not valid JSON: {error}"]
    else:
        if isinstance(value, dict):
            made.arguments = value
            return
        made.problems = ["arguments: must be an object, such as {}"]
    made.as_json = True  # fields cannot show what cannot be read


def _read_fields(made: Correction, data: Mapping[str, str]) -> None:
    """A field left empty is an argument left out, unless it is a required text that is ticked as empty on purpose."""
    schemas = tooling.properties(made.definition or {})
    is_new_tool = data.get("was_tool", made.tool) != made.tool
    for key, text in data.items():
        name = key.removeprefix(FIELD)
        if name == key or (is_new_tool and name not in schemas):
            continue
        kind = _kind(schemas.get(name, {}), None)[0]
        may_be_empty = kind == "text" and name in _required(made.definition)
        if text == "" and not (may_be_empty and data.get(f"{EMPTY}{name}")):
            continue
        made.arguments[name] = text if kind in ("text", "choice") else _value(text)


def _required(definition: Mapping[str, Any] | None) -> list[str]:
    parameters = (definition or {}).get("parameters")
    names = parameters.get("required") if isinstance(parameters, Mapping) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _kind(schema: Mapping[str, Any], given: Any) -> tuple[str, list[str]]:
    """The field for a schema, and its choices."""
    options = schema.get("enum")
    if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
        return "choice", options
    kind = schema.get("type")
    if kind == "string" and (given is None or isinstance(given, str)):
        return "text", []
    if kind == "boolean" and (given is None or isinstance(given, bool)):
        return "truth", ["true", "false"]
    if kind in ("integer", "number") and (given is None or isinstance(given, int | float)):
        return "number", []
    return "json", []


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: the schema then says what it should have been."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
