"""Agents, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent
from flywheel.agents.references import find_agent
from flywheel.agents.registration import make_agent
from flywheel.edge.answers import ListQuery, Number, page_of, paginate
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["agents"])


class AgentOut(Schema):
    name: str
    description: str
    live: Number | None
    """Number of the live version."""
    generation: int
    """Counts promotions and rollbacks; send it back with a decision."""
    created_at: datetime


class AgentIn(Body):
    name: str
    """Lower-case letters, digits, `-` and `_`."""
    description: str = ""


@router.get("/agents", response=page_of(AgentOut), auth=Key(Scope.READ))
def list_agents(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List agents, newest first."""
    rows = Agent.objects.filter(project=keyed(request).project).select_related("live")
    return paginate(rows, query)


@router.post("/agents", response={201: AgentOut}, auth=Key(Scope.BUILD))
def create_agent(request: HttpRequest, body: AgentIn) -> Status[Agent]:
    """Create an agent without versions. 422 if the name is taken."""
    asked = keyed(request)
    made = make_agent(project=asked.project, actor=asked.actor, name=body.name, description=body.description)
    return Status(201, made)


@router.get("/agents/{name}", response=AgentOut, auth=Key(Scope.READ))
def get_agent(request: HttpRequest, name: str) -> Agent:
    """Return one agent with the number of its live version."""
    return find_agent(keyed(request).project, name)
