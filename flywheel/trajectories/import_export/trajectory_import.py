"""Files of trajectories into the store: any kind and format that we read, the good parts kept and the bad ones told."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Protocol

from flywheel.accounts.models import ApiKey, Project
from flywheel.edge.refusals import Refused
from flywheel.trajectories.annotations.feedback import Told, tell
from flywheel.trajectories.formats.files.file_formats import FORMATS, Parsed, parse_file
from flywheel.trajectories.formats.files.file_limits import Bounds, TooMuch
from flywheel.trajectories.formats.observability import tensorzero
from flywheel.trajectories.formats.semantics.trace_notes import Note
from flywheel.trajectories.ingest.admission import Door
from flywheel.trajectories.models import Batch, Source, Step
from flywheel.trajectories.store.batch_ledger import Origin, Problem
from flywheel.trajectories.store.merge import Part, patiently, store

STEPS_AT_ONCE = 20_000
"""Steps of one transaction and ledger row: a file of any size is read without holding it."""
BYTES_AT_ONCE = 32 * 1024 * 1024
"""Of a transaction too, roughly; steps may be large."""
NOTES_AT_ONCE = 2_000
"""Scores and comments of a transaction."""
MAX_BYTES = 512 * 1024 * 1024
"""Of a file that comes by page or API; `manage.py import_trajectories` takes any size."""
VALUES_WAITED_FOR = 50_000
"""Lines, rows or samples of a file that is imported while its sender waits."""
SECONDS_WAITED_FOR = 30.0
door = Door(at_work=2, waiting=2)
"""For imports whose sender waits: however many files come at once, most threads of a process stay free."""
PROBLEMS_TOLD = 1000
CHUNK = 1024 * 1024


class TooLarge(Refused):
    """The file is larger than may be sent."""

    status = 413

    def __init__(self, limit: int, command: str = "import_trajectories") -> None:
        other = f", or use manage.py {command}" if command else ""
        super().__init__(f"the file is larger than {limit // 1024**2} MiB; send it in parts{other}")


@dataclass(slots=True)
class Report:
    """The result of reading a file. Steps add up: received = inserted + updated + duplicate + rejected."""

    batches: list[Batch] = field(default_factory=list)
    trace_ids: set[str] = field(default_factory=set)
    formats: dict[str, int] = field(default_factory=dict)
    """Trajectories by format."""
    problems: list[Problem] = field(default_factory=list)
    """What was left out, at most 1,000 of them."""
    left_out: int = 0
    notes: int = 0
    """Scores and comments that were kept, also those whose trajectory is not here yet."""

    @property
    def trajectories(self) -> int:
        return len(self.trace_ids)

    @property
    def kept(self) -> str:
        """In words, for a file that was not read to its end."""
        count = self.trajectories
        return f"{count:,} trajectories before that are kept" if count else "nothing of it is kept"

    @property
    def steps(self) -> dict[str, int]:
        """The ledger's columns, over all batches."""
        columns = ("received", "inserted", "updated", "duplicate", "rejected")
        return {column: sum(getattr(batch, column) for batch in self.batches) for column in columns}

    @property
    def detected(self) -> str:
        """In words: `280 ATIF, 2 OpenAI chat`."""
        return ", ".join(f"{count} {label_of(name)}" for name, count in self.formats.items())


Keep = Callable[[Callable[[], Batch], int], Batch]
"""Carries out one transaction of an import; after it, so many parts of the file are in."""


def bounds_of_waiting() -> Bounds:
    """Return the limits of a file whose sender waits, from now on."""
    return Bounds(VALUES_WAITED_FOR, SECONDS_WAITED_FOR)


def label_of(name: str) -> str:
    return FORMATS[name].label if name in FORMATS else "rows of a table" if name == "table" else name


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


@contextmanager
def kept_aside(
    source: Readable, *, is_limited: bool = True, most: int = 0, command: str = "import_trajectories"
) -> Iterator[BinaryIO]:
    """Copy a source that is read only once to a seekable file. Raises TooLarge, which names the command that takes more
    than `most` bytes, or MAX_BYTES, if there is one."""
    limit = most or MAX_BYTES if is_limited else None
    with tempfile.SpooledTemporaryFile(max_size=4 * CHUNK) as file:
        size = 0
        while chunk := source.read(CHUNK):
            size += len(chunk)
            if limit is not None and size > limit:
                raise TooLarge(limit, command)
            file.write(chunk)
        file.seek(0)
        yield file  # type: ignore[misc]


