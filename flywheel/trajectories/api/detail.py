"""One trajectory for programs: its outline, search inside it, and what its steps come to."""

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Schema
from flywheel.trajectories.detail import outline, step_search
from flywheel.trajectories.detail.usage import totals_of
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import home_of

router = Router(tags=["trajectories"])


class OutlineQuery(Schema):
    start: int = Field(0, ge=0, le=10**9)
    """Position of the first step, counted from 0."""
    limit: int = Field(outline.MOST, ge=1, le=outline.MOST)
    """Steps per page."""


class NameOut(Schema):
    kind: str
    name: str
    at: list[int]
    """Positions of the steps with this kind and name."""


class OutlineOut(Schema):
    """`parent`, `at` and `took` have one value per step."""

    start: int
    total: int
    next: int | None
    """`start` of the next page; null on the last page."""
    parent: list[int]
    """Position of each step's parent; -1 for none."""
    at: list[float | None]
    """Start of each step, in ms from the start of the trajectory."""
    took: list[float | None]
    """Duration of each step, in ms."""
    errors: list[int]
    """Positions of failed steps."""
    names: list[NameOut]
    """Positions of steps by kind and name."""
    odd: dict[str, str]
    """Anomalies in how steps arrived, by position; the first 1000 of this page."""


class MatchOut(Schema):
    position: int
    """Position of the step."""
    span_id: str
    place: str
    """`message`, `reasoning`, `call`, `arguments`, `result`, `error` or `name`."""
    excerpt: str


class FoundOut(Schema):
    matches: list[MatchOut]
    is_part: bool
    """Whether there are more matches."""


class TotalOut(Schema):
    name: str
    calls: int
    errors: int
    took_ms: float | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    is_derived: bool
    """Whether part of the cost was derived from prices rather than reported."""


class TotalsOut(Schema):
    models: list[TotalOut]
    tools: list[TotalOut]


@router.get("/trajectories/{trace_id}/outline", response=OutlineOut, auth=Key(Scope.READ))
def get_trajectory_outline(request: HttpRequest, trace_id: str, asked: Query[OutlineQuery]) -> HttpResponse:
    """Return the trajectory's steps as a few numbers each, without their content: parent, start, duration and
    whether they failed. At most 50,000 steps, from position `start` on."""
    found = outline.outline_of(_find(request, trace_id), asked.start, asked.limit)
    return HttpResponse(found, content_type="application/json")


@router.get("/trajectories/{trace_id}/search", response=FoundOut, auth=Key(Scope.READ))
def search_trajectory(request: HttpRequest, trace_id: str, q: str) -> dict[str, Any]:
    """Find the steps whose messages, arguments, results or errors contain `q`, ignoring case; at most 1000."""
    found = step_search.find(_find(request, trace_id), q)
    return {"matches": [asdict(match) for match in found.matches], "is_part": found.is_part}


@router.get("/trajectories/{trace_id}/totals", response=TotalsOut, auth=Key(Scope.READ))
def get_trajectory_totals(request: HttpRequest, trace_id: str) -> dict[str, Any]:
    """Return calls, errors, time, tokens and cost by model and by tool."""
    found = totals_of(_find(request, trace_id))
    return {name: [asdict(total) for total in totals] for name, totals in found.items()}


def _find(request: HttpRequest, trace_id: str) -> Trajectory:
    project = keyed(request).project
    return one(Trajectory.objects.filter(project=project), trace_id=home_of(project.pk, trace_id))
