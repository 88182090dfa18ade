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
    """Trajectories whose cost changed, of the `done` that were checked."""


@router.post("/prices/derivations", response={202: CostsOut}, auth=Key(Scope.ADMIN))
def derive_costs(request: HttpRequest) -> Status[Reread]:
    """Recalculate, at today's prices, the costs that no sender reported. Returns the running job if there is one."""
    asked = keyed(request)
    return Status(202, rereads.start(asked.project, asked.actor, uuid.uuid4(), is_of_costs=True))


@router.get("/prices/derivations/{pk}", response=CostsOut, auth=Key(Scope.ADMIN))
def get_derived_costs(request: HttpRequest, pk: int) -> Reread:
    """Return the job's progress."""
    return _find(request, pk)


@router.post("/prices/derivations/{pk}/cancel", response=CostsOut, auth=Key(Scope.ADMIN))
def cancel_derived_costs(request: HttpRequest, pk: int) -> Reread:
    """Cancel the job; costs derived so far are kept. 409 if it has finished."""
    return _find(request, pk).cancel(keyed(request).actor)


def _find(request: HttpRequest, pk: int) -> Reread:
    return one(Reread.objects.filter(project=keyed(request).project, is_of_costs=True), pk=pk)
