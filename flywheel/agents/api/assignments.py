"""Which version is to answer a session, for programs that call their model themselves."""

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import Field

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent, SplitUnit, Version
from flywheel.agents.references import find_agent
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.assignment import Arm, Unit, arm_of
from flywheel.agents.splits.assignment_tokens import assignment_token
from flywheel.agents.splits.met_units import kept, met_units
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.edge.answers import Ref
from flywheel.edge.refusals import Missing, Refused
from flywheel.edge.schemas import Schema

router = Router(tags=["agents"])

LONGEST = 200


class AssignmentQuery(Schema):
    session: str = Field(
        description=f"Id of the session as its traces say it: at most {LONGEST} printable characters, not blank."
    )


class AssignedModelOut(Schema):
    base_url: str
    """Up to where `/chat/completions` begins."""
    model: str
    """The model's name there."""


class AssignmentOut(Schema):
    version: Ref
    """`agent@3`, which is to answer all calls of the session."""
    digest: str
    """SHA-256 of the version's content."""
    arm: Arm | None
    """`live` or `candidate`; null while no ramp sends sessions to a candidate."""
    share: float | None
    """Share of the sessions that the candidate is given now, from 0 to 1."""
    endpoint: AssignedModelOut | None
    """Where the version says that its model answers; null if it has stored weights or names no address."""
    token: str | None
    """Send it as the attribute `flywheel.assignment` of the session's resource or spans. Null without a ramp."""


@router.get("/agents/{name}/assign", response=AssignmentOut, auth=Key(Scope.GATEWAY))
def assign_session(request: HttpRequest, name: str, query: Query[AssignmentQuery]) -> dict[str, Any]:
    """Return the version that is to answer a session, if your program calls its model itself. Ask before each call, or
    once for each session: a session keeps its version during a ramp, except if the ramp takes its candidate back. 404
    if no version is live."""
    agent = find_agent(keyed(request).project, name)
    if agent.live is None:
        raise Missing(f"{agent} has no live version; promote one under Promotions")
    return _assignment(agent, Unit(SplitUnit.Kind.SESSION.value, _session(query.session)), agent.live)


def _assignment(agent: Agent, unit: Unit, live: Version) -> dict[str, Any]:
    split = open_splits.find(agent)
    is_candidate = None
    if split is not None:
        is_candidate = met_units.recall(split, unit)
        if is_candidate is None:
            is_candidate = met_units.meet(split, unit, is_assigned=True)
    if split is None or is_candidate is None:
        back = open_splits.taken_back(agent)
        live = back.live if back else live
        return {"version": live, "digest": live.digest, "endpoint": _endpoint(live), **NO_ARM}
    row, arm = split.row, arm_of(is_candidate)
    version = row.candidate if is_candidate else row.live
    return {
        "version": version,
        "digest": version.digest,
        "arm": arm,
        "share": row.share / WHOLE,
        "endpoint": _endpoint(version),
        "token": assignment_token(row, kept(split, unit), arm),
    }


NO_ARM = {"arm": None, "share": None, "token": None}


def _session(given: str) -> str:
    if not given.strip() or given != given.strip() or len(given) > LONGEST or not given.isprintable():
        raise Refused(
            f"is the id as the session's traces say it: 1 to {LONGEST} printable characters without spaces around it, "
            f"not {given[:40]!r}" + (f" and so on, {len(given):,} characters" if len(given) > LONGEST else ""),
            field="session",
        )
    return given


def _endpoint(version: Version) -> dict[str, str] | None:
    said = version.endpoint
    if not said.get("base_url") or not said.get("model"):
        return None
    return {"base_url": said["base_url"], "model": said["model"]}
