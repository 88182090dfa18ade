"""JSON schemas that people wrote, where they judge what a policy wrote.

RE2 runs their patterns instead of Python's regular expressions, which a text of thirty letters can keep busy for ever;
no schema within a schema changes that, and none is fetched.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema
import re2
from jsonschema.protocols import Validator
from referencing import Registry


@lru_cache(maxsize=256)
def pattern(text: str) -> Any:
    """RE2's reading of a pattern. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(text, options)


def utf8(text: str) -> str:
    """The text as RE2 can read it: UTF-8 holds no lone surrogate."""
    return text.encode("utf-8", "replace").decode()


def _pattern_keyword(_: Any, text: str, instance: Any, __: Any) -> Any:
    if isinstance(instance, str) and not pattern(text).search(utf8(instance)):
        yield jsonschema.ValidationError(f"{instance[:120]!r} does not match {text!r}")


_JUDGE: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"pattern": _pattern_keyword}
)
_evolve_by_dialect = _JUDGE.evolve


def _evolve(self: Any, **changes: Any) -> Any:
    """The validator of a schema within: still this class, where `$schema` would choose one with Python's patterns."""
    schema = changes.get("schema", self.schema)
    if isinstance(schema, dict) and "$schema" in schema:
        changes["schema"] = {key: value for key, value in schema.items() if key != "$schema"}
    return _evolve_by_dialect(self, **changes)


_JUDGE.evolve = _evolve


@lru_cache(maxsize=512)
def validator(schema: bytes) -> Validator:
    """The judge of a schema, which is given as JSON, for it is kept by that. Without a registry, jsonschema would
    fetch what is referred to elsewhere. Its errors raise re2.error where `refused` was not asked."""
    made: Validator = _JUDGE(json.loads(schema), registry=Registry())
    return made


@lru_cache(maxsize=512)
def problem(schema: bytes) -> str:
    """The first fault of a schema, which is given as JSON, after its place: `.properties.a: …`. Empty without one. To
    look takes milliseconds, and every task of an environment brings the same schemas."""
    try:
        jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    except jsonschema.SchemaError as error:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)
        return f"{place}: {error.message}"
    return ""


def refused(schema: Any, at: str = "") -> tuple[str, str] | None:
    """The place in a schema (such as `.properties.a.pattern`) of a pattern that RE2 cannot run, and why; None where
    there is none."""
    if isinstance(schema, list):
        return next(filter(None, (refused(each, f"{at}.{number}") for number, each in enumerate(schema))), None)
    if not isinstance(schema, Mapping):
        return None
    for key, value in schema.items():
        found = None
        if key == "patternProperties":
            return f"{at}.{key}", "patternProperties are not limited in time; name the properties"
        if key == "pattern" and isinstance(value, str):
            if words := unreadable(value):
                return f"{at}.{key}", words
        elif key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            named = (refused(each, f"{at}.{key}.{name}") for name, each in value.items())
            found = next(filter(None, named), None)
        elif key not in ("enum", "const", "default", "examples"):
            found = refused(value, f"{at}.{key}")
        if found:
            return found
    return None


def unreadable(text: str) -> str:
    """Why RE2 cannot read a pattern; empty when it can."""
    try:
        pattern(text)
    except re2.error as error:
        said = error.args[0] if error.args else "cannot be read"
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    except UnicodeEncodeError:
        return "it holds half a character"
    return ""
