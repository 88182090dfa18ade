"""Who belongs to a project and as what. A project always keeps one admin who can sign in."""

import secrets
from collections.abc import Collection
from typing import NamedTuple

from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Project, Role, User
from flywheel.edge.refusals import Stale

ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without the characters that are read for each other."""


class Added(NamedTuple):
    user: User
    password: str
    """To be shown once; empty for a person who had an account."""


def new_password() -> str:
    """Sixteen random characters in groups, about 79 bits: easy to read out, hopeless to guess."""
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(4)) for _ in range(4))


def account(username: str, password: str = "", *, must_change_password: bool = False) -> Added:
    """The account of that name, made where there is none."""
    user = User.objects.filter(username=username).first()
    if user is not None:
        return Added(user, "")
    password = password or new_password()
    made = User.objects.create_user(username=username, password=password, must_change_password=must_change_password)
    return Added(made, password)


@transaction.atomic
def add(*, project: Project, actor: Actor, username: str, roles: Collection[str]) -> Added:
    """Make the person a member; one who has no account yet gets one. Raises Stale."""
    roles = _checked_roles(roles)
    if not roles:
        raise Stale("choose at least one role")
    user = User.objects.filter(username__iexact=username).first()
    password = ""
    if user is None:
        try:
            UnicodeUsernameValidator()(username)
        except ValidationError:
            raise Stale(f"{username!r} cannot be a username: use letters, digits and @ . + - _") from None
        password = new_password()
        user = User.objects.create_user(username=username, password=password, must_change_password=True)
    elif user.memberships.filter(project=project).exists():
        raise Stale(f"{user} is already a member; change the roles in the list")
    for role in roles:
        Membership.objects.create(user=user, project=project, role=role)
    actor.record(project=project, action="accounts.add_member", subject=user, roles=roles, new_account=bool(password))
    return Added(user, password)


@transaction.atomic
def set_roles(*, project: Project, actor: Actor, user: User, roles: Collection[str]) -> bool:
    """Give the member exactly these roles; none removes the member. Returns whether it changed anything.

    Raises Stale when no admin would be left.
    """
    Project.objects.select_for_update().get(pk=project.pk)
    roles = _checked_roles(roles)
    before = sorted(user.memberships.filter(project=project).values_list("role", flat=True))
    if before == roles:
        return False
    if Role.ADMIN in before and Role.ADMIN not in roles and not _other_admins(project, user):
        raise Stale(f"{user} is the last admin of {project}; make another one first")
    user.memberships.filter(project=project).exclude(role__in=roles).delete()
    for role in set(roles) - set(before):
        Membership.objects.create(user=user, project=project, role=role)
    actor.record(
        project=project,
        action="accounts.set_roles" if roles else "accounts.remove_member",
        subject=user,
        before=before,
        after=roles,
    )
    return True


def approval_offer(project: Project, user: User) -> str:
    """Why this admin may take the approver role, in words; empty where they may not, for somebody has it."""
    rows = Membership.objects.filter(project=project, user__is_active=True).values_list("user_id", "role")
    held = {role for _, role in rows}
    if (user.pk, Role.ADMIN) not in rows or Role.APPROVER in held:
        return ""
    return "You are the only member." if {pk for pk, _ in rows} == {user.pk} else "No member is an approver yet."


@transaction.atomic
def become_approver(*, project: Project, actor: Actor) -> None:
    """Give an admin the approver role too, where nobody has it. Raises Stale."""
    Project.objects.select_for_update().get(pk=project.pk)
    if not approval_offer(project, actor.user):
        raise Stale("this project already has an approver; ask them, or have an admin change roles in Settings")
    present = actor.user.memberships.filter(project=project).values_list("role", flat=True)
    set_roles(project=project, actor=actor, user=actor.user, roles=[*present, Role.APPROVER])


def _other_admins(project: Project, user: User) -> bool:
    admins = Membership.objects.filter(project=project, role=Role.ADMIN, user__is_active=True).exclude(user=user)
    return any(admin.user.has_usable_password() for admin in admins.select_related("user"))


def _checked_roles(roles: Collection[str]) -> list[str]:
    if unknown := sorted(set(roles) - set(Role.values)):
        raise Stale(f"role {unknown[0]!r} is unknown; use one of {', '.join(Role.values)}")
    return sorted(set(roles))
