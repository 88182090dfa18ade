"""Versions of an agent, for programs."""

import uuid
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Field, Query, Router, Status

from flywheel.accounts.access import Key, KeyRequest, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.model_archives import store_archive
from flywheel.agents.models import Artifact, HubVersion, Version
from flywheel.agents.references import find_agent, find_version
from flywheel.agents.registration import OnlyAdmins, artifacts_of, make_version
from flywheel.agents.version_changes import Change, changes
from flywheel.agents.version_content import TRANSFORMERS, VersionContent
from flywheel.agents.weights import hub_versions
from flywheel.agents.weights.hub_versions import HubSource
from flywheel.core.traces.call_forms import LABELS
from flywheel.edge.answers import ListQuery, Number, Ref, page_of, paginate
from flywheel.edge.refusals import Refused, at_field, one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["agents"])


class ArtifactOut(Schema):
    digest: str
    kind: str
    size: int
    manifest: dict[str, Any]


class VersionRow(Schema):
    agent: Ref
    number: int
    """Counts from 1 within the agent."""
    base_model: str
    endpoint: dict[str, Any]
    sampling: dict[str, Any]
    form: str = Field(description="Call format: `native`, or a text format; empty if any is accepted.")
    digest: str
    """SHA-256 of the content. Two versions with the same digest are the same."""
    parent: Number | None
    """Number of the version that it was made from."""
    note: str
    created_by: Ref
    created_at: datetime


class VersionOut(VersionRow):
    system_prompt: str
    tools: list[dict[str, Any]]
    weights: ArtifactOut | None
    adapter: ArtifactOut | None


class VersionIn(Body):
    """A complete version, or a copy of the agent's version `like` with the given fields changed."""

    like: int | None = None
    """Number of the version to copy; null to give the complete content."""
    base_model: str | None = None
    """Display name of the model, for example `Qwen/Qwen3-8B`."""
    endpoint: dict[str, Any] | None = None
    """How the version runs, by `kind`: `transformers` for weights stored here; `openai` with `base_url`, `model` and
    `api_key_env`; or `program` with `way`, `code` and its model. `chat_template_kwargs`, with the first two, are
    settings of the model's chat template, for example `{"enable_thinking": false}`."""
    weights: str | None = Field(None, description="Digest of an artifact used by a version of this project.")
    adapter: str | None = Field(
        None, description="Digest of an artifact, as for `weights`; an empty string removes the copied adapter."
    )
    system_prompt: str | None = None
    """Empty for none."""
    tools: list[dict[str, Any]] | None = None
    """Tool definitions in OpenAI's format."""
    sampling: dict[str, Any] | None = None
    """Any of `temperature`, `top_p` and `max_tokens`."""
    form: str | None = Field(None, description=f"One of {', '.join(LABELS)}; chosen automatically if omitted.")
    note: str = ""


class WeightsQuery(Schema):
    kind: Literal["model", "adapter"] = "model"
    """`adapter` for a LoRA adapter, which goes on the weights of the version `like`."""
    like: int | None = None
    """Number of the version whose prompt, tools and sampling it takes."""
    base_model: str = ""
    """Display name of the model; that of `like` if empty."""
    note: str = ""


@router.get("/agents/{name}/versions", response=page_of(VersionRow, "VersionPage"), auth=Key(Scope.READ))
def list_versions(request: HttpRequest, name: str, query: Query[ListQuery]) -> dict[str, Any]:
    """List an agent's versions, newest first, without prompts and tools."""
    rows = find_agent(keyed(request).project, name).versions.select_related("agent", "parent", "created_by")
    return paginate(rows.defer("system_prompt", "tools"), query, keys=("number",))


@router.post("/agents/{name}/versions", response={200: VersionOut, 201: VersionOut}, auth=Key(Scope.BUILD))
def create_version(request: HttpRequest, name: str, body: VersionIn) -> Status[Version]:
    """Create a version: 201 if it is new, 200 with the existing one if it has exactly this content. 403 without the
    scope `admin` if the endpoint has a command that workers start."""
    asked = keyed(request)
    agent = find_agent(asked.project, name)
    with at_field("like"):
        like = find_version(asked.project, f"{agent}@{body.like}") if body.like is not None else None
    content = _content(asked, body, like)
    if content.endpoint.get("way") == "command" and Scope.ADMIN not in asked.key.scopes:
        raise OnlyAdmins(
            "only an admin may set a command that workers start: use a key that also has the scope 'admin'"
        )
    made, is_new = make_version(agent=agent, actor=asked.actor, content=content, parent=like, note=body.note)
    return Status(201 if is_new else 200, made)


@router.post("/agents/{name}/versions/upload", response={200: VersionOut, 201: VersionOut}, auth=Key(Scope.BUILD))
def upload_version(request: HttpRequest, name: str, query: Query[WeightsQuery]) -> Status[Version]:
    """Create a version of the weights in the request body: a ZIP or tar archive of at most 512 MB, with .safetensors
    files and a model's JSON and text, no pickles and no code. 413 if it is larger."""
    asked = keyed(request)
    agent = find_agent(asked.project, name)
    with at_field("like"):
        like = find_version(asked.project, f"{agent}@{query.like}") if query.like is not None else None
    copied = VersionContent(base_model="", endpoint={}) if like is None else VersionContent.of(like)
    if query.kind == "adapter":
        content = replace(copied, adapter=store_archive(request, "adapter"))
    else:
        endpoint = copied.endpoint if copied.endpoint.get("kind") == TRANSFORMERS else {"kind": TRANSFORMERS}
        content = replace(copied, endpoint=endpoint, weights=store_archive(request, "model"), adapter=None)
    content = replace(content, base_model=query.base_model or content.base_model)
    made, is_new = make_version(agent=agent, actor=asked.actor, content=content, parent=like, note=query.note)
    return Status(201 if is_new else 200, made)


