"""The demo's accounts: a visitor of `make demo` enters by a link that the terminal prints, and goes from one role to
another without passwords.

Only on a server that listens on this machine alone, for a browser on this machine, and between accounts that are
members of demo projects and nothing else. Whoever has neither the link nor such a session is a stranger as elsewhere.
"""

from ipaddress import ip_address

from django.contrib.auth import login
from django.core import signing
from django.http import HttpRequest

from flywheel.accounts.models import Role, User
from flywheel.system import env

ROLES = {
    # Reviewers of the demo also make tasks, so that key `x` does what the README says.
    "reviewer": (Role.REVIEWER, Role.BUILDER),
    "trainer": (Role.TRAINER,),
    "approver": (Role.APPROVER,),
}
"""Username of each account, and its roles in every demo project."""
PROJECT = "demo"
"""Slug of the project whose story is told."""
_DISMISSED = "demo_tour_is_hidden"
_BACKEND = "flywheel.accounts.sessions.Accounts"
_LINK = signing.Signer(salt="flywheel.accounts.demo")


def link_token() -> str:
    """Return what the demo's link ends with: a signature with this server's own key."""
    return _LINK.sign("demo").partition(":")[2]


def enter(request: HttpRequest, token: str) -> bool:
    """Sign the visitor in as the demo's reviewer, unless signed in as one of its accounts already; whether it may be.
    A token that is none lets nobody in."""
    try:
        _LINK.unsign(f"demo:{token}")
    except signing.BadSignature:
        return False
    if not is_on_this_machine(request):
        return False
    return bool(others(request)) or _become(request, "reviewer")


def switch(request: HttpRequest, username: str) -> bool:
    """Let a visitor who is one of the demo's accounts go on as another; whether it may be."""
    return username in others(request) and _become(request, username)


def others(request: HttpRequest) -> list[str]:
    """Return the accounts that this visitor may go on as: all of the demo's, or none."""
    user = request.user
    if not (isinstance(user, User) and user.username in ROLES and is_on_this_machine(request) and _is_of_demo(user)):
        return []
    return list(ROLES)


def is_dismissed(request: HttpRequest) -> bool:
    """Whether this visitor has hidden the tour."""
    return bool(request.session.get(_DISMISSED))


def dismiss(request: HttpRequest, is_hidden: bool) -> None:
    """Hide the tour, or show it again."""
    request.session[_DISMISSED] = is_hidden


def is_on_this_machine(request: HttpRequest) -> bool:
    """Whether server and browser are both on this machine, with no proxy between them that says otherwise."""
    is_forwarded = any(header in request.headers for header in ("Forwarded", "X-Forwarded-For", "X-Real-Ip"))
    return is_local(env.bind()) and is_local(request.META.get("REMOTE_ADDR", "")) and not is_forwarded


def is_local(address: str) -> bool:
    """Whether the address can be reached from its own machine only."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _become(request: HttpRequest, username: str) -> bool:
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None or not _is_of_demo(user):
        return False
    is_hidden = is_dismissed(request)
    login(request, user, _BACKEND)
    dismiss(request, is_hidden)  # a session of another account begins empty
    return True


def _is_of_demo(user: User) -> bool:
    """Whether an account is a member of demo projects alone: it may reach nothing that a team cares for."""
    found = set(user.memberships.values_list("project__is_demo", flat=True))
    return found == {True}
