"""Agents, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent
from flywheel.agents.references import UnknownReference, find_agent
from flywheel.agents.registration import make_agent
from flywheel.agents.version_content import BadContent
from flywheel.edge.paging import BadCursor, keyset
from flywheel.edge.schemas import Body

router = Router(tags=["agents"])


class Paged(Schema):
    limit: int = Field(50, ge=1, le=200)
    cursor: str = ""


class AgentOut(Schema):
    name: str
    description: str
    live: int | None
    """Number of the live version."""
    generation: int
    created_at: datetime

    @staticmethod
    def resolve_live(row: Agent) -> int | None:
        return row.live.number if row.live else None


class AgentPage(Schema):
    items: list[AgentOut]
    next: str | None


class AgentIn(Body):
    name: str
    description: str = ""


@router.get("/agents", response=AgentPage, auth=Key(Scope.READ), operation_id="list_agents")
def list_agents(request: HttpRequest, page: Query[Paged]) -> dict[str, Any]:
    """Newest first."""
    rows = Agent.objects.filter(project=keyed(request).project).select_related("live")
    return page_of(rows, page, "id")


@router.post("/agents", response={201: AgentOut}, auth=Key(Scope.BUILD), operation_id="create_agent")
def create_agent(request: HttpRequest, body: AgentIn) -> Status[Agent]:
    asked = keyed(request)
    try:
        made = make_agent(
            project=asked.project,
            actor=asked.actor,
            name=body.name,
            description=body.description,
        )
    except BadContent as error:
        raise HttpError(422, str(error)) from error
    return Status(201, made)


@router.get("/agents/{name}", response=AgentOut, auth=Key(Scope.READ), operation_id="get_agent")
def get_agent(request: HttpRequest, name: str) -> Agent:
    return agent_of(request, name)


def agent_of(request: HttpRequest, name: str) -> Agent:
    try:
        return find_agent(keyed(request).project, name)
    except UnknownReference as error:
        raise HttpError(404, str(error)) from error


def page_of(rows: Any, asked: Paged, key: str) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit, keys=(key,))
    except BadCursor as error:
        raise HttpError(400, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}
