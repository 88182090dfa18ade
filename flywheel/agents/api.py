"""Agents and their versions for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status
from ninja.errors import HttpError

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.content import BadContent
from flywheel.agents.make import artifacts_of, make_agent, make_version
from flywheel.agents.models import Agent, Artifact, Version
from flywheel.agents.refs import UnknownReference, find_agent, find_version
from flywheel.paging import BadCursor, keyset

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


class AgentIn(Schema):
    name: str
    description: str = ""


class ArtifactOut(Schema):
    digest: str
    kind: str
    size: int
    manifest: dict[str, Any]


class VersionRow(Schema):
    agent: str
    number: int
    base_model: str
    endpoint: dict[str, Any]
    sampling: dict[str, Any]
    digest: str
    parent: int | None
    note: str
    created_by: str
    created_at: datetime

    @staticmethod
    def resolve_agent(row: Version) -> str:
        return row.agent.name

    @staticmethod
    def resolve_parent(row: Version) -> int | None:
        return row.parent.number if row.parent else None

    @staticmethod
    def resolve_created_by(row: Version) -> str:
        return row.created_by.username


class VersionOut(VersionRow):
    system_prompt: str
    tools: list[dict[str, Any]]
    weights: ArtifactOut | None
    adapter: ArtifactOut | None


class VersionPage(Schema):
    items: list[VersionRow]
    next: str | None


class VersionIn(Schema):
    """A whole version, or with `like` another one of the agent with what is given changed."""

    like: int | None = None
    base_model: str | None = None
    endpoint: dict[str, Any] | None = None
    weights: str | None = Field(None, description="digest of an artifact that a version of this project is made of")
    adapter: str | None = Field(None, description="likewise; an empty string takes the copied adapter away")
    system_prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    sampling: dict[str, Any] | None = None
    note: str = ""


@router.get("/agents", response=AgentPage, auth=Key(Scope.READ), operation_id="list_agents")
def list_agents(request: HttpRequest, page: Query[Paged]) -> dict[str, Any]:
    """Newest first."""
    rows = Agent.objects.filter(project=keyed(request).project).select_related("live")
    return _page(rows, page, "id")


@router.post("/agents", response={201: AgentOut}, auth=Key(Scope.BUILD), operation_id="create_agent")
def create_agent(request: HttpRequest, body: AgentIn) -> Status[Agent]:
    asked = keyed(request)
    try:
        made = make_agent(
            project=asked.project,
            actor=asked.actor,
            name=body.name,
            description=body.description,
            through=asked.through,
        )
    except BadContent as error:
        raise HttpError(422, str(error)) from error
    return Status(201, made)


@router.get("/agents/{name}", response=AgentOut, auth=Key(Scope.READ), operation_id="get_agent")
def get_agent(request: HttpRequest, name: str) -> Agent:
    return _agent(request, name)


@router.get("/agents/{name}/versions", response=VersionPage, auth=Key(Scope.READ), operation_id="list_versions")
def list_versions(request: HttpRequest, name: str, page: Query[Paged]) -> dict[str, Any]:
    """Newest first, without prompts and tools."""
    rows = _agent(request, name).versions.select_related("agent", "parent", "created_by")
    return _page(rows.defer("system_prompt", "tools"), page, "number")


@router.post(
    "/agents/{name}/versions",
    response={200: VersionOut, 201: VersionOut},
    auth=Key(Scope.BUILD),
    operation_id="create_version",
)
def create_version(request: HttpRequest, name: str, body: VersionIn) -> Status[Version]:
    """201 for a new version, 200 for the existing one with exactly this content."""
    asked, agent = keyed(request), _agent(request, name)
    try:
        like = find_version(asked.project, f"{agent.name}@{body.like}") if body.like is not None else None
        made, is_new = make_version(
            agent=agent,
            actor=asked.actor,
            parent=like,
            note=body.note,
            through=asked.through,
            **_content(asked, body, like),
        )
    except UnknownReference as error:
        raise HttpError(422, f"like: {error}") from error
    except BadContent as error:
        raise HttpError(422, str(error)) from error
    return Status(201 if is_new else 200, made)


@router.get("/agents/{name}/versions/{number}", response=VersionOut, auth=Key(Scope.READ), operation_id="get_version")
def get_version(request: HttpRequest, name: str, number: int) -> Version:
    rows = Version.objects.select_related("agent", "weights", "adapter", "parent", "created_by")
    return get_object_or_404(rows, agent=_agent(request, name), number=number)


def _content(asked: KeyRequest, body: VersionIn, like: Version | None) -> dict[str, Any]:
    """What is given, over what is copied. Raises BadContent."""
    content: dict[str, Any] = {"base_model": "", "endpoint": {}}
    if like is not None:
        names = ("base_model", "endpoint", "weights", "adapter", "system_prompt", "tools", "sampling")
        content = {name: getattr(like, name) for name in names}
    for name in ("base_model", "endpoint", "system_prompt", "tools", "sampling"):
        value = getattr(body, name)
        if value is not None:
            content[name] = value
    for name in ("weights", "adapter"):
        digest = getattr(body, name)
        if digest is not None:
            content[name] = _artifact(asked, name, digest) if digest else None
    return content


def _artifact(asked: KeyRequest, field: str, digest: str) -> Artifact:
    found = artifacts_of(asked.project).filter(digest=digest).first()
    if found is None:
        raise BadContent(field, f"no version of this project is made of an artifact {digest[:16]!r}")
    return found


def _agent(request: HttpRequest, name: str) -> Agent:
    try:
        return find_agent(keyed(request).project, name)
    except UnknownReference as error:
        raise HttpError(404, str(error)) from error


def _page(rows: Any, asked: Paged, key: str) -> dict[str, Any]:
    try:
        page = keyset(rows, cursor=asked.cursor, limit=asked.limit, keys=(key,))
    except BadCursor as error:
        raise HttpError(400, str(error)) from error
    return {"items": page.items, "next": page.next_cursor or None}
