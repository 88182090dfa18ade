"""Who may pass: the decorator that every page wears, and the key that every API call carries.

Deny by default: `tests/accounts/test_access.py` walks every URL and fails for one that declares nothing.
A stranger to a project gets 404, whether it exists or not; a member without the permission gets 403 with the roles
that have it. `request.project`, `request.permissions` and `request.actor` are set for the view.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, cast

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django_htmx.middleware import HtmxDetails
from ninja.errors import HttpError
from ninja.security import HttpBearer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import GRANTS, ApiKey, Permission, Project, Scope, User

P = ParamSpec("P")

ANYONE = "anyone"
"""Declared by the few pages that need no login: login itself and the health checks."""
SIGNED_IN = "signed in"
"""Declared by pages of no project: the choice of a project, one's own account."""


class PageRequest(HttpRequest):
    """A request as project pages get it."""

    user: User
    htmx: HtmxDetails
    project: Project
    permissions: frozenset[str]
    actor: Actor


class Declared(Protocol):
    permission: str

    def __call__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase: ...


class Forbidden(PermissionDenied):
    """A member may not do this; the message names the roles that may."""

    def __init__(self, permission: str) -> None:
        roles = [role for role, granted in GRANTS.items() if permission in granted]
        self.permission = permission
        super().__init__(f"You can't {Permission(permission).label} here. Roles that can: {', '.join(roles)}.")


def requires(permission: Permission) -> Callable[[Callable[Concatenate[PageRequest, P], HttpResponseBase]], Declared]:
    """Declare what a project page needs. The URL carries the project's slug as `project`; the view does not get it."""

    def decorate(view: Callable[..., HttpResponseBase]) -> Declared:
        @wraps(view)
        def page(request: HttpRequest, *args: Any, project: str, **kwargs: Any) -> HttpResponseBase:
            _refuse_nul(request)
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            user = request.user
            if user.must_change_password:
                return redirect("accounts:profile")
            if (known := user.project(project)) is None:
                raise Http404
            asked = cast(PageRequest, request)
            (asked.project, asked.permissions), asked.actor = known, Actor(user)
            if permission not in asked.permissions:
                raise Forbidden(permission)
            return view(asked, *args, **kwargs)

        page.permission = permission  # type: ignore[attr-defined]
        return cast(Declared, page)

    return decorate


def _refuse_nul(request: HttpRequest) -> None:
    """No name and no search of ours has a NUL, and PostgreSQL takes none: 400 at the door instead of 500 in a room."""
    if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        raise BadRequest("the address contains a NUL character")


def public(view: Callable[..., HttpResponseBase]) -> Declared:
    """Declare that anyone may see this."""
    view.permission = ANYONE  # type: ignore[attr-defined]
    return cast(Declared, view)


def signed_in(view: Callable[..., HttpResponse]) -> Declared:
    """Declare that everyone with an account may see this."""

    @wraps(view)
    def page(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        return view(request, *args, **kwargs)

    page.permission = SIGNED_IN  # type: ignore[attr-defined]
    return cast(Declared, page)


class KeyRequest(HttpRequest):
    """A request as API calls get it."""

    project: Project
    key: ApiKey
    permissions: frozenset[str]
    actor: Actor
    """Who made the key; what the call does is done in their name."""


def keyed(request: HttpRequest) -> KeyRequest:
    """The request as `Key` has left it."""
    return cast(KeyRequest, request)


class KeyRefused(Exception):
    """A call's key does not carry it. `status` is 401 for no valid key and 403 for a key that may not do this."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check(token: str, scope: Scope) -> tuple[ApiKey, frozenset[str]]:
    """The live key that this is, and what its maker may. Raises KeyRefused."""
    key = ApiKey.find(token)
    if key is None:
        raise KeyRefused(401, "no valid API key; send `Authorization: Bearer fw_…`")
    permissions = key.permissions
    needed = SCOPE_NEEDS[scope]
    if scope not in key.scopes:
        has = ", ".join(key.scopes) or "none"
        raise KeyRefused(403, f"this key has no scope {scope.value!r}; it has {has}")
    if needed not in permissions:
        raise KeyRefused(403, f"{key.created_by} created this key and may no longer {Permission(needed).label}")
    now = timezone.now()
    if key.last_used_at is None or key.last_used_at < now - LAST_USED_WITHIN:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key, permissions


def admit(request: HttpRequest, token: str, scope: Scope) -> ApiKey:
    """Check the key and tell the request whose it is. Raises KeyRefused."""
    key, permissions = check(token, scope)
    asked = cast(KeyRequest, request)
    asked.project, asked.key, asked.permissions = key.project, key, permissions
    asked.actor = Actor(key.created_by, f"key {key.public}")
    return key


def bearer(header: str) -> str:
    """The token of an `Authorization` header; empty when it is of another kind."""
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


LAST_USED_WITHIN = timedelta(minutes=1)
"""A key in constant use would otherwise write its row with each call, and all its callers would queue for it."""


class Key(HttpBearer):
    """`Authorization: Bearer fw_…` with a scope, of a person who has the permission behind it still."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope

    def authenticate(self, request: HttpRequest, token: str) -> ApiKey | None:
        _refuse_nul(request)
        try:
            return admit(request, token, self.scope)
        except KeyRefused as refused:
            if refused.status == 401:
                return None
            raise HttpError(refused.status, str(refused)) from None


def key_required(
    scope: Scope, refuse: Callable[[HttpRequest, int, str], HttpResponse]
) -> Callable[[Callable[[KeyRequest], HttpResponse]], Declared]:
    """As `Key`, for a view outside the API; `refuse(request, status, message)` answers in the caller's language."""

    def decorate(view: Callable[[KeyRequest], HttpResponse]) -> Declared:
        @wraps(view)
        def call(request: HttpRequest) -> HttpResponse:
            try:
                admit(request, bearer(request.headers.get("Authorization", "")), scope)
            except KeyRefused as refused:
                return refuse(request, refused.status, str(refused))
            return view(cast(KeyRequest, request))

        call.permission = f"key:{scope.value}"  # type: ignore[attr-defined]
        return cast(Declared, call)

    return decorate


SCOPE_NEEDS: dict[Scope, Permission] = {
    Scope.INGEST: Permission.VIEW,
    Scope.GATEWAY: Permission.BUILD,
    Scope.READ: Permission.VIEW,
    Scope.REVIEW: Permission.REVIEW,
    Scope.BUILD: Permission.BUILD,
    Scope.TRAIN: Permission.TRAIN,
    Scope.APPROVE: Permission.APPROVE,
    Scope.ADMIN: Permission.ADMIN,
}


def audit(request: PageRequest | KeyRequest, action: str, subject: object, reason: str = "", **data: Any) -> None:
    """One audit entry for what this request changed; call it in the transaction of the change."""
    request.actor.record(project=request.project, action=action, subject=subject, reason=reason, **data)
