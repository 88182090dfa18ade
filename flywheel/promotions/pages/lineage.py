"""The lineage of an object: counts of what it came from and of what it led to, and the lists behind them."""

from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from flywheel.accounts.access import PageRequest, requires
from flywheel.accounts.models import Permission
from flywheel.edge import htmx
from flywheel.edge.paging import page_at
from flywheel.promotions.lineage.levels import counted, level_of, levels_of
from flywheel.promotions.lineage.passport_kinds import find, passport

DIRECTIONS = {"up": "Came from", "down": "Led to"}


@require_GET
@requires(Permission.VIEW)
def lineage(request: PageRequest, kind: str, ref: str) -> HttpResponse:
    """The counts; or the list that the address names, which waits for no count: its page asks for them afterwards, as
    a trajectory's does."""
    known, row = find(kind, ref, request.project)
    key, is_part = request.GET.get("level", ""), htmx.wants_fragment(request)
    context: dict[str, Any] = {"subject": passport(known, row, request.project), "words": known.words, "key": key}
    if key and not is_part:
        level = level_of(known, row, request.project, key)
        page = page_at(request, level.rows, keys=level.kind.keys)
        context |= {"level": level, "page": page}
        context["rows"] = [passport(level.kind, each, request.project) for each in page.items]
    else:
        levels = levels_of(known, row, request.project)
        counts = list(zip(levels, counted(levels), strict=True))
        context["directions"] = {
            title: [(level, count) for level, count in counts if level.direction == way and count.number]
            for way, title in DIRECTIONS.items()
        }
    return htmx.answer(request, "promotions/lineage.html", "promotions/_levels.html", context)
