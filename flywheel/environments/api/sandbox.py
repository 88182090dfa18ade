"""For programs: what the machines of the workers offer for code that nobody vouches for."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router

from flywheel.accounts.access import Key
from flywheel.accounts.models import Scope
from flywheel.edge.schemas import Schema
from flywheel.environments.models import SandboxReport

router = Router(tags=["environments"])


class LayerOut(Schema):
    name: str
    state: str
    """`on`, `missing`, `given up` (switched off by the operator) or `not needed`."""
    stops: str
    """What the layer prevents."""
    found: str
    """What the test found."""
    getting: str
    """How to get a missing layer."""


class MachineOut(Schema):
    host: str
    at: datetime
    is_fresh: bool
    """Whether the machine has reported recently."""
    runs: bool = Field(alias="report.runs")
    """Whether untrusted code runs on this machine; otherwise it is refused."""
    machine: str = Field(alias="report.machine")
    milliseconds: float | None
    """Time of one call."""
    layers: list[LayerOut] = Field(alias="report.layers")


class MachinesOut(Schema):
    items: list[MachineOut]


@router.get("/sandbox", response=MachinesOut, auth=Key(Scope.BUILD))
def list_sandboxes(request: HttpRequest) -> dict[str, Any]:
    """List every machine that runs a worker, with the sandbox layers that an actual test found on it."""
    return {"items": SandboxReport.objects.all()}
