"""The bases of the API's schemas and of its request bodies, and references in them."""

from typing import Annotated, Any, TypeVar

import ninja
from pydantic import BeforeValidator, ConfigDict, WithJsonSchema, create_model

Base = TypeVar("Base", bound="Schema")


class Schema(ninja.Schema):
    """A shape that the API takes or answers. The docstring below a field is its description in the OpenAPI document."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Body(Schema):
    """A request's JSON body. A field that it does not have is refused by name (422): a misspelt one would otherwise
    count as left out, and the default may be the widest choice."""

    model_config = ConfigDict(extra="forbid")


def made(name: str, base: type[Base], **fields: Any) -> type[Base]:
    """Make a schema that no class statement stands for, with fields as `pydantic.create_model` takes them. Their
    descriptions are in them: looking for docstrings in the source of every module took most of the API's start."""
    return create_model(name, __base__=base, __cls_kwargs__={"use_attribute_docstrings": False}, **fields)


class Named(Body):
    """An object that has versions, by name. Without `version`, the newest version."""

    name: str
    version: int | str | None = None
    """A number, or `live` for an agent."""


def _text(ref: Any) -> Any:
    """Return an object's reference as text; anything else as it is, for others to refuse."""
    if not isinstance(ref, dict):
        return ref
    named = Named.model_validate(ref)
    return named.name if named.version is None else f"{named.name}@{named.version}"


_SCHEMA = {"anyOf": [{"type": "string"}, Named.model_json_schema()]}
RefIn = Annotated[str, BeforeValidator(_text), WithJsonSchema(_SCHEMA)]
"""A reference as a text, `name@version`, or as an object, `{"name", "version"}`; a name alone means the newest, which
is what the row then points at for good. It is read as the text."""
