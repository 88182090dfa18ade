"""Lists of the room, page by page."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect, render

from flywheel.accounts.access import PageRequest
from flywheel.edge.paging import BadCursor, Page, about, keyset

PAGE = 50


def listed(request: PageRequest, template: str, rows: QuerySet[Any], tab: str) -> HttpResponse:
    page = page_of(request, rows)
    return redirect(request.path) if page is None else render(request, template, {"page": page, "tab": tab})


def page_of(request: PageRequest, rows: QuerySet[Any]) -> Page[Any] | None:
    """The page that the address asks for; None when its cursor is none of ours."""
    try:
        page: Page[Any] = keyset(rows, cursor=request.GET.get("cursor", ""), limit=PAGE, query=request.GET)
    except BadCursor:
        return None
    page.total, page.about = about(rows)
    return page
