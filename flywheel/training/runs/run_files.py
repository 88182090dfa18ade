"""The files of a run that a person may take: its weights, its kept checkpoints, and what it wrote down.

Weights come from the storage, which names them by their content; everything else from the run directory, where this
machine sees it. Nothing is looked up by a path that a request gives: a file is there if the list has it. The list
leaves out the key of the checkpoints and their pickles (optimizer, random state), which can run code where they are
loaded, and the held-out tasks.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.agents.weights.partial_downloads import attachment, settled_answer
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Missing
from flywheel.environments import ledger
from flywheel.environments.models import Opening
from flywheel.training.models import Point, TrainingRun

OUTPUT = "trainer.log"
EVENTS = "events.jsonl"
RECORDS = {
    "spec.json": "everything it was launched with",
    "result.json": "how it ended",
    EVENTS: "every event and measurement",
    OUTPUT: "the trainer's own output",
    "vllm.log": "the output of the vLLM server that it started",
}
HASHED_MOST = 32_000_000
"""Bytes of a record that are hashed while somebody waits for the list."""
TAIL = 64_000
"""Bytes of the trainer's output that a page shows, and lines of them."""
TAIL_LINES = 300


@dataclass(frozen=True, slots=True)
class RunFile:
    name: str
    """Relative to the run directory, such as `final/model.safetensors`."""
    about: str
    size: int
    """Bytes."""
    sha256: str
    """Empty while the file may still change, and for a record of more than `HASHED_MOST` bytes."""
    place: Path | Artifact
    """The file itself, or the artifact that has it."""

    @property
    def etag(self) -> str:
        if self.sha256 or isinstance(self.place, Artifact):
            return f'"{self.sha256}"'
        status = self.place.stat()
        return f'W/"{status.st_mtime_ns:x}-{status.st_size:x}"'

    def open(self) -> IO[bytes]:
        """Raises OSError, or Refused for what the storage has lost."""
        if isinstance(self.place, Artifact):
            return artifacts.opened(self.place, self.name.rpartition("/")[2])
        # A link that took the file's place after it was listed could lead anywhere.
        return os.fdopen(os.open(self.place, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def files_of(run: TrainingRun) -> list[RunFile]:
    """The weights, then the checkpoints, the newest first, then the records."""
    return [*_weights(run), *_checkpoints(run), *_records(run)]


def checkpoints_of(run: TrainingRun) -> dict[int, Path]:
    """The kept checkpoints by step, the newest first; none where this machine does not see them."""
    if not _is_its_own(run):
        return {}
    found = {at: path for path in run.directory.glob("checkpoints/step-*") if (at := _step(path)) is not None}
    return dict(sorted(found.items(), reverse=True))


def download(request: HttpRequest, run: TrainingRun, name: str, actor: Actor) -> HttpResponseBase:
    """One of the run's files as a stream, or the part that is asked for; 304 where the client has it. Raises Missing.

    Events hold answers to held-out tasks, so whoever takes them has looked at these tasks (`environments.ledger`).
    """
    file = next((each for each in files_of(run) if each.name == name), None)
    if file is None:
        raise Missing(f"{run} has no file {name[:100]!r}")
    try:
        etag = file.etag
        if (settled := settled_answer(request, etag)) is not None:
            return settled
        content = file.open()
    except OSError as error:
        raise Missing(f"{name} of {run} is gone") from error
    if name == EVENTS and run.points.filter(kind=Point.Kind.SAMPLES).exists():
        for task_set in run.task_sets:
            ledger.opened(task_set=task_set, kind=Opening.Kind.EXPORT, subject=run, actor=actor)
    filename = f"{run}-{name.replace('/', '-')}"
    return attachment(request, content, filename=filename, etag=etag, content_type="application/octet-stream")


def output_size(run: TrainingRun) -> int:
    """Bytes that the trainer has written to stdout and stderr, 0 where this machine does not see them."""
    path = _record(run, OUTPUT)
    return path.stat().st_size if path else 0


def output_tail(run: TrainingRun) -> str:
    """The last whole lines of it, as a terminal would show them: a progress bar is one line."""
    path = _record(run, OUTPUT)
    if path is None:
        return ""
    with path.open("rb") as file:
        start = max(0, output_size(run) - TAIL)
        file.seek(start)
        text = file.read(TAIL).decode(errors="replace")
    if start:
        text = re.split(r"[\r\n]", text, maxsplit=1)[-1]
    lines = text.split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines[-TAIL_LINES:]).strip("\n")


def _weights(run: TrainingRun) -> Iterator[RunFile]:
    if artifact := run.trained:
        about = f"{'adapter' if artifact.kind == 'adapter' else 'weights'} of {run.produced or run.reward_model}"
        for name, entry in sorted(artifact.manifest.items()):
            yield RunFile(
                f"final/{name}",
                about,
                entry["size"],
                entry["sha256"],
                artifact,
            )


def _checkpoints(run: TrainingRun) -> Iterator[RunFile]:
    for step, path in checkpoints_of(run).items():
        for name, entry in sorted(_manifest(path).items()):
            file = path / name
            if file.suffix in artifacts.ALLOWED and _is_inside(file, path):
                about = f"checkpoint of step {step:,}"
                yield RunFile(f"checkpoints/{path.name}/{name}", about, entry["size"], entry["sha256"], file)


def _step(path: Path) -> int | None:
    return number(path.name.removeprefix("step-"))


def _manifest(path: Path) -> dict[str, Any]:
    try:
        files: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())["files"]
    except (OSError, ValueError, KeyError):  # its trainer removes old ones at any time
        return {}
    return files


def _is_inside(file: Path, directory: Path) -> bool:
    """Whether it is a file of the directory: no link, and nothing that a name like `../x` leads to."""
    if not file.is_relative_to(directory) or not file.is_file():
        return False
    return file.resolve() == directory.resolve() / file.relative_to(directory)


def _records(run: TrainingRun) -> Iterator[RunFile]:
    for name, about in RECORDS.items():
        if (path := _record(run, name)) is None:
            continue
        size = path.stat().st_size
        is_hashed = run.is_finished and size <= HASHED_MOST
        yield RunFile(name, about, size, _sha256(path) if is_hashed else "", path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record(run: TrainingRun, name: str) -> Path | None:
    path = run.directory / name
    return path if _is_its_own(run) and _is_inside(path, run.directory) else None


def _is_its_own(run: TrainingRun) -> bool:
    """Whether the directory of its name is this run's: a database that began anew may find one of before."""
    try:
        spec = json.loads((run.directory / "spec.json").read_bytes())
        found = [spec[name] for name in ("algorithm", "seed", "settings", "tuning")]
        rows = spec["data"]["train"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return [*found, rows] == [run.algorithm, run.seed, run.settings, run.tuning, run.dataset.digest]
