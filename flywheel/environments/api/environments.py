"""Environments for programs: their settings, their versions, how many tasks they have."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Prefetch
from django.http import HttpRequest
from ninja import Query, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Project, Scope
from flywheel.agents.models import Agent
from flywheel.agents.references import find_version
from flywheel.core.envs.kinds import KINDS
from flywheel.core.envs.replay import episode_replay
from flywheel.core.envs.tool_call import DEFAULT_WEIGHTS
from flywheel.edge.answers import ListQuery, Ref, page_of, paginate
from flywheel.edge.refusals import at_field, one
from flywheel.edge.schemas import Body, RefIn, Schema
from flywheel.environments import task_statistics
from flywheel.environments.models import Environment, EnvironmentVersion
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms

router = Router(tags=["environments"])
_COUNTED = ("train", "held_out", "sealed", "set_aside", "proved", "total")


class EnvironmentVersionOut(Schema):
    number: int
    config: dict[str, Any]
    verifier: dict[str, Any]
    digest: str
    verifier_digest: str
    """SHA-256 of the verifier. Scores under the same digest can be compared."""
    created_at: datetime


class EnvironmentOut(Schema):
    name: str
    kind: str
    description: str
    agent: Ref | None
    """The agent whose failures become tasks."""
    held_out_share: float
    """Fraction of all sources that is used only for measuring."""
    sealed_share: float
    """Fraction of all sources that is sealed. They are part of `held_out_share`."""
    reserved_slices: list[str]
    """Slices whose tasks are never trained on."""
    created_at: datetime
    tasks: dict[str, int]
    """Number of tasks by split, and of `proved` ones and in `total`."""
    latest: EnvironmentVersionOut | None
    """The newest version."""
    simulator_agreement: dict[str, Any] | None
    """How often the model that simulates a replay's tools returns a recorded result that was withheld from it, with its
    interval and `n`; null if no model simulates them."""

    @staticmethod
    def resolve_tasks(row: Environment) -> dict[str, int]:
        return {name: getattr(row, name, 0) for name in _COUNTED}

    @staticmethod
    def resolve_latest(row: Environment) -> EnvironmentVersion | None:
        known: list[EnvironmentVersion] | None = getattr(row, "newest", None)
        return row.versions.order_by("-number").first() if known is None else next(iter(known), None)

    @staticmethod
    def resolve_simulator_agreement(row: Environment) -> dict[str, Any] | None:
        found = task_statistics.simulator_agreement(row, EnvironmentOut.resolve_latest(row))
        return asdict(found) if found else None


class EnvironmentIn(Body):
    name: str
    """Lower-case letters, digits, `-` and `_`."""
    version: RefIn = ""
    """`agent@number`, whose tools judge the calls and whose agent's failures become tasks. If omitted for an `episode`,
    the tools come from recorded traces. A world has its own tools and takes only the agent."""
    kind: str = "tool_call"
    """`tool_call`, `episode`, `world`, `tool_server`, `workplace`, `tictactoe` or `nemo_gym`. It never changes."""
    config: dict[str, Any] = {}
    """Settings of kinds that have some; their defaults if omitted. For `episode`: `{"tools", "max_turns", "judged",
    "unknown", "error", "source", "simulator", "server", "user", "script"}`. For `world`: `{"source", "start",
    "system_prompt", "max_turns", "token_limit"}`. For `nemo_gym`: `{"base_url", "tools", "max_turns", "token_limit"}`,
    which also requires a key with the scope `admin`."""
    held_out_share: float = 0.4
    """Fraction of sources (sessions, customers) that is used only for measuring, from 0 to 1."""
    sealed_share: float | None = None
    """Fraction of all sources that is sealed for a candidate's final comparison; it is part of `held_out_share`. If
    omitted, a quarter of `held_out_share`, or 0 if everything is held out."""
    reserved_slices: list[str] = []
    """Slices whose tasks are never trained on."""
    description: str = ""
    weights: dict[str, float] | None = None
    """Weights of the parts of the kind's own verifier; its defaults if omitted."""
    verifier: dict[str, Any] | None = None
    """A complete verifier in place of the kind's own, for example a rubric: `{"kind": "rubric", "parts": […]}`."""


class EnvironmentVersionIn(Body):
    """A new version; omitted fields keep their value from the newest version."""

    config: dict[str, Any] | None = None
    """All settings, for a kind that has some."""
    system_prompt: str | None = None
    """Rules of a world. They follow the prompt of the evaluated version."""
    tools: list[dict[str, Any]] | None = None
    """Tool definitions in OpenAI's format."""
    weights: dict[str, float] | None = None
    """Weights of the parts of the kind's own verifier."""
    verifier: dict[str, Any] | None = None
    """A complete verifier in place of the kind's own, for example a rubric: `{"kind": "rubric", "parts": […]}`."""


