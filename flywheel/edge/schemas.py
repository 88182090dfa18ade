"""The base of the API's request bodies."""

from ninja import Schema
from pydantic import ConfigDict


class Body(Schema):
    """A request's JSON body. A field that it does not have is refused by name (422): a misspelt one would otherwise
    count as left out, and the default may be the widest choice."""

    model_config = ConfigDict(extra="forbid")
