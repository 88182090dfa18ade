"""Work for programs that pull it: attempts of running evals."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import find_agent
from flywheel.edge.schemas import Body, Schema
from flywheel.evals.attempts import attempt_lifecycle

router = Router(tags=["evals"])


class ClaimIn(Body):
    agent: str
    """Name of the agent that the program runs."""
    code: str = Field(..., description="Commit or image digest that the program runs, as given in its version.")
    limit: int = Field(1, ge=1, le=64)
    """Number of attempts to claim at most, from 1 to 64."""
    lease_s: float = Field(
        attempt_lifecycle.LEASE_S,
        ge=attempt_lifecycle.LEAST_LEASE_S,
        le=86_400,
        description="Seconds without a sign of life (a model call, a tool call, `POST /attempts/{id}/lease`) after "
        "which an attempt is given to another program.",
    )


class ClaimOut(Schema):
    attempt: str
    """Id of the attempt."""
    input: str
    """The user's request."""
    messages: list[dict[str, Any]]
    """The complete start of the conversation, in OpenAI's format."""
    seed: int
    sampling: dict[str, Any]
    time_limit_s: float
    """Seconds that the program has for one turn."""
    model: str
    """Empty if the program chooses the model."""
    base_url: str
    """Address of the gateway, for an OpenAI client."""
    api_key: str
    """Valid only for this attempt, until its time limit."""
    tools_url: str
    """Where to call the tools over HTTP."""
    mcp_url: str
    """The same tools, for an MCP client."""
    result_url: str
    """Where to post the result."""
    traces_url: str
    """Where to send the program's own spans, over OTLP."""
    traceparent: str
    """Trace context of the attempt. Spans below it belong to the attempt."""


class ClaimsOut(Schema):
    items: list[ClaimOut]


@router.post("/attempts/claim", response=ClaimsOut, auth=Key(Scope.BUILD))
def claim_attempts(request: HttpRequest, body: ClaimIn) -> dict[str, Any]:
    """Claim attempts of running evals, for versions whose endpoint has `"way": "pull"` and this code. The list is
    empty if none is waiting."""
    agent = find_agent(keyed(request).project, body.agent)
    claims = attempt_lifecycle.claim_some(agent, body.code, body.limit, body.lease_s)
    base = request.build_absolute_uri("/").rstrip("/")
    return {"items": [made.to_json(base) for made in claims]}
