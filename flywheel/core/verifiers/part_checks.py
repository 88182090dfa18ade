"""Whether the settings of a rubric's part go together: one function for each type that has more to say than its fields.

Each takes where the part stands, for the message, and the settings, of which none that is required is missing; it
raises VerifierError.
"""

import ast
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema

from flywheel.core.traces import json_schemas
from flywheel.core.verifiers import VerifierError

LONGEST_PATTERN = 1000

_REFERENCE = re.compile(r"#|#/(\$defs|definitions)/[^/]+")


def nothing(where: str, settings: dict[str, Any]) -> None:
    pass


def wanted_value(where: str, settings: dict[str, Any]) -> None:
    if ("target" in settings) == ("value" in settings):
        raise VerifierError(f"{where}.target: expected a key of the target, or else a value; one of the two")


def regex(where: str, settings: dict[str, Any]) -> None:
    text = settings["pattern"]
    if len(text) > LONGEST_PATTERN:
        raise VerifierError(f"{where}.pattern: expected a pattern of 1 to {LONGEST_PATTERN} characters")
    if words := json_schemas.unreadable(text):
        raise VerifierError(f"{where}.pattern: {words}")


def schema(where: str, settings: dict[str, Any]) -> None:
    schema = settings["schema"]
    if not isinstance(schema, Mapping):
        raise VerifierError(f"{where}.schema: expected a JSON schema, an object in braces")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        at = ".".join(map(str, error.path))
        raise VerifierError(f"{where}.schema{'.' + at if at else ''}: {error.message[:300]}") from None
    if at := _leaves(schema):
        raise VerifierError(f"{where}.schema: {at} is not taken; a reference goes to #, #/$defs/… or #/definitions/…")
    if found := json_schemas.refused(schema):
        raise VerifierError(f"{where}.schema{found[0]}: {found[1]}")


def _leaves(schema: Any) -> str:
    """Find what asks for another dialect within the schema, or leads to a place that was not looked at."""
    if isinstance(schema, list):
        return next(filter(None, map(_leaves, schema)), "")
    if not isinstance(schema, Mapping):
        return ""
    if isinstance(schema.get("$schema"), str):
        return "$schema"
    for key in ("$ref", "$dynamicRef"):
        to = schema.get(key, "#")
        if isinstance(to, str) and not _REFERENCE.fullmatch(to):
            return f"{key} to {to[:80]}"
    return next(filter(None, map(_leaves, schema.values())), "")


def number(where: str, settings: dict[str, Any]) -> None:
    bounds = "least" in settings or "most" in settings
    if bounds and ("target" in settings or "value" in settings):
        raise VerifierError(f"{where}.least: bounds, or a wanted number; not both")
    if not bounds:
        wanted_value(where, settings)
    for name in ("tolerance", "relative"):
        if settings.get(name, 0) < 0:
            raise VerifierError(f"{where}.{name}: {settings[name]:g} is below 0")
    if settings.get("least", -math.inf) > settings.get("most", math.inf):
        raise VerifierError(f"{where}.least: it is above most")


def least(where: str, settings: dict[str, Any]) -> None:
    if not 0 < settings.get("least", 1.0) <= 1:
        raise VerifierError(f"{where}.least: {settings['least']:g} is not above 0 and at most 1")


def call(where: str, settings: dict[str, Any]) -> None:
    wanted_value(where, settings)
    value = settings.get("value")
    if value is None:
        return
    calls = value if settings["read"] == "calls" and isinstance(value, list) else [value]
    for call in calls:
        if not isinstance(call, Mapping) or set(call) - {"tool", "arguments"} or not isinstance(call.get("tool"), str):
            raise VerifierError(f'{where}.value: expected a call {{"tool": name, "arguments": {{…}}}}')
        if not isinstance(call.get("arguments", {}), Mapping):
            raise VerifierError(f"{where}.value: arguments must be an object")


def state(where: str, settings: dict[str, Any]) -> None:
    tables = settings.get("tables")
    if isinstance(tables, str):
        settings["tables"] = [name.strip() for name in tables.split(",") if name.strip()]


def length(where: str, settings: dict[str, Any]) -> None:
    free, most = settings["free"], settings["most"]
    if free < 0:
        raise VerifierError(f"{where}.free: {free:g} is below 0")
    if most <= free:
        raise VerifierError(f"{where}.most: {most:g} is not above the {free:g} tokens that are free")


def python(where: str, settings: dict[str, Any]) -> None:
    if problem := _source_problem(settings["source"]):
        raise VerifierError(f"{where}.source: {problem}")


@lru_cache(maxsize=256)
def _source_problem(source: str) -> str:
    """Say what is wrong with the source of a Python verifier, as far as reading it can tell; it is not run."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"it cannot be read: {error or type(error).__name__}"
    if not any(isinstance(each, ast.FunctionDef) and each.name == "verify" for each in tree.body):
        return "it needs a function verify(trace, target)"
    return ""
