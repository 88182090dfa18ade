"""The forms in which agents write their tool calls: native calls, or a text that the agent's own program reads.

A message is written in a form (`write`) and read out of it (`read`), each the other's inverse. An answer in a form that
production does not read is a text there and calls nothing, however right it is (`strange`).

Sources of the text forms: Hermes's function calling prompt (github.com/NousResearch/Hermes-Function-Calling), Meta's
prompt format of Llama 3.1 (`{"name", "parameters"}`), Mistral's `[TOOL_CALLS]`, OpenAI's harmony
(github.com/openai/harmony), and ReAct as LangChain has it (`Action:`, `Action Input:`).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.digests import read_json, read_json_start
from flywheel.core.errors import FieldError
from flywheel.core.traces import Message, ToolCall

NATIVE = "native"
JSON = "json"


@dataclass(frozen=True, slots=True)
class Form:
    label: str
    write: Callable[[str, Sequence[ToolCall]], str]
    """A text before the calls, and the calls, as one text."""
    read: Callable[[str], tuple[str, list[ToolCall]]]
    """The text outside of the calls, and the calls; the text as it is, and none, where it calls nothing."""
    mark: str
    """Stands in every text that calls something."""
    is_models: bool = False
    """A model's own way to write calls, which servers and engines read: it may come as text or as native calls."""


def check(form: Any) -> str:
    """The name of a form, or empty for none. Raises FieldError."""
    if form in ("", NATIVE) or (isinstance(form, str) and form in TEXT_FORMS):
        return str(form)
    raise FieldError(f"{str(form)[:40]!r} is unknown; use one of {', '.join(LABELS)}", field="form")


def write(message: Message, form: str) -> Message:
    """The message with its calls in this form; as it is where they are, where it calls nothing, or without a form."""
    is_written = form in TEXT_FORMS and not message.tool_calls and bool(read(message, form).tool_calls)
    if not form or is_written or not (there := as_native(message)).tool_calls:
        return message
    if form == NATIVE:
        return there
    return replace(there, content=TEXT_FORMS[form].write(there.content, there.tool_calls), tool_calls=())


def read(message: Message, form: str) -> Message:
    """The message with what it calls in this text form as native calls; as it is where there is nothing to read."""
    if message.tool_calls or form not in TEXT_FORMS or TEXT_FORMS[form].mark not in message.content:
        return message
    text, calls = TEXT_FORMS[form].read(message.content)
    return replace(message, content=text, tool_calls=tuple(calls)) if calls else message


def as_native(message: Message) -> Message:
    """The same with native calls, in whatever form it calls."""
    found = (read(message, form) for form in TEXT_FORMS)
    return next((each for each in found if each.tool_calls), message)


def strange(message: Message, form: str) -> str:
    """The label of the form in which the message calls something, where that is not `form`; empty where it is."""
    if not form:
        return ""
    if message.tool_calls:
        return "" if form == NATIVE or TEXT_FORMS[form].is_models else LABELS[NATIVE]
    if read(message, form).tool_calls:
        return ""
    return next((each.label for name, each in TEXT_FORMS.items() if read(message, name).tool_calls), "")


def _call(value: Any, number: int, arguments: str) -> ToolCall | None:
    """The call in an object `{"name", ARGUMENTS}`; None where it is none."""
    if not isinstance(value, Mapping) or set(value) - {"id"} != {"name", arguments}:
        return None
    name, given = value["name"], value[arguments]
    return ToolCall(f"call-{number}", name, given) if isinstance(name, str) and isinstance(given, dict) else None


def _all_calls(values: Sequence[Any], arguments: str = "arguments") -> list[ToolCall]:
    """The calls in these objects; none where one of them is none."""
    calls = [_call(value, number, arguments) for number, value in enumerate(values)]
    return [call for call in calls if call is not None] if all(calls) else []


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _named(calls: Sequence[ToolCall], arguments: str = "arguments") -> list[dict[str, Any]]:
    return [{"name": call.name, arguments: call.arguments} for call in calls]


def _write_json(text: str, calls: Sequence[ToolCall]) -> str:
    """Write calls alone: a text before them would make it no JSON."""
    rows = [{"tool": call.name, "arguments": call.arguments} for call in calls]
    return _dumped(rows[0] if len(rows) == 1 else rows)


def _read_json(text: str) -> tuple[str, list[ToolCall]]:
    value = _json(text) if text.lstrip()[:1] in ("{", "[") else None
    rows = value if isinstance(value, list) else [value]
    named = [
        {"name": row["tool"], "arguments": row["arguments"]}
        for row in rows
        if isinstance(row, Mapping) and set(row) == {"tool", "arguments"}
    ]
    calls = _all_calls(named) if len(named) == len(rows) else []
    return ("" if calls else text), calls


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _write_hermes(text: str, calls: Sequence[ToolCall]) -> str:
    blocks = [f"{_OPEN}\n{_dumped(row)}\n{_CLOSE}" for row in _named(calls)]
    return "\n".join([*filter(None, [text]), *blocks])


