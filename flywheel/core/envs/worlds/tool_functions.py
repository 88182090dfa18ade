"""The tools that a world's Python defines, read off its text: nothing of it is run here.

Every function at the top level whose name does not begin with `_` is a tool, `reset` excepted. Its description is what
its docstring begins with, its arguments are its parameters with their hints, and a paragraph of the docstring such as
`order_id: The order's number.` describes one of them. The first parameter may be named `state` (a JSON value) or `db`
(an SQLite connection), and is no argument of the tool. `NAMES = {"create_event": "calendar.create-event"}` says what a
tool is called where no function of Python can be called so; `COMPARE = {"send_mail.body": "any"}` says how an argument
is compared with the wanted one (`tooling.COMPARED`).
"""

import ast
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from flywheel.core.digests import canonical, is_deep
from flywheel.core.traces.tooling import COMPARED
from flywheel.core.verifiers import VerifierError

RESET = "reset"
MARKS = {"UNSAFE": "x-unsafe", "OUTWARD": "x-outward"}
"""A list of one of these names at the top level says which tools do harm where nobody asked for them, or do what cannot
be taken back; with the extension of a definition that says so."""
COMPARE = "COMPARE"
"""A dictionary of this name at the top level says how arguments are compared."""
NAMES = "NAMES"
"""A dictionary of this name at the top level has the names of tools by those of their functions."""
KEEPERS = ("state", "db")
MOST_TOOLS = 64
LONGEST_SOURCE = 128 * 1024
"""Bytes."""
_SIMPLE: Mapping[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "dict": {"type": "object"},
    "None": {"type": "null"},
    "Any": {},
    "object": {},
}
_HINTS = "str, int, float, bool, list[…], dict[str, …], Literal[…], and X | None"
_DESCRIBED = re.compile(r"\s*`?(\w+)`?(?:\s*\([^)]*\))?\s*:\s+(\S.*)")
_UNKEPT = re.compile("[\0\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Functions:
    """A world's Python as its environment knows it."""

    tools: tuple[dict[str, Any], ...]
    keeper: str
    """What `reset` makes: `state`, a JSON value, or `db`, an SQLite database."""
    functions: Mapping[str, str]
    """Each tool's name to that of its function."""


def read(source: Any) -> Functions:
    """Read the tools that a source defines. Raises VerifierError, which names the line and what would be right."""
    if not isinstance(source, str) or not source.strip():
        raise VerifierError("source: expected Python: functions that are the tools, and reset(seed)")
    if len(source.encode("utf-8", "replace")) > LONGEST_SOURCE:
        raise VerifierError(f"source: it is longer than {LONGEST_SOURCE // 1024} kB")
    if odd := _UNKEPT.search(source):
        line = source.count("\n", 0, odd.start()) + 1
        raise VerifierError(f"source: line {line}: there is a NUL character or half a surrogate in it")
    try:
        return _read(source)
    except (RecursionError, MemoryError):
        raise VerifierError("source: it is nested too deeply to be read") from None


@lru_cache(maxsize=64)
def _read(source: str) -> Functions:
    try:
        body = ast.parse(source, "world.py").body
    except SyntaxError as error:
        raise VerifierError(f"source: line {error.lineno or 1}: {error.msg}") from None
    except ValueError as error:
        raise VerifierError(f"source: Python cannot read it: {error}") from None
    functions = _by_name(body)
    keeper = _keeper_of(functions.get(RESET))
    found = [each for name, each in functions.items() if name != RESET and not name.startswith("_")]
    if not found:
        raise VerifierError("source: there is no tool; define a function such as def get_order(state, order_id: str)")
    if len(found) > MOST_TOOLS:
        raise VerifierError(f"source: {len(found)} tools are too many; {MOST_TOOLS} are the most")
    marks = {extension: _marked(body, name, {each.name for each in found}) for name, extension in MARKS.items()}
    names = _names(body, {each.name for each in found})
    called = {names.get(each.name, each.name): each for each in found}
    if len(called) < len(found):
        raise VerifierError(f"source: {NAMES} gives two functions the same name")
    made = [_definition(each, keeper) | {"name": name} for name, each in called.items()]
    for tool, function in zip(made, called.values(), strict=True):
        tool |= {extension: True for extension, marked in marks.items() if function.name in marked}
    _compare(body, {function.name: tool for tool, function in zip(made, called.values(), strict=True)})
    return Functions(tuple(made), keeper, {name: each.name for name, each in called.items()})


def _by_name(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    found: dict[str, ast.FunctionDef] = {}
    for node in body:
        if isinstance(node, ast.AsyncFunctionDef):
            _refuse(node, f"{node.name} is async; write it with def alone, for each call is carried out by itself")
        if isinstance(node, ast.FunctionDef):
            if (first := found.get(node.name)) is not None:
                _refuse(node, f"there are two functions named {node.name}; the first is in line {first.lineno}")
            found[node.name] = node
    return found


def _keeper_of(reset: ast.FunctionDef | None) -> str:
    """Return what `reset` makes; it takes the seed, after the database where it fills one."""
    if reset is None:
        raise VerifierError("source: reset(seed) is missing: the function that returns the state at the beginning")
    names = [each.arg for each in _parameters(reset)]
    if names not in (["seed"], ["db", "seed"]):
        _refuse(reset, "reset takes seed and returns a state, or takes db and seed and fills an SQLite database")
    return "db" if len(names) == 2 else "state"


def _definition(function: ast.FunctionDef, keeper: str) -> dict[str, Any]:
    text = inspect.cleandoc(ast.get_docstring(function, clean=False) or "")
    if not text:
        _refuse(function, f"{function.name} has no docstring; its words tell the agent what the tool does")
    described = {match[1]: match[2] for line in text.splitlines() if (match := _DESCRIBED.fullmatch(line))}
    parameters = _parameters(function)
    if parameters and parameters[0].arg in KEEPERS:
        own = parameters.pop(0).arg
        if own != keeper:
            makes = "an SQLite database, so write db" if keeper == "db" else "a JSON state, so write state"
            _refuse(function, f"{function.name} takes {own}, and reset makes {makes}")
    if wrong := next((each.arg for each in parameters if each.arg in KEEPERS), ""):
        _refuse(function, f"{function.name}: {wrong} must be the first parameter")
    optional = _optional(function)
    properties: dict[str, Any] = {}
    for each in parameters:
        if each.annotation is None:
            _refuse(each, f"{function.name}: {each.arg} has no type hint; write {each.arg}: str, or what it is")
        try:
            properties[each.arg] = _schema(each.annotation, function, each.arg)
        except (RecursionError, MemoryError):
            _refuse(each, f"{function.name}: the hint of {each.arg} is nested too deeply")
        if each.arg in described:
            properties[each.arg]["description"] = described[each.arg]
    schema = {
        "type": "object",
        "properties": properties,
        "required": [each.arg for each in parameters if each.arg not in optional],
        "additionalProperties": False,
    }
    tool = {"name": function.name, "description": _summary(text, set(properties)), "parameters": schema}
    if is_deep(tool):
        _refuse(function, f"{function.name}: the hints of its arguments are nested too deeply")
    try:
        canonical(tool)
    except ValueError:  # as escapes a text may hold what cannot stand in a source
        _refuse(function, f"{function.name}: half a surrogate, or a number of thousands of digits, is no JSON")
    return tool


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    given = function.args
    if given.vararg or given.kwarg:
        _refuse(function, f"{function.name}: *args and **kwargs cannot be offered; name each argument")
    if given.posonlyargs:
        _refuse(function, f"{function.name}: arguments are given by name, so leave the / out")
    return [*given.args, *given.kwonlyargs]


def _optional(function: ast.FunctionDef) -> set[str]:
    given = function.args
    late = {each.arg for each in given.args[len(given.args) - len(given.defaults) :]} if given.defaults else set()
    return late | {each.arg for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}


def _summary(text: str, names: set[str]) -> str:
    """The docstring without the lines that describe arguments and the headings above them."""
    kept = []
    for line in text.splitlines():
        match = _DESCRIBED.fullmatch(line)
        if not (match and match[1] in names) and line.strip().lower() not in ("args:", "arguments:", "parameters:"):
            kept.append(line)
    return "\n".join(kept).strip()


def _schema(hint: ast.expr, function: ast.FunctionDef, name: str) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    match hint:
        case ast.Constant(value=None):
            return {"type": "null"}
        case ast.Constant(value=str() as text):
            with suppress(SyntaxError, ValueError):
                return _schema(ast.parse(text, mode="eval").body, function, name)
        case ast.Name(id=plain) | ast.Attribute(attr=plain) if plain in _SIMPLE:
            return dict(_SIMPLE[plain])
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _either([_schema(each, function, name) for each in (left, right)])
        case ast.Subscript(value=ast.Name(id=outer) | ast.Attribute(attr=outer), slice=inner):
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if found := _generic(outer, items, function, name):
                return found
    written = ast.unparse(hint)[:60]
    raise _wrong(hint, f"{function.name}: {name}: the hint {written} has no JSON form; there are {_HINTS}")


def _generic(outer: str, items: list[ast.expr], function: ast.FunctionDef, name: str) -> dict[str, Any] | None:
    if outer == "Literal" and all(isinstance(each, ast.Constant) for each in items):
        values = [each.value for each in items if isinstance(each, ast.Constant)]
        if all(isinstance(value, str) for value in values):
            return {"type": "string", "enum": values}
        return {"enum": values} if all(isinstance(value, str | int | None) for value in values) else None
    if outer in ("list", "List") and len(items) == 1:
        return {"type": "array", "items": _schema(items[0], function, name)}
    if outer in ("dict", "Dict") and len(items) == 2 and isinstance(items[0], ast.Name) and items[0].id == "str":
        return {"type": "object", "additionalProperties": _schema(items[1], function, name)}
    if outer == "Optional" and len(items) == 1:
        return _either([_schema(items[0], function, name), {"type": "null"}])
    if outer == "Union":
        return _either([_schema(each, function, name) for each in items])
    if outer == "Annotated" and items:
        return _schema(items[0], function, name)
    return None


def _either(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return {"anyOf": [inner for each in schemas for inner in each.get("anyOf", [each])]}


def _constant(body: list[ast.stmt], name: str) -> tuple[ast.stmt, Any] | None:
    """The value that a name is given at the top level, with its line; None in its place where it is no plain one."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                try:
                    return node, ast.literal_eval(value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    return node, None
    return None


def _marked(body: list[ast.stmt], mark: str, tools: set[str]) -> set[str]:
    if (found := _constant(body, mark)) is None:
        return set()
    node, names = found
    if not isinstance(names, list | tuple):
        _refuse(node, f'{mark} is a list of names, such as {mark} = ["refund"]')
    if wrong := [name for name in names if not isinstance(name, str) or name not in tools]:
        _refuse(node, f"{mark} names {str(wrong[0])[:60]!r}, and there is no tool of that name")
    return set(names)


def _names(body: list[ast.stmt], tools: set[str]) -> dict[str, str]:
    if (found := _constant(body, NAMES)) is None:
        return {}
    node, names = found
    if not isinstance(names, dict) or not all(map(_is_name, names.values())):
        _refuse(node, f'{NAMES} is a dictionary of names, such as {NAMES} = {{"add": "cart.add"}}')
    if wrong := next((name for name in names if name not in tools), None):
        _refuse(node, f"{NAMES} names {str(wrong)[:60]!r}, and there is no tool of that name")
    return names


def _compare(body: list[ast.stmt], tools: Mapping[str, dict[str, Any]]) -> None:
    """Write into the definitions, by function, how arguments are compared."""
    if (found := _constant(body, COMPARE)) is None:
        return
    node, compared = found
    if not isinstance(compared, dict) or not all(how in COMPARED for how in compared.values()):
        ways = ", ".join(COMPARED)
        _refuse(node, f'{COMPARE} says one of {ways} of arguments, such as {COMPARE} = {{"send_mail.body": "any"}}')
    for place, how in compared.items():
        function, _, argument = str(place).partition(".")
        properties = tools[function]["parameters"]["properties"] if function in tools else {}
        if argument not in properties:
            _refuse(node, f"{COMPARE} names {str(place)[:60]!r}, and no tool has such an argument")
        properties[argument]["x-compare"] = how


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _refuse(node: ast.stmt | ast.expr | ast.arg, problem: str) -> NoReturn:
    raise _wrong(node, problem)


def _wrong(node: ast.stmt | ast.expr | ast.arg, problem: str) -> VerifierError:
    return VerifierError(f"source: line {node.lineno}: {problem}")
