"""What the bodies of requests refuse, of every operation of the API."""

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from django.test import Client
from ninja import Schema
from pydantic import ValidationError

from flywheel.agents.models import Agent
from flywheel.edge.schemas import Body, RefIn
from flywheel.server.api import api

Key = Callable[..., dict[str, str]]


def schemas_of(annotation: Any) -> Iterator[type[Schema]]:
    """The schemas in a type, and those in their fields."""
    for part in get_args(annotation):
        yield from schemas_of(part)
    if inspect.isclass(annotation) and issubclass(annotation, Schema):
        yield annotation
        for field in annotation.model_fields.values():
            yield from schemas_of(field.annotation)


OPERATIONS = [
    operation for _, router in api._routers for path in router.path_operations.values() for operation in path.operations
]


def test_every_body_refuses_unknown_fields() -> None:
    bodies = {
        schema
        for operation in OPERATIONS
        for model in operation.models
        if model.__ninja_param_source__ == "body"
        for field in model.model_fields.values()
        for schema in schemas_of(field.annotation)
    }
    assert len(bodies) > 60
    assert {schema for schema in bodies if not issubclass(schema, Body)} == set()
    assert {schema for schema in bodies if schema.model_config.get("extra") != "forbid"} == set()


def test_no_answer_is_a_body() -> None:
    answers = {
        schema
        for operation in OPERATIONS
        for model in operation.response_models.values()
        for field in getattr(model, "model_fields", {}).values()
        for schema in schemas_of(field.annotation)
    }
    assert len(answers) > 60
    assert {schema for schema in answers if issubclass(schema, Body)} == set()


@pytest.mark.django_db
def test_a_misspelt_field_is_named(client: Client, key: Key) -> None:
    body = json.dumps({"name": "mail", "descripton": "reads mail", "admin": True})
    answer = client.post("/api/v1/agents", body, "application/json", headers=key("build"))
    assert answer.status_code == 422
    refused = [(problem["loc"], problem["msg"]) for problem in answer.json()["detail"]]
    message = "Extra inputs are not permitted"
    assert refused == [(["body", "body", "descripton"], message), (["body", "body", "admin"], message)]
    assert not Agent.objects.exists()


class Asking(Body):
    version: RefIn


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("agent@3", "agent@3"),
        ("agent", "agent"),
        ({"name": "agent", "version": 3}, "agent@3"),
        ({"name": "agent", "version": "live"}, "agent@live"),
        ({"name": "agent"}, "agent"),
    ],
)
def test_a_reference_is_a_text_or_an_object(given: object, text: str) -> None:
    assert Asking.model_validate({"version": given}).version == text


@pytest.mark.parametrize("given", [None, 3, {"version": 3}, {"name": "agent", "number": 3}, ["agent"]])
def test_what_is_no_reference_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        Asking.model_validate({"version": given})


def test_a_reference_is_described_as_both() -> None:
    described = Asking.model_json_schema()["properties"]["version"]["anyOf"]
    assert [each["type"] for each in described] == ["string", "object"]
