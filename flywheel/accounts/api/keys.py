"""API keys, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import ApiKey, Scope
from flywheel.accounts.project_settings import api_keys
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class KeyOut(Schema):
    public: str
    """The part of the key that is no secret; it identifies the key."""
    name: str
    scopes: list[str]
    created_by: Ref
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class KeyIn(Body):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(min_length=1)
    """What the key may do; at least one scope."""
    days: int | None = Field(default=None, ge=1, le=3650)
    """Days until the key expires; null for a key that does not expire."""


class KeyMade(Schema):
    key: KeyOut
    text: str
    """The key itself. It is shown only once."""


@router.get("/keys", auth=admin, response=page_of(KeyOut), summary="List API keys, newest first")
def list_keys(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the project's API keys, newest first, including expired and revoked ones. Secrets are never included."""
    rows = ApiKey.objects.filter(project=keyed(request).project).select_related("created_by")
    return paginate(rows, query)


@router.post("/keys", auth=admin, response={201: KeyMade}, summary="Create an API key")
def make_key(request: HttpRequest, body: KeyIn) -> Status[dict[str, Any]]:
    """Create a key for the person whose key you use. It can't have a scope that this person may not use."""
    asked = keyed(request)
    made = api_keys.make(
        project=asked.project,
        actor=asked.actor,
        name=body.name,
        scopes=[scope.value for scope in body.scopes],
        days=body.days,
    )
    return Status(201, {"key": made.key, "text": made.text})


@router.post("/keys/{public}/revoke", auth=admin, response=KeyOut, summary="Revoke an API key immediately")
def revoke_key(request: HttpRequest, public: str) -> ApiKey:
    """Revoke the key. Requests with it are refused from then on. Returns the key."""
    asked = keyed(request)
    key = one(ApiKey.objects.filter(project=asked.project).select_related("created_by"), public=public)
    api_keys.revoke(key=key, actor=asked.actor)
    key.refresh_from_db()
    return key
