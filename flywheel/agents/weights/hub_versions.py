"""Versions of weights on a model hub, where the operator allows one (FLYWHEEL_HUB).

A worker fetches them at one commit (`workers/jobs/weights/hub_downloads.py`) and then makes the version, as if the
files had been uploaded: safetensors, JSON and text, nothing that could run.
"""

import uuid
from dataclasses import dataclass, fields, replace

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Artifact, HubVersion, Version
from flywheel.agents.registration import make_version
from flywheel.agents.version_content import (
    TRANSFORMERS,
    VersionContent,
    check_endpoint,
    check_form,
    check_sampling,
    check_tools,
)
from flywheel.core.network import model_hub
from flywheel.edge.refusals import Refused, check_choice
from flywheel.system import env

KINDS = ("model", "adapter")


@dataclass(frozen=True, slots=True)
class HubSource:
    name: str
    """On the hub: `owner/name`."""
    revision: str = "main"
    """Commit, branch or tag."""
    kind: str = "model"
    """`model`, or `adapter` for one that goes on the content's weights."""


_SAID = [field.name for field in fields(VersionContent) if field.name not in ("weights", "adapter")]
"""Fields of a content that are JSON."""


def request(
    *,
    agent: Agent,
    actor: Actor,
    source: HubSource,
    content: VersionContent,
    parent: Version | None = None,
    note: str = "",
    key: uuid.UUID | None = None,
) -> tuple[HubVersion, bool]:
    """Have a worker fetch the weights, or the adapter, and make the version with this content. Returns the job and
    whether it is new. Raises Refused."""
    if not env.hub():
        raise Refused(model_hub.NOT_ALLOWED, field="name")
    check_choice(source.kind, KINDS, field="kind")
    try:
        model_hub.check(source.name, source.revision)
    except model_hub.HubError as error:
        raise Refused(str(error), field=error.field) from error
    content = replace(content, base_model=content.base_model.strip() or source.name)
    _check(content, agent, source.kind)
    if len(content.base_model) > 300 or len(note) > 300:
        long = "note" if len(note) > 300 else "base_model"
        raise Refused("at most 300 characters are allowed", field=long)
    return HubVersion.submit(
        key=key or uuid.uuid4(),
        actor=actor,
        entry="agents.fetch_version",
        about={"subject": agent, "name": source.name, "revision": source.revision},
        project=agent.project,
        agent=agent,
        name=source.name,
        revision=source.revision,
        kind=source.kind,
        weights=content.weights if source.kind == "adapter" else None,
        adapter=content.adapter if source.kind == "model" else None,
        content={name: getattr(content, name) for name in _SAID},
        parent=parent,
        version_note=note.strip(),
    )


def finish(job: HubVersion, fetched: Artifact, commit: str) -> Version:
    """The version of a request whose files were fetched. Raises Refused."""
    content = VersionContent(**job.content, weights=job.weights, adapter=job.adapter)
    content = replace(content, adapter=fetched) if job.kind == "adapter" else replace(content, weights=fetched)
    note = job.version_note or f"{job.name} at {commit[:12]}"
    by = Actor(job.created_by, f"a worker, for {job}")
    version, _ = make_version(agent=job.agent, actor=by, content=content, parent=job.parent, note=note)
    return version


def _check(content: VersionContent, agent: Agent, kind: str) -> None:
    """Refuse now what could not be made later, when gigabytes have been fetched. Raises Refused."""
    if check_endpoint(content.endpoint, agent.project_id)["kind"] != TRANSFORMERS:
        raise Refused(f"weights from a hub run here; use a {TRANSFORMERS} endpoint", field="endpoint.kind")
    if kind == "adapter" and content.weights is None:
        raise Refused("is missing: the version whose weights the adapter goes on", field="like")
    check_tools(content.tools)
    check_sampling(content.sampling)
    check_form(content.form or "")
