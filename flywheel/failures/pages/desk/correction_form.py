"""The corrected action, as a form: fields made from the tool's JSON schema, or the arguments as JSON.

What the form sends is read and checked here, once, for the live preview as for the decision itself.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms

from flywheel.core.errors import FieldError
from flywheel.core.traces import tooling
from flywheel.edge.schema_form import Json, ObjectForm, fields_of, texts_of
from flywheel.failures.labels.decisions import correction_problems
from flywheel.templatetags.texts import safe_text

TEXT = "(answer in words)"
"""The choice among the tools that stands for no call but a text; no tool can have this name."""
FIELD = "arg."
"""Prefix of the arguments' form fields."""
EMPTY = "empty."
"""Prefix of the ticks that a required text is empty on purpose."""


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
    problems: list[FieldError] = field(default_factory=list)

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
        """Choices to offer: the tools, what was called though it is none of them, and words."""
        names = [tool["name"] for tool in self.tools]
        extra = [self.tool] if self.tool and self.tool not in (*names, TEXT) and not names else []
        return [*names, *extra, TEXT]

    @property
    def fields(self) -> ObjectForm:
        """The arguments' fields: those of the schema, then those that only the call has. A required one may be left
        empty, for the schema says what is missing."""
        fields = fields_of((self.definition or {}).get("parameters"), self.arguments)
        texts = texts_of(fields, self.arguments, FIELD)
        form = ObjectForm(fields, texts, prefix=FIELD, auto_id=False, use_required_attribute=False)
        form.errors.clear()
        for name, each in fields.items():
            each.widget.attrs["id"] = f"{FIELD}{name}"
            if isinstance(each, Json):
                each.widget.attrs["rows"] = 2
            elif isinstance(each, forms.ChoiceField):
                choices: Any = each.choices
                each.choices = [("", "left out"), *((value, safe_text(label)) for value, label in choices if value)]
        for problem in self.problems:
            if problem.field in fields:
                form.refuse(problem.field, problem.problem)
        return form

    @property
    def general(self) -> list[FieldError]:
        """Problems that belong to no field."""
        named = {} if self.as_json else self.fields.fields
        return [problem for problem in self.problems if problem.field not in named]


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
    """Read the correction in the form, with its problems.

    `editor` is how the arguments are to be shown, `was` how they were written; the two differ after a switch, as `tool`
    and `was_tool` do.
    """
    made = Correction(tools, tool=data.get("tool", ""), text=data.get("text", ""), as_json=data.get("editor") == "json")
    if not made.tool:
        made.problems = [FieldError("choose what should have been called", field="tool")]
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
        made.problems = [FieldError(f"not valid JSON: {error}", field="arguments")]
    else:
        if isinstance(value, dict):
            made.arguments = value
            return
        made.problems = [FieldError("must be an object, such as {}", field="arguments")]
    made.as_json = True  # fields cannot show what cannot be read


def _read_fields(made: Correction, data: Mapping[str, str]) -> None:
    """A field left empty is an argument left out, unless it is a required text that is ticked as empty on purpose."""
    is_new_tool = data.get("was_tool", made.tool) != made.tool
    sent = {} if is_new_tool else {key.removeprefix(FIELD): None for key in data if key.startswith(FIELD)}
    fields = fields_of((made.definition or {}).get("parameters"), sent)
    made.arguments = ObjectForm(fields, data, prefix=FIELD).value
    for name, each in fields.items():
        if type(each) is forms.CharField and each.required and data.get(f"{EMPTY}{name}"):
            made.arguments.setdefault(name, "")
