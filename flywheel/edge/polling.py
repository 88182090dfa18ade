"""Pages that ask again until a job is over."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django_htmx.http import HTMX_STOP_POLLING, HttpResponseStopPolling


def progress(request: HttpRequest, template: str, context: dict[str, Any], *, is_over: bool) -> HttpResponse:
    """The part of the page that moves; the last one ends the asking."""
    return render(request, template, context, status=HTMX_STOP_POLLING if is_over else 200)


def unchanged(*, is_over: bool) -> HttpResponse:
    """Nothing to show that the page does not show already."""
    return HttpResponseStopPolling() if is_over else HttpResponse(status=204)


def loaded_anew() -> HttpResponse:
    """The last answer: nothing more is asked, and the whole page is loaded, which now shows the end."""
    response = HttpResponseStopPolling()
    response.headers["HX-Refresh"] = "true"
    return response
