"""Forms out of JSON schemas: what is shown of an object is what comes back, and nobody's schema breaks the page."""

import json
from typing import Any

import jsonschema
import pytest
from django import forms
from hypothesis import given
from hypothesis import strategies as st

from flywheel.edge.schema_form import ObjectForm, fields_of, json_or_text, texts_of
from tests.edge.posting import posted

NAMES = st.text("abc_-.:[]<\"'é", min_size=1, max_size=6)
# A text of one line: what else a browser's input changes is not the form's to keep. An empty one is left out.
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
WHOLE = st.integers(-(10**300), 10**300)
REAL = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | REAL | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
PROPERTIES: st.SearchStrategy[tuple[dict[str, Any], st.SearchStrategy[Any]]] = st.one_of(
    st.just(({"type": "string"}, TEXTS)),
    st.just(({"type": "integer"}, WHOLE)),
    st.just(({"type": "number"}, WHOLE | REAL)),
    st.just(({"type": "boolean"}, st.booleans())),
    st.lists(TEXTS, min_size=1, max_size=4).map(lambda names: ({"enum": names}, st.sampled_from(names))),
    st.just(({"type": "array"}, st.lists(JSON, max_size=3))),
    st.just(({"type": "object"}, st.dictionaries(TEXTS, JSON, max_size=3))),
    st.just(({"type": ["string", "null"]}, TEXTS | st.none())),
    st.just(({"enum": [1, None, "two"]}, st.sampled_from([1, None, "two"]))),
    st.just(({}, JSON)),
)


@st.composite
def objects(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema and an object that it allows, with some of what is optional and some of what it does not name."""
    named = draw(st.dictionaries(NAMES, PROPERTIES, max_size=5))
    required = [name for name in named if draw(st.booleans())]
    schema = {"type": "object", "properties": {name: each for name, (each, _) in named.items()}, "required": required}
    chosen = [name for name in named if name in required or draw(st.booleans())]
    more = {name: value for name, value in draw(st.dictionaries(NAMES, JSON, max_size=2)).items() if name not in named}
    return schema, {name: draw(named[name][1]) for name in chosen} | more


@given(objects())
def test_an_allowed_object_that_is_shown_comes_back(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, value = case
    jsonschema.Draft202012Validator(schema).validate(value)
    fields = fields_of(schema, value)
    shown = ObjectForm(fields, texts_of(fields, value, "arg."), prefix="arg.")
    form = ObjectForm(fields_of(schema, dict.fromkeys(value)), posted(shown.as_div()), prefix="arg.")
    assert form.value == value
    assert repr(sorted(form.value.items())) == repr(sorted(value.items())), "a whole number stays one"
    assert form.is_valid(), form.errors


ODD = ["9" * 4400, "[" * 9999, "nan", "NaN", "-Infinity"]


@given(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean")] + [{"enum": ["a", "1"]}]),
    TEXTS
    | WHOLE.map(str)
    | REAL.map(str)
    | JSON.map(json.dumps)
    | st.sampled_from(["9" * 4400, "[" * 9999, "nan", "NaN", "-Infinity"]),
)
def test_what_a_field_can_read_its_schema_allows(schema: dict[str, Any], text: str) -> None:
    form = ObjectForm(fields_of({"properties": {"a": schema}}), {"a": text})
    assert form["a"].value() == text
    if form.is_valid() and text.strip():
        jsonschema.Draft202012Validator(schema).validate(form.value["a"])
    else:
        assert form.value["a"] == json_or_text(text) or text.strip() == ""


@pytest.mark.parametrize(
    "schema",
    [None, 5, [], "a", {"properties": 5}, {"properties": [], "required": True}, {"required": {"a": 1}}],
)
def test_a_schema_that_is_none_says_nothing(schema: Any) -> None:
    assert fields_of(schema) == {}
    assert list(fields_of(schema, {"a": 1})) == ["a"]


def test_a_property_whose_schema_is_none_is_json() -> None:
    odd = {"a": True, "b": {"type": 5}, "c": {"enum": []}, "d": {"type": ["string"]}, "e": {"description": 5}}
    fields = fields_of({"properties": odd, "required": ["a"]})
    assert {type(field).__name__ for field in fields.values()} == {"Json"}
    assert [field.required for field in fields.values()] == [True, False, False, False, False]


def test_what_is_left_empty_is_left_out_and_what_is_required_is_missed() -> None:
    fields = fields_of({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]})
    form = ObjectForm(fields, {"a": "", "b": ""})
    assert form.value == {}
    assert form.errors == {"a": ["This field is required."]}


def test_what_is_refused_stands_at_its_field_with_what_was_written() -> None:
    form = ObjectForm(fields_of({"properties": {"a": {"type": "integer"}}}), {"a": "many"})
    form.refuse("a", "<b>is not a number</b>")
    assert form.errors["a"] == ["Enter a whole number.", "<b>is not a number</b>"]
    assert "<b>" not in str(form["a"].errors)
    assert form.value == {"a": "many"}
    assert isinstance(form.fields["a"], forms.IntegerField)
