"""Files that a person has sent and that are not in yet: tables whose columns are still to be told apart, and what a
worker is to import.

They lie in the project's own directory under `FLYWHEEL_HOME/uploads`, named by a token that nobody can guess, until
they are imported or discarded, and no longer than a day; what a job still has to read (its column `upload` has the
token) stays until it is over.
"""

import json
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings

from flywheel.accounts.models import Project, User
from flywheel.edge.job_queue import kinds
from flywheel.edge.jobs import FINISHED

KEPT_SECONDS = 24 * 60 * 60
CHUNK = 1024 * 1024
_TOKEN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Upload:
    token: str
    name: str
    """As the person's machine calls the file; only ever shown."""
    path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".json").unlink(missing_ok=True)


def keep(project: Project, user: User, name: str, source: BinaryIO) -> Upload:
    """Keep a copy."""
    directory = _directory(project)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_hex(16)
    upload = Upload(token, name, directory / f"{token}.data")
    source.seek(0)
    try:
        with upload.path.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
        upload.path.with_suffix(".json").write_text(json.dumps({"name": name, "by": user.pk}))
    except OSError:
        upload.discard()
        raise
    return upload


def find(project: Project, token: str) -> Upload | None:
    if not _TOKEN.fullmatch(token):
        return None
    path = _directory(project) / f"{token}.data"
    try:
        name = json.loads(path.with_suffix(".json").read_text())["name"]
        return Upload(token, str(name), path) if path.exists() else None
    except (OSError, ValueError, KeyError):
        return None


def sweep() -> int:
    """Delete what is older than a day and wanted by no job. Returns how many files went."""
    gone = 0
    oldest = time.time() - KEPT_SECONDS
    reading: list[Any] = [kind._default_manager for kind in kinds() if hasattr(kind, "upload")]
    wanted = {token for jobs in reading for token in jobs.exclude(state__in=FINISHED).values_list("upload", flat=True)}
    for path in _root().glob("*/*"):
        with suppress(FileNotFoundError):  # another was quicker
            if path.stem not in wanted and path.stat().st_mtime < oldest:
                path.unlink()
                gone += 1
    return gone


def _root() -> Path:
    return Path(settings.HOME) / "uploads"


def _directory(project: Project) -> Path:
    return _root() / str(project.pk)