class HubVersionIn(Body):
    """Weights on the model hub, for a version that is otherwise a copy of `like`."""

    name: str
    """On the hub: `owner/name`, for example `Qwen/Qwen3-0.6B`."""
    revision: str = "main"
    """Commit, branch or tag; the version notes the commit."""
    kind: Literal["model", "adapter"] = "model"
    """`adapter` for a LoRA adapter, which goes on the weights of the version `like`."""
    like: int | None = None
    """Number of the version whose prompt, tools and sampling it takes."""
    base_model: str = ""
    """Display name of the model; by default the name on the hub, or for an adapter that of `like`."""
    note: str = ""
    key: uuid.UUID | None = None
    """Your own UUID. Repeating a key returns the same job."""


class HubVersionOut(Schema):
    id: int
    name: str
    revision: str
    state: str
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    error: str
    """Why there is no version."""
    version: Ref | None
    """The version; null until the weights are here."""


@router.post("/agents/{name}/versions/hub", response={200: HubVersionOut, 201: HubVersionOut}, auth=Key(Scope.BUILD))
def fetch_version(request: HttpRequest, name: str, body: HubVersionIn) -> Status[HubVersion]:
    """Create a version of weights on the model hub that the operator allows (`FLYWHEEL_HUB`). A worker fetches
    .safetensors, JSON and text at one commit, no pickles and no code: follow its `state`. 422 if no hub is allowed."""
    asked = keyed(request)
    agent = find_agent(asked.project, name)
    with at_field("like"):
        like = find_version(asked.project, f"{agent}@{body.like}") if body.like is not None else None
    copied = VersionContent(base_model="", endpoint={}) if like is None else VersionContent.of(like)
    is_here = copied.endpoint.get("kind") == TRANSFORMERS
    base_model = body.base_model or (copied.base_model if body.kind == "adapter" else body.name)
    content = replace(copied, base_model=base_model, endpoint=copied.endpoint if is_here else {"kind": TRANSFORMERS})
    if body.kind == "model":
        content = replace(content, weights=None, adapter=None)
    job, made = hub_versions.request(
        agent=agent,
        actor=asked.actor,
        source=HubSource(body.name, body.revision, body.kind),
        content=content,
        parent=like,
        note=body.note,
        key=body.key,
    )
    return Status(201 if made else 200, job)


@router.get("/agents/{name}/versions/hub/{int:fetch}", response=HubVersionOut, auth=Key(Scope.READ))
def get_fetched_version(request: HttpRequest, name: str, fetch: int) -> HubVersion:
    """Return how far a worker is with weights from the hub, and the version once it is there."""
    rows = find_agent(keyed(request).project, name).hub_versions.select_related("version__agent")
    return one(rows, pk=fetch)


@router.get("/agents/{name}/versions/{int:number}", response=VersionOut, auth=Key(Scope.READ))
def get_version(request: HttpRequest, name: str, number: int) -> Version:
    """Return one version with its prompt, tools and artifacts."""
    rows = find_agent(keyed(request).project, name).versions
    return one(rows.select_related("agent", "weights", "adapter", "parent", "created_by"), number=number)


class ChangeOut(Schema):
    part: str = Field(
        alias="label", description="For example `System prompt`, `Sampling` or `Tool mail.send: description`."
    )
    change: str = Field(alias="word", description="`added`, `removed` or `changed`.")
    before: Any
    after: Any


@router.get("/agents/{name}/versions/{int:number}/changes", response=list[ChangeOut], auth=Key(Scope.READ))
def list_version_changes(request: HttpRequest, name: str, number: int, against: int | None = None) -> list[Change]:
    """List the changes from another version of the agent; by default, from the version that it was made from."""
    rows = find_agent(keyed(request).project, name).versions.select_related("agent", "weights", "adapter")
    after = one(rows.select_related("parent__weights", "parent__adapter"), number=number)
    with at_field("against"):
        before = after.parent if against is None else one(rows, number=against)
        if before is None:
            raise Refused(f"is missing: {after} was not made from another version")
    return changes(before, after)


def _content(asked: KeyRequest, body: VersionIn, like: Version | None) -> VersionContent:
    """Return the content of a new version: fields of the body, else those of the version copied. Raises Refused."""
    copied = VersionContent(base_model="", endpoint={}) if like is None else VersionContent.of(like)
    fields = body.dict(exclude={"like", "note"}, exclude_none=True)
    for name in fields.keys() & {"weights", "adapter"}:
        fields[name] = _artifact(asked, name, fields[name]) if fields[name] else None
    return replace(copied, **fields)


def _artifact(asked: KeyRequest, field: str, digest: str) -> Artifact:
    found = artifacts_of(asked.project).filter(digest=digest).first()
    if found is None:
        raise Refused(f"no version of this project uses an artifact {digest[:16]!r}", field=field)
    return found
