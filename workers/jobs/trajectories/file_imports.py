"""Importing files: the worker's side of `trajectories.import_jobs`."""

from collections.abc import Callable
from typing import BinaryIO

from flywheel.edge.jobs import Lease, State
from flywheel.trajectories.import_export import trajectory_import, uploads
from flywheel.trajectories.models import Batch, Import
from flywheel.trajectories.store.merge import patiently


class Gone(Exception):
    """The file is not there any more."""

    kind = "file_gone"


def import_file(lease: Lease) -> None:
    """Import the rest of the file, one transaction after the other, each of which also notes how far it is."""
    job = lease.job
    assert isinstance(job, Import)
    upload = uploads.find(job.project, job.upload)
    if upload is None:
        raise Gone("The file is no longer here; send it again. What is in already is not stored twice.")
    with upload.open() as file:
        report = trajectory_import.import_file(
            job.project,
            file,
            format=job.format,
            mapping=job.mapping,
            after=job.at,
            keep=lambda work, at: _keep(lease, job, file, work, at),
        )
    told = {"trajectories": report.trajectories, "formats": report.formats, "notes": report.notes}
    lease.update(report=told, done=upload.size, total=upload.size)
    lease.finish(State.SUCCEEDED)
    upload.discard()


def _keep(lease: Lease, job: Import, file: BinaryIO, work: Callable[[], Batch], at: int) -> Batch:
    """Store a part and note it, both or neither: whoever takes over begins exactly behind it. The job's row is locked
    only at the end, so that the lease is renewed meanwhile. Raises Cancelled, LeaseLost."""
    lease.go_on()
    known = list(job.batches)

    def both() -> Batch:
        batch = work()
        lease.update(at=at, batches=[*known, batch.pk], done=file.tell())
        return batch

    return patiently(both)