def import_file(
    project: Project,
    source: BinaryIO,
    *,
    format: str = "auto",
    mapping: Any = None,
    key: ApiKey | None = None,
    after: int = 0,
    keep: Keep = lambda work, _: work(),
    bounds: Bounds | None = None,
) -> Report:
    """Store what the file holds. Raises FormatError, before anything is stored, for a format or a mapping that cannot
    be and for a file that cannot be read at all; and TooMuch when what came before is stored.

    An import that was broken off goes on `after` the parts that are in: they are read again, for the report, and not
    stored again; the report's batches are those of this call.
    """
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
    source.seek(0)
    run = _Run(project, format, digest.hexdigest(), key, after, keep)
    too_much: TooMuch | None = None
    try:
        for parsed in parse_file(source, format, mapping, bounds):
            run.add(parsed)
    except TooMuch as error:
        too_much = error
    run.store()
    run.tell_notes()
    if too_much is not None:
        raise TooMuch(f"{too_much}; {run.report.kept}")
    return run.report


class _Run:
    """One file on its way in: parts and problems wait until they make a transaction."""

    def __init__(self, project: Project, format: str, sha256: str, key: ApiKey | None, after: int, keep: Keep) -> None:
        self.project, self.format, self.sha256, self.key = project, format, sha256, key
        self.after, self.keep = after, keep
        self.report = Report()
        self.notes: list[tuple[str, Note]] = []
        """With the format of each."""
        self.count = 0
        """Parts of the file that were read."""
        self._clear()

    def _clear(self) -> None:
        self.parts: list[Part] = []
        self.problems: list[Problem] = []
        self.formats: set[str] = set()
        self.waiting = 0
        self.weight = 0

    @property
    def is_in(self) -> bool:
        """Whether an earlier call has stored what is being read."""
        return self.count <= self.after

    def add(self, parsed: Parsed) -> None:
        self.count += 1
        report = self.report
        if parsed.note is not None:
            self.notes.append((parsed.format, parsed.note))
            return
        if parsed.trace is None:
            self._leave_out(Problem(parsed.at, parsed.error, parsed.content))
        else:
            report.formats[parsed.format] = report.formats.get(parsed.format, 0) + 1
            report.trace_ids.add(parsed.trace.trace_id)
            if not self.is_in:
                self.parts += parsed.spans or [parsed.trace]
                if parsed.late:
                    self.parts.append(parsed.late)
                self.formats.add(parsed.format)
                self.waiting += len(parsed.trace.steps)
        self.weight += 0 if self.is_in else parsed.weight
        if self.waiting >= STEPS_AT_ONCE or self.weight >= BYTES_AT_ONCE:
            self.store()

    def _leave_out(self, problem: Problem) -> None:
        self.report.left_out += 1
        if len(self.report.problems) < PROBLEMS_TOLD:
            self.report.problems.append(problem)
        if not self.is_in:
            self.problems.append(problem)
            self.waiting += 1

    def store(self) -> None:
        if self.parts or self.problems:
            self.report.batches.append(self.keep(self._stored, self.count))
            self._clear()

    def _stored(self) -> Batch:
        return store(
            self.project,
            self.parts,
            source=Source.IMPORT,
            format=("+".join(sorted(self.formats)) or self.format)[:32],
            origin=Origin(key=self.key, sha256=self.sha256),
            problems=self.problems,
        )

    def tell_notes(self) -> None:
        """Keep what scores and comments say, now that the trajectories of this file are stored."""
        for start in range(0, len(self.notes), NOTES_AT_ONCE):
            self.count += 1  # all of these are one part
            some = self.notes[start : start + NOTES_AT_ONCE]
            targets = _targets(self.project, [note.target for _, note in some if note.target])
            told: list[Told] = []
            for format, note in some:
                place = targets.get(note.target) if note.target else (note.trace_id, note.span_id)
                if place is None:
                    told_at = f"{note.key} of {note.target}"[:64]
                    self._leave_out(Problem(told_at, "its trajectory is not here; import that first"))
                    continue
                self.formats.add(format)
                told.append(Told(*place, note))
            self.report.notes += len(told)
            if not self.is_in:
                self.report.batches.append(self.keep(partial(self._stored_with, told), self.count))
            self._clear()

    def _stored_with(self, told: list[Told]) -> Batch:
        """The row in the ledger counts steps, so it counts none; it says that this came, and what was left out."""

        def both() -> Batch:
            tell(self.project, told)
            return self._stored()

        return patiently(both)


def _targets(project: Project, targets: list[str]) -> dict[str, tuple[str, str]]:
    """Trajectory and step of what a source names by one id: of an inference, or of a whole episode."""
    steps = Step.objects.filter(trajectory__project=project, span_id__in=targets)
    found = {span: (trace, span) for span, trace in steps.values_list("span_id", "trajectory__trace_id")}
    ids = {tensorzero.trace_of(target): target for target in targets}
    known = project.trajectories.filter(trace_id__in=ids).values_list("trace_id", flat=True)
    return found | {ids[own]: (own, "") for own in known}
