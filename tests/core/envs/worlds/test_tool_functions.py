"""Tools that follow from a world's Python, and what no world can be, with its line."""

import re
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs.worlds import tool_functions
from flywheel.core.traces import tooling
from flywheel.core.verifiers import VerifierError

RESET = "def reset(seed):\n    return {}\n"


def test_the_example_defines_four_tools_two_of_them_unsafe() -> None:
    source = (Path(tool_functions.__file__).parent / "example_shop.py").read_text()
    functions = tool_functions.read(source)
    assert tooling.check_definitions(list(functions.tools)) == []
    assert [(tool["name"], tool.get("x-unsafe", False)) for tool in functions.tools] == [
        ("find_orders", False),
        ("get_order", False),
        ("refund", True),
        ("cancel", True),
    ]
    assert functions.keeper == "state"
    assert functions.tools[0]["parameters"]["properties"]["customer"]["description"] == "The customer's email address."
    assert 40 <= len(source.splitlines()) <= 70


def test_hints_become_a_schema() -> None:
    source = RESET + (
        "def find(state, name: str, tags: list[str], most: int = 5, by: Literal['a', 'b'] = 'a', "
        "at: float | None = None, more: 'dict[str, int]' = {}, old: Optional[bool] = None, *, raw: Any = None):\n"
        "    'Find it.'\n"
    )
    schema = tool_functions.read(source).tools[0]["parameters"]
    assert schema["required"] == ["name", "tags"]
    assert schema["properties"] == {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "most": {"type": "integer"},
        "by": {"type": "string", "enum": ["a", "b"]},
        "at": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}},
        "old": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "raw": {},
    }


def test_reset_with_a_database_makes_one() -> None:
    source = "def reset(db, seed):\n    pass\ndef look(db):\n    'Look.'\n"
    assert tool_functions.read(source).keeper == "db"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "source: expected Python"),
        ("def reset(seed):\n  return {\n", "line 2: '{' was never closed"),
        ("def look(state):\n    'Look.'\n", r"reset\(seed\) is missing"),
        (RESET, "there is no tool"),
        ("def reset():\n    return {}\n", "line 1: reset takes seed"),
        (f"{RESET}def look(state, name):\n    'Look.'\n", "line 3: look: name has no type hint; write name: str"),
        (
            f"{RESET}def look(state, at: datetime):\n    'Look.'\n",
            "line 3: look: at: the hint datetime has no",
        ),
        (f"{RESET}def look(state):\n    pass\n", "line 3: look has no docstring"),
        (
            f"{RESET}def look(state):\n    'A.'\n\ndef look(state):\n    'B.'\n",
            "line 6: there are two functions named look; the first is in line 3",
        ),
        (f"{RESET}async def look(state):\n    'Look.'\n", "line 3: look is async"),
        (f"{RESET}def look(state, *names: str):\n    'Look.'\n", "line 3: look: .args and ..kwargs cannot be offered"),
        (f"{RESET}def look(db):\n    'Look.'\n", "line 3: look takes db, and reset makes a JSON state"),
        (f"{RESET}def look(name: str, state: dict):\n    'Look.'\n", "line 3: look: state must be the first parameter"),
        (f"{RESET}UNSAFE = ['luck']\ndef look(state):\n    'Look.'\n", "line 3: UNSAFE names 'luck'"),
        (f"{RESET}UNSAFE = 'look'\ndef look(state):\n    'Look.'\n", "line 3: UNSAFE is a list of names"),
        ("x = 1\0", "NUL"),
        (f"{RESET}NAMES = {{'luck': 'a.b'}}\ndef look(state):\n    'Look.'\n", "line 3: NAMES names 'luck'"),
        (
            f"{RESET}NAMES = {{'look': 'a b'}}\ndef look(state):\n    'Look.'\n",
            "line 3: NAMES is a dictionary of names",
        ),
        (f"{RESET}NAMES = dict(a=1)\ndef look(state):\n    'Look.'\n", "line 3: NAMES is a dictionary of names"),
    ],
)
def test_what_is_no_world_is_named_with_its_line(source: str, problem: str) -> None:
    with pytest.raises(VerifierError, match=problem):
        tool_functions.read(source)


