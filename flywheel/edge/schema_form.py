"""A form out of a JSON schema: a field for each property, and the object that was written in them.

    form = ObjectForm(fields_of(tool["parameters"]), request.POST, prefix="argument-")
    form.value  # {"who": "Bako", "seats": 3}

A text, a number, a truth and a choice among texts have fields of their own; everything else is written as JSON. What is
left empty is left out. `errors` says what a field cannot read; `value` has it as it was written, so that whoever judges
the object as a whole can refuse it in words of their own.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from django import forms

from flywheel.core.digests import read_json


class Json(forms.CharField):
    """Any JSON value."""

    default_error_messages = {"invalid": "This is not JSON: %(why)s."}
    widget = forms.Textarea(attrs={"rows": 3, "class": "code", "spellcheck": "false"})

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            read = read_json(text)
            if "\\u0000" in json.dumps(read):
                raise ValueError("it holds a NUL character")
            return read
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(self.error_messages["invalid"], params={"why": str(error)[:200]}) from None


class Number(forms.FloatField):
    """A number, which stays whole where it is written so, however long it is."""

    def to_python(self, value: Any) -> Any:
        read = super().to_python(value)
        if read is not None and math.isfinite(read):
            with suppress(ValueError):
                return int(str(value))
        return read


class Truth(forms.TypedChoiceField):
    """True, false, or nothing said."""

    def __init__(self, **kwargs: Any) -> None:
        choices = [("", "–"), ("true", "true"), ("false", "false")]
        super().__init__(choices=choices, coerce=lambda value: value == "true", empty_value=None, **kwargs)


_FIELDS: dict[Any, tuple[type[forms.Field], type | tuple[type, ...]]] = {
    "string": (forms.CharField, str),
    "integer": (forms.IntegerField, (int, float)),
    "number": (Number, (int, float)),
    "boolean": (Truth, bool),
}
"""The type that a schema names to its field, and to what a value of it is in Python."""


def field_of(name: str, schema: Any, *, is_required: bool = False, value: Any = None) -> forms.Field:
    """The field of one property. One whose value is of another type than its schema says is written as JSON."""
    said = schema if isinstance(schema, Mapping) else {}
    words, choices, kind = said.get("description"), said.get("enum"), said.get("type")
    help_text = words if isinstance(words, str) else ""
    common: dict[str, Any] = {"label": name, "required": is_required, "help_text": help_text}
    if isinstance(choices, list) and choices and all(isinstance(each, str) for each in choices):
        other = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        there = [] if value is None or value in choices else [other]
        empty = [] if is_required else [("", "–")]
        return forms.ChoiceField(choices=[*empty, *((each, each) for each in [*there, *choices])], **common)
    field, types = _FIELDS.get(kind if isinstance(kind, str) else None, (Json, object))
    if value is not None and (not isinstance(value, types) or isinstance(value, bool) is not (field is Truth)):
        field = Json
    return field(**(common | ({"strip": False} if field is forms.CharField else {})))


def fields_of(schema: Any, value: Mapping[str, Any] | None = None) -> dict[str, forms.Field]:
    """A field for each property of an object's schema, then for what only the value has. Required ones come first, in
    the order of their list: it stays as it was sent where the database sorts the properties. The schema may be
    anybody's: what is none in it says nothing."""
    said, value = schema if isinstance(schema, Mapping) else {}, value or {}
    properties, required = said.get("properties"), said.get("required")
    schemas = dict(properties) if isinstance(properties, Mapping) else {}
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    first = [name for name in wanted if name in schemas]
    return {
        name: field_of(name, schemas.get(name), is_required=name in wanted, value=value.get(name))
        for name in dict.fromkeys([*first, *schemas, *value])
    }


def texts_of(fields: Mapping[str, forms.Field], value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the texts that the fields send for an object."""
    as_json = {name for name, each in value.items() if not isinstance(each, str) or isinstance(fields[name], Json)}
    return {
        f"{prefix}{name}": json.dumps(each, ensure_ascii=False) if name in as_json else each
        for name, each in value.items()
    }


class ObjectForm(forms.Form):
    """The fields of an object, each with a prefix before its name."""

    def __init__(self, fields: Mapping[str, forms.Field], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields.update(fields)

    def add_prefix(self, field_name: str) -> str:
        return f"{self.prefix or ''}{field_name}"

    @cached_property
    def value(self) -> dict[str, Any]:
        """The object that was written. What its field cannot read is in it as `unread` has it."""
        texts = {name: self[name].data or "" for name in self.fields}
        is_said = {name: text.strip() if isinstance(self.fields[name], Json) else text for name, text in texts.items()}
        return {name: self._read(self.fields[name], text) for name, text in texts.items() if is_said[name]}

    def _read(self, field: forms.Field, text: Any) -> Any:
        try:
            return field.clean(text)
        except forms.ValidationError:
            return self.unread(text)

    def unread(self, text: str) -> Any:
        """Return the value for a text that its field cannot read."""
        return json_or_text(text)

    def refuse(self, name: str, problem: str) -> None:
        """Show at its field what the judge of the object refused."""
        self.errors.setdefault(name, self.error_class()).append(problem)


def json_or_text(text: str) -> Any:
    """Read the text as JSON; else return the text itself."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text
