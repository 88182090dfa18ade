"""Work for programs that pull it: attempts of running evals."""

from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.references import find_agent
from flywheel.edge.schemas import Body
from flywheel.evals.attempts import attempt_lifecycle

router = Router(tags=["evals"])


class ClaimIn(Body):
    agent: str
    code: str = Field(..., description="commit or image digest that the program runs, as given in its version")
    limit: int = Field(1, ge=1, le=64)
    lease_s: float = Field(
        attempt_lifecycle.LEASE_S,
        ge=attempt_lifecycle.LEAST_LEASE_S,
        le=86_400,
        description="seconds without a sign of life (a model call, a tool call, `POST /attempts/{id}/lease`) after "
        "which an attempt is given to another program",
    )


class ClaimOut(Schema):
    attempt: str
    input: str
    """What the user asks."""
    messages: list[dict[str, Any]]
    """The whole beginning, as chat completions take it."""
    seed: int
    sampling: dict[str, Any]
    time_limit_s: float
    model: str
    """Empty where the program chooses."""
    base_url: str
    """Of the gateway, for an OpenAI client."""
    api_key: str
    """Good for this attempt alone, until its time limit."""
    tools_url: str
    mcp_url: str
    """The same tools, for an MCP client."""
    result_url: str
    traces_url: str
    """Where its own spans are sent, over OTLP."""
    traceparent: str
    """The context below which they are this attempt's."""


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
