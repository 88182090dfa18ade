"""Tool definitions and tool calls: reading a call out of a message, checking it against its schema.

A definition is `{"name", "description", "parameters"}`, parameters being a JSON schema. Five extensions, all optional.
On a property: `"x-entity": true` says that its value names something in the world (a person, an id) and must come from
the conversation or the state; `"x-refers": "people"` says in which list of the state it must stand; `"x-compare"` says
how a given value is compared with the wanted one, one of `COMPARED`. On the definition: `"x-unsafe": true` says that
calling it without being asked to does harm, `"x-outward": true` that what it does leaves the system and cannot be taken
back (`outward_acts`). `definitions` reads the shapes of others: OpenAI's two, Anthropic's and MCP's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from flywheel.core.digests import canonical, read_json
from flywheel.core.errors import FieldError
from flywheel.core.text.normal_form import COMPARISONS, SPACES
from flywheel.core.traces import Message, ToolCall, json_schemas

_OURS = frozenset({"x-entity", "x-refers", "x-compare"})
ANY = "any"
COMPARED = (*COMPARISONS, ANY)
"""How values of an argument are compared: as texts are, or not at all, where an agent finds its own words."""
SCHEMAS = ("parameters", "input_schema", "inputSchema")
"""Where a definition has its JSON schema: ours and OpenAI's, Anthropic's, MCP's."""
_EXAMPLE = '{"type": "function", "function": {"name": …, "parameters": {…}}}'
_JSON_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"), (str, "a text"), ((int, float), "a number"), (list, "a list"), (dict, "an object"),
)  # fmt: skip
_FOREIGN = frozenset({"type", "function", "input_schema", "inputSchema"})
_PATTERNS = frozenset({"pattern", "patternProperties"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """The one call that a message makes, or why there is none."""

    call: ToolCall | None
    problem: str = ""


def parse_call(message: Message | None) -> Parsed:
    """The call of an agent message: a native tool call, or the text `{"tool": name, "arguments": {…}}`."""
    if message is None:
        return Parsed(None, "the agent wrote nothing")
    if message.tool_calls:
        if len(message.tool_calls) > 1:
            return Parsed(None, f"{len(message.tool_calls)} tool calls where one is wanted")
        call = message.tool_calls[0]
        if isinstance(call.arguments, str):
            return Parsed(None, "the call's arguments are not a JSON object")
        return Parsed(call)
    if not message.content.strip():
        return Parsed(None, "the agent wrote nothing")
    try:
        value = read_json(message.content)
    except (ValueError, RecursionError) as error:
        return Parsed(None, f"not valid JSON: {error}")
    if not isinstance(value, dict) or set(value) != {"tool", "arguments"}:
        return Parsed(None, 'not a call of the form {"tool": …, "arguments": {…}}')
    if not isinstance(value["tool"], str) or not isinstance(value["arguments"], dict):
        return Parsed(None, '"tool" must be a string and "arguments" an object')
    return Parsed(ToolCall("", value["tool"], value["arguments"]))


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls that a message makes; a text is one when it has the form of one."""
    # Most texts are none, which their first letter tells sooner than a JSON parser does.
    if message.tool_calls or message.content.lstrip()[:1] != "{":
        return message.tool_calls
    call = parse_call(message).call
    return (call,) if call else ()


def answered_calls(messages: Sequence[Message]) -> list[list[tuple[ToolCall, str | None]]]:
    """The calls of each message of the agent, with what each was answered in the results that follow it: by the call's
    id, else in their order. None for a call without an answer."""
    found = []
    for place, message in enumerate(messages):
        if message.role == "assistant":
            calls = calls_of(message)
            results = list(takewhile(lambda each: each.role == "tool", messages[place + 1 :])) if calls else []
            by_id = {each.tool_call_id: each.content for each in results if each.tool_call_id}
            has_ids = any(call.id in by_id for call in calls)
            by_place = {} if has_ids else {at: each.content for at, each in enumerate(results)}
            found.append([(call, by_id.get(call.id, by_place.get(at))) for at, call in enumerate(calls)])
    return found


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as the text form that `parse_call` reads."""
    return json.dumps({"tool": name, "arguments": dict(arguments)}, ensure_ascii=False)


def find(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((tool for tool in tools if tool.get("name") == name), None)


def schema_problems(
    tool: Mapping[str, Any], arguments: Mapping[str, Any], *, patterns: bool = True
) -> list[FieldError]:
    """List the arguments' problems under the tool's schema, with their places in them; empty when there are none.

    Leave `patterns` out for a schema that came from outside: RE2, which runs them, may not know what they say.
    """
    schema = tool.get("parameters", {})
    validator = json_schemas.validator(canonical(schema if patterns else _without(schema, _PATTERNS)))
    return [
        FieldError(error.message, field=".".join(map(str, error.path)) or "arguments")
        for error in sorted(validator.iter_errors(dict(arguments)), key=lambda error: list(map(str, error.path)))
    ]


def definitions(value: Any) -> Any:
    """A list of tool definitions in our shape, whichever known shape each was in; keys of a schema keep their order.

    Known are ours, OpenAI's `{"type": "function", "function": {…}}`, the flat one of its Responses API, Anthropic's
    with `input_schema` and MCP's with `inputSchema`. An object that holds the list under `tools`, as MCP answers, is
    taken too. Anything else is left as it is, for `check_definitions` to name.
    """
    if isinstance(value, Mapping) and isinstance(value.get("tools"), list):
        value = value["tools"]
    return [_definition(tool) for tool in value] if isinstance(value, list) else value


def _definition(tool: Any) -> Any:
    if not isinstance(tool, dict) or not _FOREIGN & tool.keys():
        return tool
    if tool.get("type", "function") != "function" and "input_schema" not in tool:
        return tool  # one that the provider carries out, such as web_search
    if isinstance(inner := tool.get("function"), dict):
        tool = {**inner, **{key: item for key, item in tool.items() if str(key).startswith("x-")}}
    elif "function" in tool:
        return tool
    kept = {key: tool[key] for key in tool if key in ("name", "description") or str(key).startswith("x-")}
    if kept.get("description", "") is None:
        del kept["description"]
    schema = next((tool[key] for key in SCHEMAS if tool.get(key) is not None), None)
    return kept if schema is None else {**kept, "parameters": schema}


def call_error(
    tools: Sequence[Mapping[str, Any]], name: str, arguments: Mapping[str, Any], state: Mapping[str, Any]
) -> str:
    """Simulate a call. Empty when it would go through, else the error that the tool would answer."""
    tool = find(tools, name)
    if tool is None:
        return f"unknown tool {name!r}"
    if problems := schema_problems(tool, arguments):
        return "; ".join(map(str, problems))
    known_properties = properties(tool)
    for key, value in arguments.items():
        known = state.get(str(known_properties.get(key, {}).get("x-refers", "")))
        if known is not None and value not in known:
            return f"{key}: there is no {value!r}"
    return ""


def in_order(tools: Sequence[Mapping[str, Any]], name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments in the order in which the tool's schema requires them, since that is how policies learnt to write.

    Who imitates another order unlearns what it could; and a database that stores JSON forgets the order.
    """
    parameters = (find(tools, name) or {}).get("parameters")
    wanted = parameters.get("required", ()) if isinstance(parameters, Mapping) else ()
    required = [key for key in wanted if key in arguments]
    return {key: arguments[key] for key in [*required, *(key for key in arguments if key not in required)]}


def comparisons(tool: Mapping[str, Any] | None) -> dict[str, str]:
    """Return how the tool's arguments are compared, those alone of which it says so."""
    return {name: str(schema["x-compare"]) for name, schema in properties(tool or {}).items() if "x-compare" in schema}


def agreement(
    given: Mapping[str, Any], wanted: Mapping[str, Any], how: Mapping[str, str] = MappingProxyType({})
) -> float:
    """The share of arguments, wanted or given, whose value is the wanted one. `how` are the tool's `comparisons`."""
    every = {name for name in (*given, *wanted) if how.get(name) != ANY}
    if not every:
        return 1.0
    both = (name for name in every if name in given and name in wanted)
    return sum(is_same(given[name], wanted[name], how.get(name, SPACES)) for name in both) / len(every)


def is_same(given: Any, wanted: Any, how: str = SPACES) -> bool:
    """Whether two values of an argument are one: texts as `how` says, one of `COMPARED`, anything else as it is."""
    if how == ANY:
        return True
    if isinstance(given, str) and isinstance(wanted, str):
        fold = COMPARISONS[how]
        return fold(given) == fold(wanted)
    return bool(given == wanted) and isinstance(given, bool) == isinstance(wanted, bool)


def differences(
    given: Mapping[str, Any], wanted: Mapping[str, Any], how: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Tell in words which arguments are missing, not wanted or wrong."""
    wrong = [f"{key} is missing" for key in wanted if key not in given and how.get(key) != ANY]
    wrong += [f"{key} is not wanted" for key in given if key not in wanted and how.get(key) != ANY]
    return wrong + [
        f"{key} is {given[key]!r}, wanted {wanted[key]!r}"
        for key in wanted
        if key in given and not is_same(given[key], wanted[key], how.get(key, SPACES))
    ]


def check_definitions(tools: Any) -> list[str]:
    """List the problems of a list of tool definitions in our shape; empty when there are none."""
    if not isinstance(tools, list):
        return ["tools must be a list of definitions"]
    return [problem for index, tool in enumerate(tools) if (problem := _problem(f"tools[{index}]", tool))]


def _problem(at: str, tool: Any) -> str:
    if not isinstance(tool, dict):
        return f"{at}: is {json_name(tool)}, not a definition such as {_EXAMPLE}"
    if "type" in tool and tool["type"] != "function":
        kind = repr(tool["type"])[:100]
        return f"{at}.type: {kind} is no function; only functions that the agent itself carries out can be given"
    if "function" in tool:
        return f'{at}.function: is {json_name(tool["function"])}, not an object with "name" and "parameters"'
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        return f'{at}: needs a "name", as {_EXAMPLE} has one'
    if not isinstance(tool.get("description", ""), str):
        return f"{at}.description: is {json_name(tool['description'])}, not a text"
    if not isinstance(tool.get("parameters", {}), dict | bool):
        return f"{at}.parameters: is {json_name(tool['parameters'])}, not a JSON schema"
    for name, how in comparisons(tool).items():
        if how not in COMPARED:
            return f"{at}.parameters.properties.{name}.x-compare: {how[:60]!r} is not one of {', '.join(COMPARED)}"
    try:
        problem = json_schemas.problem(canonical(tool.get("parameters", {})))
    except ValueError as error:
        problem = f": {error}"
    return f"{at}.parameters{problem}" if problem else ""


def json_name(value: Any) -> str:
    """The name of a JSON value's type, for a message: `a number`, `null`."""
    for kinds, name in _JSON_NAMES:
        if isinstance(value, kinds):
            return name
    return "null"


def unjudgeable(tools: Any) -> list[str]:
    """The patterns in well-formed definitions by which no call can be judged, and why; empty when there is none."""
    found = ((index, json_schemas.refused(tool.get("parameters", {}))) for index, tool in enumerate(tools))
    return [f"tools[{index}].parameters{refused[0]}: {refused[1]}" for index, refused in found if refused]


def plain(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The definition as anybody's server takes it: name, description and parameters, without our extensions."""
    shown = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return shown | ({"parameters": _without(shown["parameters"], _OURS)} if "parameters" in shown else {})


def properties(tool: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The schema of each argument, those alone that are schemas."""
    parameters = tool.get("parameters")
    found = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: schema for name, schema in found.items() if isinstance(schema, Mapping)}


def _without(schema: Any, keywords: frozenset[str]) -> Any:
    """The schema without these keywords, those within it too."""
    if isinstance(schema, list):
        return [_without(item, keywords) for item in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = keywords
    if "patternProperties" in keywords and "patternProperties" in schema:  # by them it is told what is additional
        dropped |= {"additionalProperties", "unevaluatedProperties"}
    return {
        # What stands under these is called as it likes.
        key: {name: _without(item, keywords) for name, item in value.items()}
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict)
        else _without(value, keywords)
        for key, value in schema.items()
        if key not in dropped
    }
