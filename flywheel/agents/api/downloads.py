"""Weights of a version as downloads, for programs: as they are, and merged."""

from typing import Literal

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from ninja import Field, Router, Status

from flywheel.accounts.access import Key, keyed
from flywheel.accounts.models import Scope
from flywheel.agents.api.versions import ArtifactOut
from flywheel.agents.models import Version
from flywheel.agents.references import find_agent
from flywheel.agents.weights import artifact_tar, merged_weights
from flywheel.agents.weights.merged_weights import Part
from flywheel.edge.refusals import one
from flywheel.edge.schemas import Body, Schema

router = Router(tags=["agents"])


class MergedWeightsIn(Body):
    dtype: Literal["base", "float32"] = "base"
    """Type of the saved weights: the base's own, or 32 bits, in which no change of the adapter is rounded away."""


class DownloadOut(Schema):
    part: str = Field(alias="name", description="`weights`, `adapter`, `merged` or `merged-float32`.")
    artifact: ArtifactOut | None
    """Its files; null until they are merged."""
    state: str
    """Of the merge: `queued`, `running`, `succeeded`, `failed` or `cancelled`; empty if none was asked for."""
    error: str
    """Why nothing was merged."""
    lost: float | None
    """Share of the weights changed by the adapter that are rounded back to the base's when saved; null until merged."""

    @staticmethod
    def resolve_state(row: Part) -> str:
        return row.job.state if row.job else ""

    @staticmethod
    def resolve_error(row: Part) -> str:
        return row.job.error if row.job else ""

    @staticmethod
    def resolve_lost(row: Part) -> float | None:
        return row.job.lost if row.job else None


@router.get("/agents/{name}/versions/{int:number}/downloads", response=list[DownloadOut], auth=Key(Scope.READ))
def list_version_downloads(request: HttpRequest, name: str, number: int) -> list[Part]:
    """List what can be downloaded of a version: its weights, its adapter, and both merged. Empty if the version's
    weights are on a server."""
    return merged_weights.parts_of(_version(request, name, number))


@router.post(
    "/agents/{name}/versions/{int:number}/merge",
    response={200: DownloadOut, 201: DownloadOut},
    auth=Key(Scope.BUILD),
)
def merge_version(request: HttpRequest, name: str, number: int, body: MergedWeightsIn) -> Status[Part]:
    """Merge a version's LoRA adapter into its base, in 32 bits: a whole model to download. A worker does it: follow its
    `state` in the list of downloads. An adapter from QLoRA is merged into the unquantized base, as in evals. A repeated
    call returns the same with 200, and tries again if the last try failed."""
    found = _version(request, name, number)
    job, made = merged_weights.merge(found, keyed(request).actor, body.dtype)
    return Status(201 if made else 200, next(part for part in merged_weights.parts_of(found) if part.job == job))


@router.get(
    "/agents/{name}/versions/{int:number}/downloads/{part}.tar",
    auth=Key(Scope.READ),
    openapi_extra={
        "responses": {
            200: {"description": "The archive", "content": {"application/x-tar": {}}},
            206: {"description": "The bytes that `Range` names", "content": {"application/x-tar": {}}},
        }
    },
)
def download_version(request: HttpRequest, name: str, number: int, part: str) -> HttpResponseBase:
    """Download a part of a version as a tar archive with one folder, `model`. `Range` and `If-Range` let a download go
    on where it broke off; the ETag is the artifact's digest. 404 until it is merged."""
    artifact, filename = merged_weights.part_of(_version(request, name, number), part)
    return artifact_tar.download(request, artifact, filename)


def _version(request: HttpRequest, name: str, number: int) -> Version:
    rows = find_agent(keyed(request).project, name).versions
    return one(rows.select_related("agent__project", "weights", "adapter"), number=number)
