"""A correction in a form of the page: one of six kinds, each with its fields; those of a call are its tool's schema's.

What the form sends is read and checked here, once, for the live preview as for the decision itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django import forms

from flywheel.core.errors import FieldError
from flywheel.core.traces import Message, ToolCall, corrections, tooling
from flywheel.edge.numbers import number
from flywheel.edge.schema_form import Json, ObjectForm, fields_of, texts_of
from flywheel.templatetags.texts import safe_text

FORMS: Final = (
    ("tool", "Change the call", "c"),
    ("calls", "Add a call", "shift+a"),
    ("avoid", "Remove the call", "shift+s"),
    ("text", "Write the answer", "shift+w"),
    ("refuse", "Should refuse", "shift+r"),
    ("ask", "Should ask", "shift+q"),
)
"""What a correction may be, as the chooser names it, with its key."""
FIELD = "arg."
"""Prefix of the arguments' form fields."""
EMPTY = "empty."
"""Prefix of the ticks that a required text is empty on purpose."""
AVOID = "avoid."
"""Prefix of the ticks of tools that should not have been called."""


@dataclass(slots=True)
class CallForm:
    """One call in the making."""

    tools: Sequence[Mapping[str, Any]]
    prefix: str = ""
    """Before the name of each field: empty for the first call, then `1.`, `2.`, …"""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    raw: str = ""
    """The arguments as JSON, when they are written so."""
    as_json: bool = False
    problems: list[FieldError] = field(default_factory=list)
    """Each by the name of its argument."""

    @property
    def definition(self) -> Mapping[str, Any] | None:
        return tooling.find(self.tools, self.tool)

    @property
    def description(self) -> str:
        words = (self.definition or {}).get("description")
        return words if isinstance(words, str) else ""

    @property
    def action(self) -> dict[str, Any]:
        return {"tool": self.tool, "arguments": self.arguments}

    @property
    def json(self) -> str:
        return self.raw or json.dumps(self.arguments, indent=2, ensure_ascii=False)

    @property
    def choices(self) -> list[str]:
        """Tools to offer; without definitions, what was called."""
        names = [tool["name"] for tool in self.tools]
        return names or ([self.tool] if self.tool else [])

    @property
    def fields(self) -> ObjectForm:
        """The arguments' fields: those of the schema, then those that only the call has. A required one may be left
        empty, for the schema says what is missing."""
        fields = fields_of((self.definition or {}).get("parameters"), self.arguments)
        prefix = f"{self.prefix}{FIELD}"
        texts = texts_of(fields, self.arguments, prefix)
        form = ObjectForm(fields, texts, prefix=prefix, auto_id=False, use_required_attribute=False)
        form.errors.clear()
        for name, each in fields.items():
            each.widget.attrs["id"] = f"{prefix}{name}"
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

    def judge(self) -> None:
        if not self.tool:
            self.problems = [FieldError("choose the call that was right", field="tool")]
        else:
            self.problems = self.problems or corrections.problems(self.action, self.tools)


@dataclass(slots=True)
class Correction:
    """A correction in the making."""

    tools: list[dict[str, Any]]
    recorded: Message | None = None
    """What the agent said and called."""
    form: str = ""
    """One of FORMS, or empty while none is chosen."""
    calls: list[CallForm] = field(default_factory=list)
    order: str = "given"
    text: str = ""
    avoid: list[str] = field(default_factory=list)
    own: list[FieldError] = field(default_factory=list)
    """Problems of the whole."""

    @property
    def action(self) -> dict[str, Any] | None:
        """As `Failure.corrected` stores it; None while no form or tool is chosen."""
        if self.form == "tool":
            return self.calls[0].action if self.calls and self.calls[0].tool else None
        if self.form == "calls":
            return {"calls": [call.action for call in self.calls], "order": self.order}
        if self.form == "avoid":
            return {"avoid": self.avoid, "text": self.text}
        return {self.form: self.text} if self.form else None

    @property
    def problems(self) -> list[FieldError]:
        """All of them, those of one call among several with its place."""
        is_one = self.form != "calls"
        found = [
            each if is_one else FieldError(each.problem, field=f"calls.{at}.{each.field}")
            for at, call in enumerate(self.calls)
            for each in call.problems
        ]
        return [*found, *self.own]

    @property
    def called(self) -> list[str]:
        """Tools that can be struck: those that were called, and those that are struck already."""
        return list(dict.fromkeys([*(call.name for call in _recorded_calls(self.recorded)), *self.avoid]))

    @property
    def may_grow(self) -> bool:
        return len(self.calls) < corrections.MOST_CALLS

    def judge(self) -> None:
        """Find what is wrong with it."""
        for call in self.calls:
            call.judge()
        if not self.form:
            self.own = [FieldError("choose the correct action", field="kind")]
        elif not self.calls and self.action is not None:
            self.own = corrections.problems(self.action, self.tools)
        elif self.form == "calls" and len(self.calls) < 2:
            self.own = [FieldError("add another call, or choose Change the call for one alone", field="calls")]
        if self.problems or self.action is None or self.recorded is None:
            return
        if corrections.changes_nothing(self.action, self.recorded):
            self.own = [FieldError("this is what the agent did; change something", field="corrected")]


def of_action(
    tools: list[dict[str, Any]], action: Mapping[str, Any] | None, recorded: Message | None = None
) -> Correction:
    """The form that shows an action: a stored correction, or the agent's own call to start from."""
    made = Correction(tools, recorded, corrections.form_of(action))
    if action is None or not made.form:
        return made
    made.calls = [
        _call_of(tools, call["tool"], call["arguments"], at) for at, call in enumerate(corrections.calls(action))
    ]
    made.order, made.avoid = action.get("order", "given"), list(action.get("avoid", ()))
    made.text = "" if made.calls else str(action.get("text" if made.form == "avoid" else made.form, ""))
    for call in made.calls:
        call.problems = corrections.problems(call.action, tools) if call.tool else []
    return made


