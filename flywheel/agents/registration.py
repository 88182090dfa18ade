"""Register an agent; make a version of one."""

import re
from typing import Any, ClassVar

from django.db import IntegrityError, transaction
from django.db.models import Max, Q, QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Permission, Project
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Artifact, Version
from flywheel.agents.version_content import (
    OPENAI,
    PROGRAM,
    TRANSFORMERS,
    VersionContent,
    check_endpoint,
    check_form,
    check_sampling,
    check_tools,
)
from flywheel.core.traces import call_forms
from flywheel.edge.refusals import Refused

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


class OnlyAdmins(Refused):
    """A version that workers would start as a command, made by one who may not say what they start."""

    status: ClassVar[int] = 403


def make_agent(*, project: Project, name: str, actor: Actor, description: str = "") -> Agent:
    """A new agent, nothing live. Raises Refused."""
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name!r} is not a valid name: use lower-case letters, digits, - and _, for example mail-agent",
            field="name",
        )
    try:
        with transaction.atomic():
            agent = Agent.objects.create(project=project, name=name, description=description.strip())
            actor.record(project=project, action="agents.make_agent", subject=agent)
    except IntegrityError:
        raise Refused(f"this project already has an agent {name!r}", field="name") from None
    return agent


@transaction.atomic
def make_version(
    *,
    agent: Agent,
    actor: Actor,
    content: VersionContent,
    parent: Version | None = None,
    note: str = "",
) -> tuple[Version, bool]:
    """The agent's version with this content, and whether it is new: equal content is one version.

    `parent` is what it was made from, for the record; it is no part of the content. Without a `form` it is the one of
    its chat template, or native calls for a server. Raises Refused.
    """
    base_model = content.base_model.strip()
    if not base_model or len(content.base_model) > 300:
        raise Refused("is missing: enter the base model's name, for example Qwen/Qwen3-8B", field="base_model")
    if len(note) > 300:
        raise Refused(f"has {len(note)} characters; at most 300 are allowed", field="note")
    if parent is not None and parent.agent_id != agent.pk:
        raise Refused(f"{parent} is a version of another agent", field="parent")
    endpoint = check_endpoint(content.endpoint, agent.project_id)
    _check_may_start(agent.project, endpoint, actor)
    _check_artifacts(endpoint["kind"], content.weights, content.adapter)
    if endpoint["kind"] == PROGRAM and content.form not in (None, "", call_forms.NATIVE):
        raise Refused("is not needed: the program reads the calls itself; leave it out", field="form")
    Agent.objects.select_for_update().get(pk=agent.pk)
    before = agent.versions.aggregate(last=Max("number"))["last"] or 0
    version = Version.make(
        agent,
        actor.user,
        base_model=base_model,
        endpoint=endpoint,
        weights=content.weights,
        adapter=content.adapter,
        system_prompt=content.system_prompt,
        tools=check_tools(content.tools),
        sampling=check_sampling(content.sampling),
        form=check_form(proposed_form(content.weights) if content.form is None else content.form),
        parent=parent,
        note=note.strip(),
    )
    made = version.number > before
    if made:
        actor.record(
            project=agent.project,
            action="agents.make_version",
            subject=version,
            reason=version.note,
            digest=version.digest,
            parent=str(parent) if parent else None,
        )
    return version, made


def proposed_form(weights: Artifact | None) -> str:
    """The form in which a version most likely calls: native where a server writes the prompt, or where the chat
    template tells of tools; else our text form, which a template that knows no tools can be taught."""
    return call_forms.NATIVE if weights is None or tells_of_tools(weights) else call_forms.JSON


def tells_of_tools(weights: Artifact) -> bool:
    """Whether the chat template writes the tools into the prompt."""
    files = {"chat_template.jinja", "tokenizer_config.json"} & weights.manifest.keys()
    return any(b"tools" in artifacts.read(weights, name) for name in files)


def artifacts_of(project: Project) -> QuerySet[Artifact]:
    """Those that the project's versions are made of: what another project uploaded is not to be had by its digest."""
    versions = Version.objects.filter(agent__project=project)
    used = Q(pk__in=versions.values("weights")) | Q(pk__in=versions.values("adapter"))
    return Artifact.objects.filter(used).order_by("-pk")


def _check_may_start(project: Project, endpoint: dict[str, Any], actor: Actor) -> None:
    """Raise OnlyAdmins for one who may not say what workers start: a command acts as their account."""
    if endpoint.get("way") != "command" or actor.is_command:
        return
    known = actor.user.project(project.slug)
    if known is None or Permission.ADMIN not in known[1]:
        raise OnlyAdmins(
            "only an admin may create a version whose program is a command, since workers start it with their own "
            "rights; ask an admin, or use an address or pulled work",
            field="endpoint.way",
        )


def _check_artifacts(kind: str, weights: Artifact | None, adapter: Artifact | None) -> None:
    for field, artifact, wanted in (("weights", weights, "model"), ("adapter", adapter, "adapter")):
        if artifact is not None and artifact.kind != wanted:
            raise Refused(f"{artifact} is not of kind {wanted}", field=field)
    if kind == TRANSFORMERS and weights is None:
        raise Refused(
            f"are missing: a {TRANSFORMERS} endpoint answers with weights that are stored here", field="weights"
        )
    if kind == PROGRAM and (weights or adapter):
        field = "weights" if weights else "adapter"
        raise Refused("belong to the program's model, which its base_url or the gateway's upstream serves", field=field)
    if kind == OPENAI and weights is not None:
        raise Refused("belong on the server of an openai endpoint; leave them out", field="weights")
    if kind == OPENAI and adapter is not None:
        raise Refused("is loaded by the server of an openai endpoint; enter its name as the model", field="adapter")
