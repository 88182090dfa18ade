"""Answers in place of a page that may not be shown."""

from typing import Any, cast

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from flywheel.accounts.access import Forbidden
from flywheel.accounts.models import Permission, User
from flywheel.accounts.project_settings import members


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403: what may not be done here, and which roles may."""
    reason = str(exception or "") or "Nothing was changed. An admin of the project can change your role under Settings."
    if getattr(request, "htmx", False):
        return HttpResponse(reason, content_type="text/plain; charset=utf-8", status=403)
    title = "Your role does not include this" if isinstance(exception, Forbidden) else ""
    context = {"reason": reason, "title": title, **_offer(request, exception)}
    return render(request, "403.html", context, status=403)


def _offer(request: HttpRequest, exception: Exception | None) -> dict[str, Any]:
    """Return what an admin is offered who may not approve and is the only one who could let somebody."""
    slug = request.resolver_match.kwargs.get("project", "") if request.resolver_match else ""
    if not isinstance(exception, Forbidden) or exception.permission != Permission.APPROVE or not slug:
        return {}
    user = cast(User, request.user)
    known = user.project(slug)
    return {"project": known[0], "approval_offer": members.approval_offer(known[0], user)} if known else {}


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that this server did not give out, or that is older than the login."""
    return forbidden(request, PermissionDenied("This form was not sent: it is older than your login. Reload the page."))
