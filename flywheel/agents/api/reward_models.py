"""Reward models, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import RewardModel
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.schemas import Schema

router = Router(tags=["reward models"])


class RankedOut(Schema):
    mean: float | None
    """Share of the pairs that it ranks right."""
    low: float | None
    """Lower end of the 95% interval; null where there are too few pairs."""
    high: float | None
    """Upper end of the interval."""
    n: int
    """Pairs that were scored."""
    unscored: int
    """Pairs that are too long for it."""
    sources: int | None
    """Sources that these pairs come from."""


class UnwantedOut(Schema):
    median: float
    """Raw score."""
    beaten: int
    """Requests at which the chosen answer scores more."""
    n: int
    """Requests."""


class CanariesOut(Schema):
    reference: float
    """Mean raw score of pairs that were kept out of its training; a score is 1 / (1 + exp(reference - raw))."""
    chosen: float
    """Median raw score of their chosen answers."""
    rejected: float
    """Median raw score of their rejected answers."""
    pairs: RankedOut
    degenerate: dict[str, UnwantedOut]
    """Answers that nobody wants, by kind: `empty`, `repeated`, `long`, `echo` and `refusal`."""


class RewardModelOut(Schema):
    name: str
    number: int
    base: Ref
    """The version whose weights it began with."""
    digest: str
    """Of its weights."""
    canaries: CanariesOut
    problems: list[str]
    """Why a verifier cannot use it; empty if it can."""
    created_by: Ref
    created_at: datetime

    @staticmethod
    def resolve_digest(row: RewardModel) -> str:
        return str(row.weights.digest)


@router.get("/reward-models", response=page_of(RewardModelOut), auth=Key(Scope.READ))
def list_reward_models(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List trained reward models with their canaries, newest first."""
    rows = RewardModel.objects.filter(project=keyed(request).project)
    return paginate(rows.select_related("weights", "base__agent", "created_by"), query)
