"""Deriving costs again, for programs."""

import uuid

from django.http import HttpRequest
from ninja import Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.edge.answers import JobOut
from flywheel.edge.refusals import one
from flywheel.trajectories.models import Reread
from flywheel.trajectories.operations import rereads

router = Router(tags=["trajectories"])


class CostsOut(JobOut):
    changed: int
    """Trajectories of which a cost is another now; `done` of `total` were looked at."""


@router.post("/prices/derivations", response={202: CostsOut}, auth=Key(Scope.ADMIN))
def derive_costs(request: HttpRequest) -> Status[Reread]:
    """Derive the costs that no sender stated by today's prices; the job that is under way, where there is one."""
    asked = keyed(request)
    return Status(202, rereads.start(asked.project, asked.actor, uuid.uuid4(), is_of_costs=True))


@router.get("/prices/derivations/{pk}", response=CostsOut, auth=Key(Scope.ADMIN))
def get_derived_costs(request: HttpRequest, pk: int) -> Reread:
    """Say how far it is."""
    return _find(request, pk)


@router.post("/prices/derivations/{pk}/cancel", response=CostsOut, auth=Key(Scope.ADMIN))
def cancel_derived_costs(request: HttpRequest, pk: int) -> Reread:
    """Ask for an end; costs that were derived by then stay."""
    return _find(request, pk).cancel(keyed(request).actor)


def _find(request: HttpRequest, pk: int) -> Reread:
    return one(Reread.objects.filter(project=keyed(request).project, is_of_costs=True), pk=pk)
