"""Files that take longer than a person waits: a worker imports them (`workers/jobs/trajectories/file_imports.py`),
from where they lie in `uploads`."""

import uuid
from typing import Any, BinaryIO

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.trajectories.import_export.uploads import Upload
from flywheel.trajectories.models import Import

SMALL = 1024 * 1024
"""Bytes of a file that is imported while its sender waits."""
EXPANDS = 16
"""What a byte of a compressed file counts for; how far it expands is not known before it is read."""
COMPRESSED = (b"\x1f\x8b", b"PK", b"PAR1")


def is_small(source: BinaryIO, size: int) -> bool:
    """Whether the file can be imported at once."""
    source.seek(0)
    head = source.read(4)
    source.seek(0)
    return size * (EXPANDS if head.startswith(COMPRESSED) else 1) <= SMALL


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
