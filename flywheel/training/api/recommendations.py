"""The fix ladder for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.evals.api.references import task_set_of, version_of
from flywheel.training.launch.fix_recommendation import recommendation_for
from flywheel.training.models import Recommendation

router = Router(tags=["training"])


class RecommendationIn(Body):
    version: RefIn
    """`agent@number` or `agent@live`."""
    task_set: RefIn
    """`name@version`."""


class RungOut(Schema):
    fix: str
    label: str
    why: str
    evidence: dict[str, Any]
    """Numbers that support the fix."""
    blocked_by: str
    """Why the fix is not supported; empty if it is."""


class RecommendationOut(Schema):
    id: int
    version: Ref
    task_set: Ref
    eval_run: int | None = Field(alias="eval_run_id")
    evidence: dict[str, Any]
    ladder: list[RungOut]
    """Fixes, the recommended one first."""
    created_at: datetime


@router.get("/recommendations", response=page_of(RecommendationOut, "Recommendations"), auth=Key(Scope.READ))
def list_recommendations(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List the fix ladder's recommendations, newest first."""
    rows = Recommendation.objects.filter(project=keyed(request).project)
    return paginate(rows.select_related("version__agent", "task_set"), query)


@router.post("/recommendations", response=RecommendationOut, auth=Key(Scope.TRAIN))
def recommend_fix(request: HttpRequest, asked: RecommendationIn) -> Recommendation:
    """Run the fix ladder for a version and a task set. The lightest fix that the evidence supports comes first."""
    return recommendation_for(version_of(request, asked.version), task_set_of(request, asked.task_set))
