"""Answers in place of a page that may not be shown."""

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from flywheel.accounts.access import Forbidden


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """403: what may not be done here, and which roles may."""
    reason = str(exception or "") or "Nothing was changed. An admin of the project can change your role under Settings."
    if getattr(request, "htmx", False):
        return HttpResponse(reason, content_type="text/plain; charset=utf-8", status=403)
    title = "Your role does not include this" if isinstance(exception, Forbidden) else ""
    return render(request, "403.html", {"reason": reason, "title": title}, status=403)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form that this server did not give out, or that is older than the login."""
    return forbidden(request, PermissionDenied("This form was not sent: it is older than your login. Reload the page."))
