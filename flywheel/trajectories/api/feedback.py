"""Feedback for programs: give it, and read what was given."""

from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError
from django.http import HttpRequest
from ninja import Query, Router
from ninja.errors import HttpError, ValidationError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, page_of, paginate
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Schema
from flywheel.trajectories.annotations.feedback import MOST, Given, Problem, give
from flywheel.trajectories.api.schemas import FeedbackOut
from flywheel.trajectories.formats.values.hostile_json import FormatError, load
from flywheel.trajectories.models import Feedback, Trajectory
from flywheel.trajectories.store.rows import trajectory_rows

router = Router(tags=["trajectories"])

_GIVEN = Given.model_json_schema()
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"oneOf": [_GIVEN, {"type": "array", "items": _GIVEN, "maxItems": MOST}]}}
        },
    }
}


class ItemProblem(Schema):
    loc: list[str | int]
    """Position of the item in the list, and its field."""
    msg: str


class GivenOut(Schema):
    received: int
    stored: int
    duplicate: int
    """Items that were stored before."""
    rejected: int
    waiting: int
    """Stored items whose trajectory has not arrived yet."""
    problems: list[ItemProblem]
    """One per rejected item."""


@router.post("/feedback", response=GivenOut, auth=Key(Scope.INGEST), openapi_extra=_BODY)
def give_feedback(request: HttpRequest) -> dict[str, Any]:
    """Send one piece of feedback, or a list of at most 1,000. Valid items are stored and the response lists the others;
    422 if none is valid. The trajectory may arrive later. Sending the same feedback again stores it once. 400 if the
    body is not JSON, 413 if it is too large or has more items, 503 if nothing was stored because the database is busy:
    send it again."""
    try:
        sent = load(request.body)
    except RequestDataTooBig:
        raise HttpError(413, "the body is too large; send the feedback in parts") from None
    except FormatError as error:
        raise HttpError(400, str(error)) from None
    items = sent if isinstance(sent, list) else [sent]
    if len(items) > MOST:
        raise HttpError(413, f"{len(items)} are too many at once; send at most {MOST}")
    try:
        report = give(keyed(request).project, items)
    except (OperationalError, trajectory_rows.Raced):
        raise HttpError(503, "not stored; send it again") from None
    problems = [{"loc": _place(item, sent), "msg": item.reason} for item in report.problems]
    if problems and len(problems) == report.received:
        raise ValidationError([{"loc": ["body", *problem["loc"]], "msg": problem["msg"]} for problem in problems])
    counts = {name: getattr(report, name) for name in ("received", "stored", "duplicate", "waiting")}
    return {**counts, "rejected": len(problems), "problems": problems}


@router.get("/trajectories/{trace_id}/feedback", response=page_of(FeedbackOut), auth=Key(Scope.READ))
def list_feedback(request: HttpRequest, trace_id: str, query: Query[ListQuery]) -> dict[str, Any]:
    """List all feedback on a trajectory, newest first, even before the trajectory has arrived."""
    project = keyed(request).project
    rows = Feedback.objects.filter(project=project, trace_id=trace_id)
    if not rows.exists():
        one(Trajectory.objects.filter(project=project), trace_id=trace_id)
    return paginate(rows, query, keys=("at", "id"))


def _place(problem: Problem, sent: Any) -> list[str | int]:
    return [problem.index, problem.field] if isinstance(sent, list) else [problem.field]
