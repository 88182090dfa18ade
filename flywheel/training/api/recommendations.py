"""The fix ladder for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body
from flywheel.training.api.references import ListQuery, page_of, task_set_of, version_of
from flywheel.training.launch.fix_recommendation import recommendation_for
from flywheel.training.models import Recommendation

router = Router(tags=["training"])


class RecommendationIn(Body):
    version: str
    """`agent@number` or `agent@live`."""
    task_set: str
    """`name@version`."""


class RungOut(Schema):
    fix: str
    label: str
    why: str
    evidence: dict[str, Any]
    blocked_by: str


class RecommendationOut(Schema):
    id: int
    version: str
    task_set: str
    eval_run: int | None
    evidence: dict[str, Any]
    ladder: list[RungOut]
    created_at: datetime

    @staticmethod
    def resolve_version(row: Recommendation) -> str:
        return str(row.version)

    @staticmethod
    def resolve_task_set(row: Recommendation) -> str:
        return str(row.task_set)

    @staticmethod
    def resolve_eval_run(row: Recommendation) -> int | None:
        return row.eval_run_id


class Recommendations(Schema):
    items: list[RecommendationOut]
    next: str | None


@router.get("/recommendations", response=Recommendations, auth=Key(Scope.READ), operation_id="list_recommendations")
def list_recommendations(request: HttpRequest, asked: Query[ListQuery]) -> dict[str, Any]:
    """What the fix ladder said, newest first."""
    rows = Recommendation.objects.filter(project=keyed(request).project)
    return page_of(rows.select_related("version__agent", "task_set"), asked)


@router.post("/recommendations", response=RecommendationOut, auth=Key(Scope.TRAIN), operation_id="recommend_fix")
def recommend_fix(request: HttpRequest, asked: RecommendationIn) -> Recommendation:
    """Ask the fix ladder about a version and a task set; the lightest fix that the evidence supports comes first."""
    version, task_set = version_of(request, asked.version, "version"), task_set_of(request, asked.task_set)
    return recommendation_for(version, task_set)
