"""Addresses that answer with a page, and to htmx with the part of it that changes."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails

VARY = ("HX-Request", "HX-History-Restore-Request")


def wants_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for the part; on the way back through the history it needs the page."""
    htmx = HtmxDetails(request)
    return bool(htmx) and not htmx.history_restore_request


def answer(request: HttpRequest, page: str, part: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """Render the page or its part, by the names of their templates."""
    response = render(request, part if wants_fragment(request) else page, context, status=status)
    patch_vary_headers(response, VARY)  # else a browser that kept the part shows it where the page was
    return response
