"""Files of rows, and the datasets that they become.

    with scratch() as rows:
        rows.add(row)                       one after the other; they are read back by iterating
        file = store(rows)                  under the name that its content gives it
        freeze(name, made, rows, file, …)   the dataset: the one that is there, or the next version

Nothing is seen of rows before they are frozen. A scratch file has no name, so that nothing is left of one whose process
was killed.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.db import transaction
from django.db.models import Max

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.evidence.compared_items import item_of_row
from flywheel.core.evidence.contamination import alike
from flywheel.edge.refusals import Refused
from flywheel.environments.models import TaskSet
from flywheel.training.datasets import contamination_checks
from flywheel.training.models import Dataset

ALIKE_KEPT = 20
"""Pairs of near-duplicates that a dataset remembers."""
ALIKE_BYTES = 64 * 1024 * 1024
"""Of rows that are compared with each other."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The rows that a dataset would have."""

    kind: str
    task_set: TaskSet | None
    rows: list[dict[str, Any]]
    """Empty where they are in a file of their own."""
    recipe: dict[str, Any]
    """What they come from: `{"tasks", "from_failures", "from_rollouts", "eval_run"}`, counted in tasks and rows, and
    the `duplicates` that were left out."""
    project: Project
    origin: str = Dataset.Origin.TASK_SET
    card: dict[str, str] = field(default_factory=dict)


class NoRoom(Refused):
    """The disk takes no more; what was sent is still here."""


class Rows:
    """Rows in a file, a line a row, with their number and digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.count = self.size = 0
        self._sha256 = hashlib.sha256()

    def add(self, row: Mapping[str, Any]) -> None:
        line = f"{json.dumps(row, ensure_ascii=False, sort_keys=True)}\n".encode()
        self.file.write(line)
        self._sha256.update(line)
        self.count, self.size = self.count + 1, self.size + len(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.file.seek(0)
        return map(json.loads, self.file)

    @property
    def digest(self) -> str:
        return self._sha256.hexdigest()


@contextmanager
def scratch() -> Iterator[Rows]:
    """A file of rows that goes with the block. Raises NoRoom."""
    try:
        with tempfile.TemporaryFile(dir=settings.HOME) as file:
            yield Rows(file)
    except OSError as error:
        raise NoRoom(f"its rows cannot be stored: {error.strerror or error}; make room", field="dataset") from error


def store(rows: Rows) -> str:
    """Copy the file into the storage unless it is there whole; a crash may have left half of it. Returns its name."""
    digest = rows.digest
    name = f"datasets/{digest[:2]}/{digest}.jsonl"
    if default_storage.exists(name):
        with default_storage.open(name) as stored:
            sha256 = hashlib.sha256()
            for chunk in stored.chunks():
                sha256.update(chunk)
            if sha256.hexdigest() == digest:
                return name
        default_storage.delete(name)
    return default_storage.save(name, File(rows.file))


def near(rows: Rows) -> dict[str, Any] | None:
    """Count the requests of the rows that are nearly another's, and return the pairs that are most alike; None for more
    rows than are compared."""
    if rows.count > contamination_checks.AT_ONCE or rows.size > ALIKE_BYTES:
        return None
    pairs = alike([item_of_row(row) for row in rows])
    return {"requests": len(pairs), "pairs": [asdict(pair) for pair in pairs[:ALIKE_KEPT]]}


@transaction.atomic
def freeze(name: str, made: Draft, rows: Rows, *, file: str, near: dict[str, Any] | None, actor: Actor) -> Dataset:
    """The dataset of these rows under the name: the one that there is, or its next version."""
    project = Project.objects.select_for_update(no_key=True).get(pk=made.project.pk)
    same = {
        "digest": rows.digest,
        "task_set": made.task_set,
        "kind": made.kind,
        "origin": made.origin,
        "card": made.card,
    }
    existing = project.datasets.filter(name=name, **same).first()
    if existing:
        return existing
    dataset = Dataset.objects.create(
        project=project,
        name=name,
        version=(project.datasets.filter(name=name).aggregate(last=Max("version"))["last"] or 0) + 1,
        **same,
        rows=rows.count,
        recipe=made.recipe | {"alike": near},
        file=file,
        created_by=actor.user,
    )
    about: dict[str, Any] = {"rows": rows.count, "kind": made.kind, "origin": made.origin}
    actor.record(project=project, action="training.dataset", subject=dataset, **about)
    return dataset


def keep(name: str, made: Draft, actor: Actor) -> Dataset:
    """Freeze the rows of a draft. Raises Refused."""
    with scratch() as rows:
        for row in made.rows:
            rows.add(row)
        found, file = near(rows), store(rows)  # before the lock, for both take long
        return freeze(name, made, rows, file=file, near=found, actor=actor)
