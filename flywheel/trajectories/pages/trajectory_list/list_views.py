"""The list of trajectories."""

import uuid
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge.paging import Page, page_at
from flywheel.trajectories.import_export import trajectory_export
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.operations import bulk_actions
from flywheel.trajectories.pages.trajectory_list import cells
from flywheel.trajectories.search import list_columns, saved_views
from flywheel.trajectories.search.facets import COUNTED, facets_of, meant
from flywheel.trajectories.search.query import FIELDS, Query, looks_like_an_id, parse
from flywheel.trajectories.search.walk_limit import TookTooLong, limited

PAGE = 50


@require_GET
@requires(Permission.VIEW)
def index(request: PageRequest) -> HttpResponse:
    """The newest trajectories that match the filter bar."""
    taste = saved_views.taste_of(request.project, request.actor.user)
    if not request.GET and (first := saved_views.opens_with(taste)):
        return redirect(saved_views.address(first))
    query = parse(request.GET.get("q", ""))
    every = Trajectory.objects.filter(project=request.project)
    if (pasted := looks_like_an_id(query.text)) and every.filter(trace_id=pasted).exists():
        return redirect("trajectories:detail", request.project.slug, pasted)
    in_address = list_columns.existing(request.GET.get("cols", "").split(","))
    shown = in_address or list_columns.existing(taste.columns) or list_columns.USUAL
    page = _page(request, query)
    views = saved_views.menu_of(request.project, request.actor.user)
    context = {
        "query": query,
        "page": page,
        "hints": meant(request.project, every, query.text) if not page.items and not query.problems else [],
        "fields": _fields(quote(query.further), ",".join(in_address)),
        "exports": trajectory_export.EXPORTS.values(),
        "is_empty": not page.items and not query.text and not every.exists(),
        "cols": ",".join(in_address),
        "shown_cols": ",".join(shown),
        **cells.table(request.project, page.items, shown),
        "views": [(view, saved_views.address(view)) for view in views],
        "view": next((view for view in views if (view.q, view.columns) == (query.text, in_address)), None),
        "first": taste.view_id,
        "bulk_key": uuid.uuid4(),
        **_bulk(request),
    }
    return render(request, "trajectories/list.html", context)


def _page(request: PageRequest, query: Query) -> Page[Any]:
    """The page that the address asks for; empty, with the problem, where that takes too long."""
    rows = query.apply(Trajectory.objects.filter(project=request.project), request.project.pk)
    try:
        with limited(query):
            return page_at(request, rows, limit=PAGE, keys=("started_at", "id"), read=list_columns.read)
    except TookTooLong as error:
        query.problems.append(str(error))
        return Page([], query=request.GET)


@lru_cache(maxsize=8)  # mostly nothing is asked yet; each holds what is asked once for every field
def _fields(before: str, cols: str) -> SafeString:
    """The menu of the fields of the filter bar; each goes behind what is asked already."""
    context = {"fields": FIELDS, "before": f"{before}%20" if before else "", "cols": cols}
    return render_to_string("trajectories/_fields.html", context)


def _bulk(request: PageRequest) -> dict[str, Any]:
    """Return this person's bulk rights: whether they may tag, delete, and the actions that have a choice."""
    may = {name for name, action in bulk_actions.ACTIONS.items() if action.permission in request.permissions}
    chosen = [(action, action.choices(request.project)) for name, action in bulk_actions.ACTIONS.items() if name in may]
    return {
        "may_tag": "tag" in may,
        "may_delete": "delete" in may,
        "bulk_choices": [(action, choices) for action, choices in chosen if choices],
    }


@require_GET
@requires(Permission.VIEW)
def export(request: PageRequest) -> HttpResponseBase:
    """The trajectories that match the filter, or those with the given ids, as a file."""
    asked = request.GET
    try:
        return trajectory_export.answer(
            request,
            format=asked.get("format", "atif"),
            q=asked.get("q", ""),
            ids=asked.getlist("id"),
            columns=asked.get("cols", "").split(","),
        )
    except trajectory_export.BadSelection as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")


@require_GET
@requires(Permission.VIEW)
def facets(request: PageRequest) -> HttpResponse:
    """Fragment: what the matching trajectories are made of."""
    query = parse(request.GET.get("q", ""))
    rows = query.apply(Trajectory.objects.filter(project=request.project), request.project.pk)
    try:
        with limited(query):
            found, counted = facets_of(request.project, rows)
    except TookTooLong as error:
        query.problems.append(str(error))
        found, counted = [], 0
    cols = ",".join(list_columns.existing(request.GET.get("cols", "").split(",")))
    context = {"facets": found, "query": query, "cols": cols, "counted": counted, "is_part": counted >= COUNTED}
    return render(request, "trajectories/_facets.html", context)