@router.get("/environments", response=page_of(EnvironmentOut), auth=Key(Scope.READ))
def list_environments(request: HttpRequest, query: Query[ListQuery]) -> dict[str, Any]:
    """List environments, newest first, with their newest version and their number of tasks."""
    rows = task_statistics.counts(Environment.objects.filter(project=keyed(request).project).select_related("agent"))
    newest = EnvironmentVersion.objects.order_by("environment", "-number").distinct("environment")
    return paginate(rows.prefetch_related(Prefetch("versions", newest, to_attr="newest")), query)


@router.post("/environments", response={201: EnvironmentOut}, auth=Key(Scope.BUILD))
def create_environment(request: HttpRequest, wanted: EnvironmentIn) -> Status[Environment]:
    """Create an environment with its first version. The split shares and reserved slices never change. 403 without the
    scope `admin` if the kind attaches a server."""
    project = keyed(request).project
    _refuse_attaching(request, wanted.kind)
    config, agent = wanted.config, None
    verifier: dict[str, Any] = {"kind": wanted.kind}
    if wanted.kind in KINDS and KINDS[wanted.kind].takes_failures:
        config, agent = _of_agent(project, wanted)
    if wanted.kind == "tool_call":
        verifier |= {"weights": wanted.weights or DEFAULT_WEIGHTS}
    elif wanted.weights is not None:
        verifier |= {"weights": wanted.weights}
    made = environment_versions.environment(
        project=project,
        name=wanted.name,
        actor=keyed(request).actor,
        config=config,
        verifier=wanted.verifier or verifier,
        terms=Terms(
            kind=wanted.kind,
            agent=agent,
            held_out_share=wanted.held_out_share,
            sealed_share=_sealed_share(wanted),
            reserved_slices=wanted.reserved_slices,
        ),
        description=wanted.description,
    )
    return Status(201, made)


def _of_agent(project: Project, wanted: EnvironmentIn) -> tuple[dict[str, Any], Agent | None]:
    """The settings of a kind whose tasks can be made of failures, and the agent whose failures they are."""
    is_world = KINDS[wanted.kind].is_world
    if is_world and not wanted.version:
        return wanted.config, None
    if wanted.kind == episode_replay.KIND and not wanted.version:
        return {"tools": environment_versions.recorded_tools(project), **wanted.config}, None
    with at_field("version"):
        version = find_version(project, wanted.version)
    if is_world:
        return wanted.config, version.agent
    return {"tools": version.tools, **(wanted.config if wanted.kind == episode_replay.KIND else {})}, version.agent


def _sealed_share(wanted: EnvironmentIn) -> float:
    if wanted.sealed_share is None:
        is_external = wanted.kind in KINDS and KINDS[wanted.kind].is_external
        return 0 if is_external or wanted.held_out_share == 1 else wanted.held_out_share / 4
    return wanted.sealed_share


@router.get("/environments/{name}", response=EnvironmentOut, auth=Key(Scope.READ))
def get_environment(request: HttpRequest, name: str) -> Environment:
    """Return one environment with its newest version and its number of tasks."""
    row = find_environment(request, name)
    return task_statistics.counts(Environment.objects.filter(pk=row.pk)).select_related("agent").get()


@router.post("/environments/{name}/versions", response={201: EnvironmentVersionOut}, auth=Key(Scope.BUILD))
def make_environment_version(
    request: HttpRequest, name: str, wanted: EnvironmentVersionIn
) -> Status[EnvironmentVersion]:
    """Create the next version, or return the newest one if nothing changes. Every task is proved again under a new
    version."""
    row = find_environment(request, name)
    _refuse_attaching(request, row.kind)
    newest = row.versions.order_by("-number").first()
    config = environment_versions.settings_of(newest) if newest else {}
    verifier = dict(newest.verifier) if newest else {"kind": row.kind}
    if wanted.config is not None:
        config = wanted.config
    if wanted.system_prompt is not None:
        config["system_prompt"] = wanted.system_prompt
    if wanted.tools is not None:
        config["tools"] = wanted.tools
    if wanted.verifier is not None:
        verifier = wanted.verifier
    elif wanted.weights is not None:
        verifier["weights"] = wanted.weights
    actor = keyed(request).actor
    made = environment_versions.environment_version(environment=row, actor=actor, config=config, verifier=verifier)
    return Status(201, made)


def _refuse_attaching(request: HttpRequest, kind: str) -> None:
    """To whose server this installation talks, an admin says, with a key that may."""
    asked = keyed(request)
    if kind not in KINDS or not KINDS[kind].is_external:
        return
    if Scope.ADMIN not in asked.key.scopes or not environment_versions.may_attach(asked.project, asked.actor):
        raise PermissionDenied("only an admin may attach a server: use a key that also has the scope 'admin'")


def find_environment(request: HttpRequest, name: str) -> Environment:
    """The environment of the key's project, or 404."""
    return one(Environment.objects.filter(project=keyed(request).project), name=name)
