"""Answers in place of a page that may not be shown."""

import logging
import re
from typing import Any, cast

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from flywheel.accounts.access import Forbidden, PageRequest
from flywheel.accounts.models import Permission, User
from flywheel.accounts.project_settings import members

log = logging.getLogger(__name__)
PROJECT = re.compile(r"/p/([-\w]+)/")


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403: what may not be done here, and which roles may."""
    reason = str(exception or "") or "Nothing was changed. A project admin can change your role under Settings."
    if getattr(request, "htmx", False):
        return HttpResponse(reason, content_type="text/plain; charset=utf-8", status=403)
    title = "You don't have access" if isinstance(exception, Forbidden) else ""
    context = {"reason": reason, "title": title, **_offer(request, exception)}
    return render(request, "403.html", context, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404, with the rooms of the project that the address names, where this person is a member."""
    _enter(request)
    return render(request, "404.html", status=404)


def failed(request: HttpRequest) -> HttpResponse:
    """500, with the rooms where what failed is not what they are read from."""
    try:
        _enter(request)
        return render(request, "500.html", status=500)
    except Exception:
        log.exception("the page of an error was built without its rooms")
        return HttpResponse(render_to_string("500.html"), status=500)


def _enter(request: HttpRequest) -> None:
    """Set the project that the address names, as `access.requires` does where a page is found."""
    slug = PROJECT.match(request.path)
    user = getattr(request, "user", None)
    if slug and isinstance(user, User) and not user.must_change_password and (known := user.project(slug[1])):
        asked = cast(PageRequest, request)
        asked.project, asked.permissions = known


def _offer(request: HttpRequest, exception: Exception | None) -> dict[str, Any]:
    """Return what an admin is offered who may not approve and is the only one who could let somebody."""
    asked = cast(PageRequest, request)
    if (
        not isinstance(exception, Forbidden)
        or exception.permission != Permission.APPROVE
        or not hasattr(asked, "project")
    ):
        return {}
    return {"approval_offer": members.approval_offer(asked.project, asked.user)}


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that this server did not give out, or that is older than the login."""
    return forbidden(
        request, PermissionDenied("This form is older than your login and was not submitted. Reload the page.")
    )
