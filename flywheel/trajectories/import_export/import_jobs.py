"""Files that take longer than a person waits: a worker imports them (`workers/jobs/file_imports.py`), from
where they lie in `uploads`."""

import uuid
from dataclasses import dataclass
from typing import Any, BinaryIO

from django.db import transaction
from django.db.models import Sum

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.edge.jobs import State
from flywheel.trajectories.import_export import uploads
from flywheel.trajectories.import_export.trajectory_import import label_of
from flywheel.trajectories.import_export.uploads import Upload
from flywheel.trajectories.models import Batch, Import

SMALL = 1024 * 1024
"""Bytes of a file that is imported while its sender waits."""
EXPANDS = 16
"""What a byte of a compressed file counts for; how far it expands is not known before it is read."""
COMPRESSED = (b"\x1f\x8b", b"PK", b"PAR1")
COLUMNS = ("trajectories", "received", "inserted", "updated", "duplicate", "rejected")
BATCHES_SHOWN = 20


def is_small(source: BinaryIO, size: int) -> bool:
    """Whether the file can be imported at once."""
    source.seek(0)
    head = source.read(4)
    source.seek(0)
    return size * (EXPANDS if head.startswith(COMPRESSED) else 1) <= SMALL


# What a person does


@transaction.atomic
def submit(
    *, project: Project, actor: Actor, upload: Upload, key: uuid.UUID, format: str = "auto", mapping: Any = None
) -> Import:
    """Let a worker import the file. The same key again is the same import, and the second copy of the file goes."""
    upload.path.touch()
    job, is_new = Import.submit(
        key=key,
        project=project,
        actor=actor,
        name=upload.name[:300],
        upload=upload.token,
        format=format,
        mapping=mapping,
        total=upload.size,
    )
    if is_new:
        subject = f"file {upload.name}"
        actor.record(project=project, action="trajectories.import", subject=subject, job=job.pk, format=format)
    elif job.upload != upload.token:
        upload.discard()
    return job


# What the page shows


@dataclass(slots=True)
class Seen:
    """An import as its page tells it."""

    job: Import
    batches: list[Batch]
    """Its last rows in the ledger."""
    sums: dict[str, int]
    read_as: list[tuple[str, int]]
    can_resume: bool
    more: int
    """Rows that are not shown."""


def seen(job: Import) -> Seen:
    rows = Batch.objects.filter(project=job.project, pk__in=job.batches).select_related("key")
    sums = rows.aggregate(**{name: Sum(name, default=0) for name in COLUMNS})
    # One trajectory may be in several rows; only the end of the file says how many there are.
    sums["trajectories"] = job.report.get("trajectories", sums["trajectories"])
    return Seen(
        job,
        list(rows.order_by("-id")[:BATCHES_SHOWN]),
        sums,
        [(label_of(name), count) for name, count in job.report.get("formats", {}).items()],
        job.state in (State.FAILED, State.CANCELLED) and uploads.find(job.project, job.upload) is not None,
        max(0, len(job.batches) - BATCHES_SHOWN),
    )
