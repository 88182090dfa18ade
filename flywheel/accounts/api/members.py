"""Members and their roles, for programs."""

from typing import Any

from django.http import HttpRequest
from ninja import Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Role, Scope, User
from flywheel.accounts.project_settings import members
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["accounts"])
admin = Key(Scope.ADMIN)


class MemberOut(Schema):
    username: str
    roles: list[str]


class MembersOut(Schema):
    items: list[MemberOut]


class RolesIn(Body):
    roles: list[Role]
    """All roles that the member has from then on. An empty list removes the member."""


@router.get("/members", auth=admin, response=MembersOut, summary="List members and their roles")
def list_members(request: HttpRequest) -> dict[str, Any]:
    """List all members of the project by username, with their roles."""
    roles: dict[str, list[str]] = {}
    rows = keyed(request).project.memberships.order_by("user__username", "role")
    for username, role in rows.values_list("user__username", "role"):
        roles.setdefault(username, []).append(role)
    return {"items": [{"username": username, "roles": found} for username, found in roles.items()]}


@router.put("/members/{username}", auth=admin, response=MemberOut, summary="Set a member's roles")
def set_member_roles(request: HttpRequest, username: str, body: RolesIn) -> dict[str, Any]:
    """Give a member exactly these roles. Add new people on the Members page, which shows their password once. 409 if
    the project would have no admin left."""
    asked = keyed(request)
    user = one(User.objects.filter(memberships__project=asked.project).distinct(), username=username)
    members.set_roles(project=asked.project, actor=asked.actor, user=user, roles=body.roles)
    return {"username": username, "roles": sorted(set(body.roles))}