def test_a_tool_may_be_called_as_no_function_can() -> None:
    source = f"{RESET}NAMES = {{'look': 'shop.look-up'}}\ndef look(state):\n    'Look.'\n"
    functions = tool_functions.read(source)
    assert functions.tools[0]["name"] == "shop.look-up"
    assert functions.functions == {"shop.look-up": "look"}


def test_nothing_of_it_is_run() -> None:
    source = f"raise SystemExit\n{RESET}def look(state):\n    'Look.'\n"
    assert tool_functions.read(source).tools[0]["name"] == "look"


MANY = " | ".join(["int"] * 960)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ([], "source: expected Python"),
        (None, "source: expected Python"),
        (f"{RESET}def t(x: {MANY}):\n    'T.'\n", "line 3: t: the hint of x is nested too deeply"),
        (f"{RESET}def t(x: '{MANY}'):\n    'T.'\n", "line 3: t: the hint of x is nested too deeply"),
        (f"{RESET}def t(x: '{'-' * 20_000}1'):\n    'T.'\n", "line 3: t: "),
        (f"{RESET}def t(x: {'list[' * 60}int{']' * 60}):\n    'T.'\n", "line 3: t: the hints of its arguments are"),
        (f"{RESET}def t(x: {'list[' * 900}int{']' * 900}):\n    'T.'\n", "source: "),
        (f"{RESET}x = {'-' * 100_000}1\n", "nested too deeply"),
        (f"{RESET}def t(x: '\\0'):\n    'T.'\n", "line 3: t: x: the hint"),
        (f"{RESET}def t():\n    'T \ud800.'\n", "line 4: there is a NUL character or half a surrogate"),
        (f"{RESET}def t():\n    'T \\ud800.'\n", "line 3: t: half a surrogate"),
        (f"{RESET}def t(x: Literal['\\udfff']):\n    'T.'\n", "line 3: t: half a surrogate"),
        (f"{RESET}def t(x: Literal[0x{'f' * 9000}]):\n    'T.'\n", "line 3: t: half a surrogate, or a number"),
        (f"{RESET}def t():\n    'T.'\nNAMES = {{'t': '\\ud800'}}\n", "line 5: NAMES is a dictionary of names"),
        (f"{RESET}def t():\n    'T.'\nUNSAFE = ['\\ud800']\n", "line 5: UNSAFE names "),
    ],
)
def test_hostile_sources_are_refused_and_never_raise_otherwise(source: Any, problem: str) -> None:
    with pytest.raises(VerifierError, match=problem) as refusal:
        tool_functions.read(source)
    str(refusal.value).encode()


def test_a_source_says_what_cannot_be_taken_back_and_how_arguments_are_compared() -> None:
    source = f"""{RESET}OUTWARD = ["mail"]
COMPARE = {{"mail.body": "any", "mail.to": "case"}}
def mail(state, to: str, body: str = ""):
    'Send a mail.'
"""
    (tool,) = tool_functions.read(source).tools
    assert tool["x-outward"] is True
    assert tooling.comparisons(tool) == {"to": "case", "body": "any"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("OUTWARD = ['nothing']", "OUTWARD names 'nothing', and there is no tool of that name"),
        ("OUTWARD = 'mail'", "OUTWARD is a list of names"),
        ("OUTWARD = [['mail']]", "OUTWARD names"),
        ("COMPARE = ['mail.to']", "COMPARE says one of spaces, exact, case, any"),
        ("COMPARE = {'mail.to': 'loosely'}", "COMPARE says one of"),
        ("COMPARE = {'mail.cc': 'any'}", "COMPARE names 'mail.cc', and no tool has such an argument"),
        ("COMPARE = {3: 'any'}", "COMPARE names '3'"),
        ("COMPARE = f()", "COMPARE says one of"),
    ],
)
def test_a_mark_that_fits_no_tool_is_refused(line: str, problem: str) -> None:
    with pytest.raises(VerifierError, match=re.escape(problem)):
        tool_functions.read(f"{RESET}{line}\ndef mail(state, to: str):\n    'Send a mail.'\n")
