"""API keys, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.api.paging import Paged, page_of
from flywheel.accounts.models import ApiKey, Scope
from flywheel.accounts.project_settings import api_keys
from flywheel.edge.schemas import Body

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class KeyOut(Schema):
    public: str
    name: str
    scopes: list[str]
    created_by: str
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    @staticmethod
    def resolve_created_by(row: ApiKey) -> str:
        return row.created_by.username


class KeyPage(Schema):
    items: list[KeyOut]
    next: str | None


class KeyIn(Body):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(min_length=1)
    days: int | None = Field(default=None, ge=1, le=3650)


class KeyMade(Schema):
    key: KeyOut
    text: str
    """The secret, told this once."""


@router.get("/keys", auth=admin, response=KeyPage, operation_id="list_keys", summary="API keys, newest first")
def list_keys(request: HttpRequest, asked: Query[Paged]) -> dict[str, Any]:
    rows = ApiKey.objects.filter(project=keyed(request).project).select_related("created_by")
    return page_of(rows, asked)


@router.post("/keys", auth=admin, response={201: KeyMade}, operation_id="make_key", summary="Make a key")
def make_key(request: HttpRequest, body: KeyIn) -> Status[dict[str, Any]]:
    """A key in the name of whose key this is; it never gets a scope that this person may not use."""
    asked = keyed(request)
    try:
        made = api_keys.make(
            project=asked.project,
            actor=asked.actor,
            name=body.name,
            scopes=[scope.value for scope in body.scopes],
            days=body.days,
        )
    except api_keys.BadKey as error:
        raise HttpError(422, str(error)) from error
    return Status(201, {"key": made.key, "text": made.text})


@router.post(
    "/keys/{public}/revoke", auth=admin, response=KeyOut, operation_id="revoke_key", summary="End a key at once"
)
def revoke_key(request: HttpRequest, public: str) -> ApiKey:
    asked = keyed(request)
    key = get_object_or_404(ApiKey.objects.select_related("created_by"), project=asked.project, public=public)
    api_keys.revoke(key=key, actor=asked.actor)
    key.refresh_from_db()
    return key
