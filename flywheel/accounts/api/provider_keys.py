"""Keys for the servers of models: write-only, for programs."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import ProviderKey, Scope
from flywheel.accounts.project_settings import provider_connection, provider_keys
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class ProviderKeyOut(Schema):
    name: str
    base_url: str
    created_by: Ref
    created_at: datetime


class ProviderKeyIn(Body):
    base_url: str = Field(description="The only server that receives the key, for example https://api.openai.com/v1.")
    key: str = Field(description="The key itself; it is stored encrypted and cannot be read again.")


class TriedOut(Schema):
    works: bool
    words: str
    """What the server answered, or why the connection failed."""


def _keys(request: HttpRequest) -> QuerySet[ProviderKey]:
    return ProviderKey.objects.filter(project=keyed(request).project).select_related("created_by")


@router.get("/provider-keys", auth=admin, response=page_of(ProviderKeyOut), summary="List keys for model servers")
def list_provider_keys(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the project's keys for model servers, newest first, without the secrets."""
    return paginate(_keys(request), query)


@router.put("/provider-keys/{name}", auth=admin, response=ProviderKeyOut, summary="Set a key for a model server")
def enter_provider_key(request: HttpRequest, name: str, body: ProviderKeyIn) -> ProviderKey:
    """Store a key under this name, replacing the existing one if there is one."""
    asked = keyed(request)
    return provider_keys.enter(
        project=asked.project, actor=asked.actor, name=name, base_url=body.base_url, secret=body.key
    )


@router.post("/provider-keys/{name}/try", auth=admin, response=TriedOut, summary="Test a key against its server")
def try_provider_key(request: HttpRequest, name: str) -> dict[str, Any]:
    """Connect to the key's server and return whether it accepts the key. A failed test is not an error: it answers 200
    with `works` false."""
    return provider_connection.try_connection(one(_keys(request), name=name))._asdict()


@router.delete("/provider-keys/{name}", auth=admin, response={204: None}, summary="Delete a key for a model server")
def remove_provider_key(request: HttpRequest, name: str) -> Status[None]:
    """Delete the key. It cannot be restored; set it again to use it."""
    asked = keyed(request)
    provider_keys.remove(key=one(_keys(request), name=name), actor=asked.actor)
    return Status(204, None)
