"""Merge adapters into their bases: the worker's side of `flywheel.agents.weights.merged_weights`."""

from flywheel.agents import artifacts
from flywheel.agents.models import MergedWeights
from flywheel.core import digests
from flywheel.edge.jobs import Lease
from workers.jobs.training import side_processes


def merge(lease: Lease) -> None:
    """Make the model that the lease holds."""
    job = MergedWeights.objects.select_related("weights", "adapter").get(pk=lease.job.pk)
    with side_processes.directory(lease, "merge") as place:
        place.mkdir(parents=True)
        spec = {"base": str(artifacts.local(job.weights)), "adapter": str(artifacts.local(job.adapter))}
        (place / "spec.json").write_bytes(digests.canonical({**spec, "dtype": job.dtype}))
        found = side_processes.result(lease, "workers.trainers.weights.whole_model", place)
        artifact = artifacts.store(place / "final", "model")
        lease.update(artifact=artifact, lost=found["lost"])
