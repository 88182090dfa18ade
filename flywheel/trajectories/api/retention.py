"""Retention for programs: for how many days a project keeps what."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Body, Schema
from flywheel.trajectories.operations import retention

router = Router(tags=["trajectories"])


class RetentionDays(Schema):
    """Retention in days; null means forever."""

    bodies_days: int = Field(7, ge=0, le=3650)
    """Raw requests; with 0 they are not stored at all."""
    quarantine_days: int = Field(30, ge=1, le=3650)
    """Rejected items."""
    ledger_days: int | None = Field(None, ge=1, le=3650)
    """Entries of the ledger: what became of each request and import."""
    production_days: int | None = Field(None, ge=1, le=3650)
    """Trajectories from production, since their last part arrived."""
    import_days: int | None = Field(None, ge=1, le=3650)
    """Imported trajectories, since their last part arrived."""
    rollout_days: int | None = Field(None, ge=1, le=3650)
    """Rollouts, since their last part arrived."""
    takes_used: bool = False
    """Also delete trajectories that people have decided about, that tasks were made from, or that evals measured."""


class RetentionIn(RetentionDays, Body):
    """The retention to set; omitted fields get their defaults."""


@router.get("/retention", response=RetentionDays, auth=Key(Scope.ADMIN))
def get_retention(request: HttpRequest) -> Any:
    """Return how many days the project keeps each kind of data."""
    return retention.of(keyed(request).project)


@router.put("/retention", response=RetentionDays, auth=Key(Scope.ADMIN))
def set_retention(request: HttpRequest, wanted: RetentionIn) -> Any:
    """Set how many days the project keeps each kind of data from now on. Older data is deleted within minutes."""
    asked = keyed(request)
    return retention.set_retention(project=asked.project, actor=asked.actor, **wanted.dict())
