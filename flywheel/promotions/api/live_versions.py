"""Which version of an agent is live, for programs that ask again and again."""

from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Subquery
from django.db.models.functions import JSONObject
from django.http import HttpRequest, HttpResponse
from ninja import Router

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.models import Agent, MergedWeights
from flywheel.agents.weights import merged_weights
from flywheel.agents.weights.partial_downloads import settled_answer
from flywheel.core.digests import digest
from flywheel.edge.answers import Ref
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Schema
from flywheel.promotions.models import Promotion

router = Router(tags=["promotions"])


class LiveWeightsOut(Schema):
    part: str
    """`weights`, `adapter`, `merged` or `merged-float32`."""
    digest: str
    """The download's ETag."""
    url: str
    """Address of its tar archive on this server."""


class LiveVersionOut(Schema):
    agent: str
    version: Ref | None
    """`agent@3`; null while no version is live."""
    digest: str | None
    """SHA-256 of the version's content, as in `X-Flywheel-Digest`."""
    generation: int
    """Counts promotions and rollbacks."""
    since: datetime | None
    """When it went live."""
    downloads: list[LiveWeightsOut]
    """Its weights and adapter, and both merged once that is done. Empty if its weights are on a server."""


_SINCE = Promotion.objects.filter(agent=OuterRef("pk"), generation=OuterRef("generation")).values("created_at")[:1]
_MERGED = MergedWeights.objects.filter(
    project=OuterRef("project"),
    weights=OuterRef("live__weights"),
    adapter=OuterRef("live__adapter"),
    artifact__isnull=False,
).order_by("dtype")


@router.get(
    "/agents/{name}/live",
    response=LiveVersionOut,
    auth=Key(Scope.READ),
    openapi_extra={"responses": {304: {"description": "Nothing has changed since the answer with this ETag"}}},
)
def get_live_version(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """Return the agent's live version and where its weights can be downloaded. Poll this to fetch new weights: it is
    one query, and answers 304 if `If-None-Match` names the ETag of the last answer. The ETag begins with the
    generation."""
    rows = Agent.objects.filter(project=keyed(request).project)
    rows = rows.select_related("live__agent", "live__weights", "live__adapter").annotate(
        since=Subquery(_SINCE),
        merged=ArraySubquery(_MERGED.values(part=JSONObject(dtype="dtype", digest="artifact__digest"))),
    )
    agent: Any = one(rows, name=name)
    said = {
        "agent": agent.name,
        "version": str(agent.live) if agent.live else None,
        "digest": agent.live.digest if agent.live else None,
        "generation": agent.generation,
        "since": agent.since,
        "downloads": _downloads(agent),
    }
    # A merge that ends changes what can be downloaded, and an agent may be made again under the same name.
    etag = f'"{agent.generation}-{digest(said | {"since": str(agent.since)})[:16]}"'
    if (settled := settled_answer(request, etag)) is not None:
        return settled
    response.headers["ETag"] = etag
    return said


def _downloads(agent: Any) -> list[dict[str, str]]:
    if agent.live is None:
        return []
    kept = {"weights": agent.live.weights, "adapter": agent.live.adapter}
    found = {part: artifact.digest for part, artifact in kept.items() if artifact}
    found |= {merged_weights.PARTS[row["dtype"]]: row["digest"] for row in agent.merged}
    place = f"/api/v1/agents/{agent.name}/versions/{agent.live.number}/downloads"
    return [{"part": part, "digest": known, "url": f"{place}/{part}.tar"} for part, known in found.items()]
