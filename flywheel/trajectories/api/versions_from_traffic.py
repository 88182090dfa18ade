"""A version from what production sends, for programs."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.api.versions import VersionOut
from flywheel.agents.references import find_agent
from flywheel.agents.version_content import VersionContent
from flywheel.edge.schemas import Body, Schema
from flywheel.trajectories.operations import traffic_versions

router = Router(tags=["agents"])


class ReportedOut(Schema):
    label: str
    """As the runs report it; empty for those that report none."""
    runs: int
    """Stored runs that belong to no version yet."""


class NoteOut(Schema):
    about: str
    runs: int
    """Runs that had it."""
    of: int
    """Runs that were read."""
    words: str


class TrafficProposalOut(Schema):
    """The parts that the newest runs have in common. No version is created from them until you post them."""

    reported: ReportedOut
    others: list[ReportedOut]
    """Other labels that runs report."""
    runs: int
    """Runs that were read."""
    first: datetime
    last: datetime
    content: dict[str, Any]
    """`base_model`, `endpoint`, `system_prompt`, `tools`, `sampling`."""
    notes: list[NoteOut]


class TrafficVersionIn(Body):
    """Creates the proposed version, with the fields given here replacing the proposed ones."""

    label: str | None = Field(
        None, description="Version label of the runs to read, as they report it; that of the newest run if omitted."
    )
    link: bool = Field(
        True, description="Whether runs that report this label and belong to no version are linked to the new one."
    )
    base_model: str | None = None
    """Display name of the model, for example `Qwen/Qwen3-8B`."""
    endpoint: dict[str, Any] | None = None
    """How the version runs, as for `POST /agents/{name}/versions`."""
    system_prompt: str | None = None
    """Empty for none."""
    tools: list[dict[str, Any]] | None = None
    """Tool definitions in OpenAI's format."""
    sampling: dict[str, Any] | None = None
    """Any of `temperature`, `top_p` and `max_tokens`."""
    note: str = ""


class TrafficVersionOut(VersionOut):
    linked: int
    """Stored runs that now belong to the version."""


@router.get("/agents/{name}/versions/from-traffic", response=TrafficProposalOut, auth=Key(Scope.READ))
def propose_version(request: HttpRequest, name: str, label: str | None = None) -> traffic_versions.Proposal:
    """Propose a version from the agent's newest production runs, with the number of runs that support each part. 404 if
    there are no production runs, or none with this `label`."""
    return traffic_versions.proposal(find_agent(keyed(request).project, name), label)


@router.post(
    "/agents/{name}/versions/from-traffic",
    response={200: TrafficVersionOut, 201: TrafficVersionOut},
    auth=Key(Scope.BUILD),
)
def create_version_from_traffic(request: HttpRequest, name: str, body: TrafficVersionIn) -> Status[Any]:
    """Create the proposed version: 201 if it is new, 200 with the existing one if it has exactly this content."""
    asked = keyed(request)
    agent = find_agent(asked.project, name)
    found = traffic_versions.proposal(agent, body.label)
    given = body.dict(exclude={"label", "link", "note"}, exclude_none=True)
    made, is_new, linked = traffic_versions.make(
        agent=agent,
        actor=asked.actor,
        label=found.reported.label,
        is_linked=body.link,
        note=body.note,
        content=VersionContent(**{**found.content, **given}),
    )
    made.linked = linked  # type: ignore[attr-defined]
    return Status(201 if is_new else 200, made)