def read(tools: list[dict[str, Any]], data: Mapping[str, str], recorded: Message | None = None) -> Correction:
    """Read the correction in the form, with its problems.

    `editor` is how a call's arguments are to be shown, `was` how they were written; the two differ after a switch, as
    `tool` and `was_tool`, `kind` and `was_kind` do. `row` adds a call or takes one out.
    """
    form = data.get("kind", "tool" if "tool" in data else "")
    made = Correction(tools, recorded, form if form in corrections.FORMS else "")
    is_new = data.get("was_kind", made.form) != made.form
    if made.form in ("tool", "calls"):
        made.calls = _read_calls(made, data, is_new)
        made.order = "any" if data.get("order") == "any" else "given"
    else:
        _read_words(made, data, is_new)
    made.judge()
    return made


def _read_calls(made: Correction, data: Mapping[str, str], is_new: bool) -> list[CallForm]:
    """The calls that were sent; where none were, those that the agent made, to start from."""
    recorded = _recorded_calls(made.recorded)
    if made.form == "tool":
        return [_read_call(made, data, 0)] if "tool" in data else [_start(made.tools, recorded[-1:], 0)]
    if is_new:
        first = _read_call(made, data, 0) if "tool" in data else _start(made.tools, recorded[:1], 0)
        more = [_start(made.tools, recorded[at : at + 1], at) for at in range(1, max(2, len(recorded)))]
        return [_start(made.tools, recorded[:1], 0) if len(recorded) > 1 else first, *more][: corrections.MOST_CALLS]
    rows = min(number(data.get("rows", "")) or 2, corrections.MOST_CALLS)
    found = [_read_call(made, data, at) for at in range(rows)]
    row = data.get("row", "")
    if row == "add" and len(found) < corrections.MOST_CALLS:
        found.append(CallForm(made.tools))
    elif row.startswith("remove.") and (gone := number(row.removeprefix("remove."))) is not None and gone < len(found):
        del found[gone]
    for at, call in enumerate(found):
        call.prefix = _prefix(at)
    return found


def _read_words(made: Correction, data: Mapping[str, str], is_new: bool) -> None:
    """The words that were sent. An answer begins with the agent's own, and what is not one without them."""
    own = made.recorded.content if made.recorded is not None else ""
    made.text = data.get("text", own if made.form == "text" else "").replace("\r\n", "\n")
    if is_new and made.form != "text" and made.text.strip() == own.strip():
        made.text = ""
    if made.form == "avoid":
        made.avoid = made.called if is_new else [key.removeprefix(AVOID) for key in data if key.startswith(AVOID)]


def _recorded_calls(recorded: Message | None) -> Sequence[ToolCall]:
    return tooling.calls_of(recorded) if recorded is not None else ()


def _start(tools: list[dict[str, Any]], calls: Sequence[ToolCall], at: int) -> CallForm:
    """A call to start from: the agent's own, where it made one."""
    return _call_of(tools, calls[0].name, calls[0].arguments, at) if calls else CallForm(tools, _prefix(at))


def _call_of(tools: list[dict[str, Any]], name: str, arguments: Any, at: int) -> CallForm:
    """A call as it was made. A tool that there is not leaves the choice open."""
    known = not tools or tooling.find(tools, name) is not None
    given = dict(arguments) if isinstance(arguments, Mapping) else {}
    return CallForm(tools, _prefix(at), name if known else "", given)


def _prefix(at: int) -> str:
    return f"{at}." if at else ""


def _read_call(made: Correction, data: Mapping[str, str], at: int) -> CallForm:
    before = _prefix(at)
    own = {key.removeprefix(before): value for key, value in data.items() if key.startswith(before)}
    call = CallForm(made.tools, before, own.get("tool", ""), as_json=own.get("editor") == "json")
    if not call.tool:
        return call
    if own.get("was", own.get("editor")) == "json":
        _read_json(call, own.get("arguments", ""))
    else:
        recorded = _recorded_calls(made.recorded)
        _read_fields(call, own, recorded[-1] if recorded and not at else None)
    return call


def _read_json(call: CallForm, written: str) -> None:
    call.raw = written
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError) as error:
        call.problems = [FieldError(f"not valid JSON: {error}", field="arguments")]
    else:
        if isinstance(value, dict):
            call.arguments = value
            return
        call.problems = [FieldError("must be an object, such as {}", field="arguments")]
    call.as_json = True  # fields cannot show what cannot be read


def _read_fields(call: CallForm, data: Mapping[str, str], recorded: ToolCall | None) -> None:
    """A field left empty is an argument left out, unless it is a required text that is ticked as empty on purpose.

    Another tool keeps the arguments that it has too; in the place of a tool that there is not, those of the recorded
    call.
    """
    is_new_tool = data.get("was_tool", call.tool) != call.tool
    sent = {} if is_new_tool else {key.removeprefix(FIELD): None for key in data if key.startswith(FIELD)}
    fields = fields_of((call.definition or {}).get("parameters"), sent)
    call.arguments = ObjectForm(fields, data, prefix=FIELD).value
    if is_new_tool and not data.get("was_tool") and recorded is not None and isinstance(recorded.arguments, dict):
        kept = {name: value for name, value in recorded.arguments.items() if name in fields}
        call.arguments = kept | call.arguments
    for name, each in fields.items():
        if type(each) is forms.CharField and each.required and data.get(f"{EMPTY}{name}"):
            call.arguments.setdefault(name, "")
