"""Weights of a version as they can be taken: its base, its adapter, and both as one model, which a worker makes.

The adapter is added to the base in 32 bits (`workers/trainers/weights/whole_model.py`). What comes out is an
artifact like any other, made once for a base, an adapter and a type.
"""

import uuid
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Artifact, MergedWeights, Version
from flywheel.edge.jobs import FINISHED, State
from flywheel.edge.refusals import Missing, Refused, check_choice

NAMESPACE = uuid.UUID("5b8a8a56-7a0f-4f2c-8f36-1f6d1f2f6c1b")
"""Of the idempotency keys, which are made of what is merged."""
PARTS = {MergedWeights.Dtype.BASE: "merged", MergedWeights.Dtype.FLOAT32: "merged-float32"}
"""The name of what is merged, by its type."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something of a version that can be taken as an archive."""

    name: str
    """In its address: `weights`, `adapter`, `merged` or `merged-float32`."""
    label: str
    artifact: Artifact | None
    """None until it is made."""
    dtype: str = ""
    """Of what is merged: a `MergedWeights.Dtype`."""
    job: MergedWeights | None = None

    @property
    def is_being_made(self) -> bool:
        return self.job is not None and self.job.state not in FINISHED


def parts_of(version: Version) -> list[Part]:
    """All that can be taken of a version, or made to be taken; nothing of one whose weights are elsewhere."""
    found = [
        Part(name, label, artifact)
        for name, label, artifact in (("weights", "Weights", version.weights), ("adapter", "Adapter", version.adapter))
        if artifact is not None
    ]
    if not is_mergeable(version):
        return found
    jobs = {job.dtype: job for job in _merges(version)}
    for dtype, name in PARTS.items():
        job = jobs.get(dtype)
        label = f"Weights and adapter merged, {MergedWeights.Dtype(dtype).label}"
        found.append(Part(name, label, job.artifact if job else None, dtype, job))
    return found


def is_mergeable(version: Version) -> bool:
    return version.weights is not None and version.adapter is not None


def part_of(version: Version, name: str) -> tuple[Artifact, str]:
    """The artifact of a part, and its download's file name. Raises Missing."""
    part = next((each for each in parts_of(version) if each.name == name), None)
    if part is None:
        raise Missing(f"{version} has no {name[:40]!r} to download")
    if part.artifact is None:
        raise Missing(f"{part.name} of {version} is not made yet")
    return part.artifact, f"{version.agent.name}-{version.number}-{name}.tar"


def is_of_4_bits(version: Version) -> bool:
    """Whether the version's adapter was trained on a base in 4 bits (QLoRA)."""
    made = Q(produced_by__tuning__mode="qlora") | Q(checkpoint_versions__run__tuning__mode="qlora")
    return version.adapter is not None and Version.objects.filter(made, adapter=version.adapter).exists()


def merge(version: Version, actor: Actor, dtype: str = MergedWeights.Dtype.BASE) -> tuple[MergedWeights, bool]:
    """Have a worker merge the version's adapter into its base, unless that is done, or try again what failed. Returns
    the job and whether it is new. Raises Refused."""
    check_choice(dtype, MergedWeights.Dtype.values, field="dtype")
    if not is_mergeable(version):
        missing = "adapter" if version.adapter is None else "weights here"
        raise Refused(f"{version} has no {missing}, so there is nothing to merge", field="version")
    assert version.weights is not None
    assert version.adapter is not None
    made = _merges(version).filter(dtype=dtype).first()
    if made is not None:
        return (made.resume(actor) if made.state in (State.FAILED, State.CANCELLED) else made), False
    return MergedWeights.submit(
        key=uuid.uuid5(NAMESPACE, f"{version.weights.digest} {version.adapter.digest} {dtype}"),
        actor=actor,
        entry="agents.merge_weights",
        about={"subject": version, "dtype": dtype},
        project=version.agent.project,
        weights=version.weights,
        adapter=version.adapter,
        dtype=dtype,
    )


def _merges(version: Version) -> "QuerySet[MergedWeights]":
    rows = MergedWeights.objects.filter(project=version.agent.project, weights=version.weights, adapter=version.adapter)
    return rows.select_related("artifact")
