"""Lists of the room, page by page."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import render

from flywheel.accounts.access import PageRequest
from flywheel.edge.paging import Page, about, page_at

PAGE = 50


def listed(request: PageRequest, template: str, rows: QuerySet[Any], tab: str) -> HttpResponse:
    return render(request, template, {"page": page_of(request, rows), "tab": tab})


def page_of(request: PageRequest, rows: QuerySet[Any]) -> Page[Any]:
    """The page that the address asks for, with how many there are."""
    page: Page[Any] = page_at(request, rows, limit=PAGE)
    page.total, page.about = about(rows)
    return page