def _read_hermes(text: str) -> tuple[str, list[ToolCall]]:
    """A block that is no call stays text."""
    before, *blocks = text.split(_OPEN)
    rest, calls = [before], list[ToolCall]()
    for block in blocks:
        inner, closed, after = block.partition(_CLOSE)
        call = _call(_json(inner.strip()), len(calls), "arguments") if closed else None
        calls += [call] if call else []
        rest.append(after if call else _OPEN + block)
    return ("".join(rest).strip() if calls else text), calls


def _write_llama(text: str, calls: Sequence[ToolCall]) -> str:
    """Write calls alone, as Llama does: it says something or calls something."""
    return "; ".join(map(_dumped, _named(calls, "parameters")))


def _read_llama(text: str) -> tuple[str, list[ToolCall]]:
    values, rest = [], text.strip().removeprefix("<|python_tag|>").strip()
    while rest:
        try:
            value, end = read_json_start(rest)
        except (ValueError, RecursionError):
            return text, []
        values.append(value)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    calls = _all_calls(values, "parameters")
    return ("" if calls else text), calls


_MISTRAL = "[TOOL_CALLS]"


def _write_mistral(text: str, calls: Sequence[ToolCall]) -> str:
    return f"{text}{_MISTRAL}{_dumped(_named(calls))}"


def _read_mistral(text: str) -> tuple[str, list[ToolCall]]:
    before, _, after = text.partition(_MISTRAL)
    value = _json(after)
    calls = _all_calls(value) if isinstance(value, list) else []
    return (before.strip() if calls else text), calls


_START, _TO, _AS = "<|start|>assistant", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
_HARMONY_TEXT = re.compile(r"<\|channel\|>\w+<\|message\|>|<\|end\|>|<\|return\|>|<\|start\|>assistant")


def _write_harmony(text: str, calls: Sequence[ToolCall]) -> str:
    told = f"<|channel|>commentary<|message|>{text}<|end|>" if text else ""
    parts = [f"{_TO}{call.name}{_AS}{_dumped(call.arguments)}<|call|>" for call in calls]
    return _START.join([*filter(None, [told]), *parts])


def _read_harmony(text: str) -> tuple[str, list[ToolCall]]:
    before, *blocks = text.split(_TO)
    rows, rest = list[Any](), [before]
    for block in blocks:
        call, closed, after = block.partition("<|call|>")
        name, _, given = call.partition(_AS)
        rows.append({"name": name, "arguments": _json(given) if closed else None})
        rest.append(after)
    calls = _all_calls(rows)
    return (_HARMONY_TEXT.sub("", "".join(rest)).strip() if calls else text), calls


_ACTION, _INPUT = "Action:", "Action Input:"
_OTHER = ("Thought:", "Observation:")


def _write_react(text: str, calls: Sequence[ToolCall]) -> str:
    steps = [f"{_ACTION} {call.name}\n{_INPUT} {_dumped(call.arguments)}" for call in calls]
    return "\n".join([*filter(None, [text]), *steps])


def _read_react(text: str) -> tuple[str, list[ToolCall]]:
    """An action's input goes on until the next line that begins with a word of the form."""
    rows, rest = list[dict[str, Any]](), list[str]()
    lines: list[str] | None = None
    for line in text.split("\n"):
        if line.startswith(_INPUT) and rows and "input" not in rows[-1]:
            lines = rows[-1]["input"] = [line.removeprefix(_INPUT)]
        elif line.startswith(_ACTION):
            rows.append({"name": line.removeprefix(_ACTION).strip()})
            lines = None
        elif lines is not None and not line.startswith(_OTHER):
            lines.append(line)
        else:
            rest.append(line)
            lines = None
    calls = _all_calls([{"name": row["name"], "arguments": _json("\n".join(row.get("input", [])))} for row in rows])
    return ("\n".join(rest).strip() if calls else text), calls


TEXT_FORMS: dict[str, Form] = {
    JSON: Form('text {"tool", "arguments"}', _write_json, _read_json, '"tool"'),
    "hermes": Form("Hermes text", _write_hermes, _read_hermes, "<tool_call>", is_models=True),
    "llama": Form("Llama text", _write_llama, _read_llama, '"parameters"', is_models=True),
    "mistral": Form("Mistral text", _write_mistral, _read_mistral, _MISTRAL, is_models=True),
    "harmony": Form("harmony text", _write_harmony, _read_harmony, "to=functions.", is_models=True),
    "react": Form("ReAct text", _write_react, _read_react, "Action Input:"),
}
LABELS: dict[str, str] = {NATIVE: "native tool calls"} | {name: form.label for name, form in TEXT_FORMS.items()}
