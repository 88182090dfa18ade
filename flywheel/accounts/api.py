"""Members, keys and the audit log for programs; with the scope `admin`, as the pages under Settings."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts import audit, keys, members
from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import ApiKey, AuditEntry, Role, Scope, User
from flywheel.paging import BadCursor, keyset

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class MemberOut(Schema):
    username: str
    roles: list[str]


class MembersOut(Schema):
    items: list[MemberOut]


class RolesIn(Schema):
    roles: list[Role]
    """All of them; none removes the member."""


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


class KeyIn(Schema):
    name: str = Field(min_length=1, max_length=100)
    scopes: list[Scope] = Field(min_length=1)
    days: int | None = Field(default=None, ge=1, le=3650)


class KeyMade(Schema):
    key: KeyOut
    text: str
    """The secret, told this once."""


class Paged(Schema):
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str = ""


class EntryQuery(Paged):
    action: str = ""
    actor: str = ""
    q: str = ""


class EntryOut(Schema):
    id: int
    at: datetime
    actor: str
    through: str
    action: str
    subject: str
    reason: str
    data: dict[str, Any]

    @staticmethod
    def resolve_actor(row: AuditEntry) -> str:
        return row.actor.username


class EntryPage(Schema):
    items: list[EntryOut]
    next: str | None


@router.get("/members", auth=admin, response=MembersOut, operation_id="list_members", summary="Members and their roles")
def list_members(request: HttpRequest) -> dict[str, Any]:
    roles: dict[str, list[str]] = {}
    for username, role in (
        keyed(request).project.memberships.order_by("user__username", "role").values_list("user__username", "role")
    ):
        roles.setdefault(username, []).append(role)
    return {"items": [{"username": username, "roles": found} for username, found in roles.items()]}


@router.put(
    "/members/{username}", auth=admin, response=MemberOut, operation_id="set_member_roles", summary="Change the roles"
)
def set_member_roles(request: HttpRequest, username: str, body: RolesIn) -> dict[str, Any]:
    """Gives a member exactly these roles. New people are added on the page, which shows their password once."""
    asked = keyed(request)
    user = get_object_or_404(User.objects.filter(memberships__project=asked.project).distinct(), username=username)
    try:
        members.set_roles(project=asked.project, actor=asked.actor, user=user, roles=body.roles, through=asked.through)
    except members.BadMembership as error:
        raise HttpError(409, str(error)) from error
    return {"username": username, "roles": sorted(set(body.roles))}


@router.get("/keys", auth=admin, response=KeyPage, operation_id="list_keys", summary="API keys, newest first")
def list_keys(request: HttpRequest, asked: Query[Paged]) -> dict[str, Any]:
    rows = ApiKey.objects.filter(project=keyed(request).project).select_related("created_by")
    return _page(rows, asked)


@router.post("/keys", auth=admin, response={201: KeyMade}, operation_id="make_key", summary="Make a key")
def make_key(request: HttpRequest, body: KeyIn) -> Status[dict[str, Any]]:
    """A key in the name of whose key this is; it never gets a scope that this person may not use."""
    asked = keyed(request)
    try:
        made = keys.make(
            project=asked.project,
            actor=asked.actor,
            name=body.name,
            scopes=[scope.value for scope in body.scopes],
            days=body.days,
            through=asked.through,
        )
    except keys.BadKey as error:
        raise HttpError(422, str(error)) from error
    return Status(201, {"key": made.key, "text": made.text})


@router.post(
    "/keys/{public}/revoke", auth=admin, response=KeyOut, operation_id="revoke_key", summary="End a key at once"
)
def revoke_key(request: HttpRequest, public: str) -> ApiKey:
    asked = keyed(request)
    key = get_object_or_404(ApiKey.objects.select_related("created_by"), project=asked.project, public=public)
    keys.revoke(key=key, actor=asked.actor, through=asked.through)
    key.refresh_from_db()
    return key


@router.get(
    "/audit",
    auth=admin,
    response=EntryPage,
    operation_id="list_audit_entries",
    summary="Who changed what, newest first",
)
def list_audit_entries(request: HttpRequest, asked: Query[EntryQuery]) -> dict[str, Any]:
    """`action` is a room, `failures`, or one verb of it, `failures.confirm`; `q` stands in subject or reason."""
    rows = audit.entries(keyed(request).project, action=asked.action, actor=asked.actor, text=asked.q)
    return _page(rows, asked)


def _page(rows: Any, asked: Paged) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit)
    except BadCursor as error:
        raise HttpError(400, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}
