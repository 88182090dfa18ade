"""Uploaded datasets: a file's good rows with a card, nothing of what is measured, each row once.

look(project, file)             what a dataset of it would be, by its first lines; writes nothing
Uploaded(project, file)         all of it, read line by line by the worker that builds it (`build_jobs`)
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, BinaryIO

from flywheel.accounts.models import Project
from flywheel.core.recipes import ALGORITHMS
from flywheel.edge.refusals import Refused, check_choice
from flywheel.training.datasets import dataset_builder
from flywheel.training.datasets.attempt_scores import AttemptScores
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.datasets.uploaded_rows import READERS, read_rows
from flywheel.training.models import Dataset

CARD = {"description": 2_000, "licence": 200, "source": 500, "language": 100}
"""What a card says, and the most characters of it."""
UNKNOWN = "unknown"
"""A licence that nobody knows; it has to be said."""
MAX_BYTES = 512 * 1024 * 1024
NAMED = 20
"""Lines that are named of those that are left out."""
LOOKED_AT = 1_000
"""Lines of a file that are read while its sender waits."""
SECONDS = 20
"""Reading these may take."""
FIRST = 5
"""Rows that are shown of them."""


class Uploaded:
    """The rows of a file, and what was left out of it so far. Of the rows themselves only digests are held."""

    def __init__(self, project: Project, source: BinaryIO, kind: str = "", **bounds: Any) -> None:
        """`bounds` as of `read_rows`. Raises Refused for a file that cannot be read."""
        if kind:
            check_choice(kind, READERS, field="kind")
        self.source = source
        self.reading = read_rows(source, kind, **bounds)
        self.taken = self.tokens = self.native_calls = 0
        """Tokens: about how many the rows hold, prompts included."""
        self.repeated = 0
        """Rows that are there already."""
        self.measured: dict[str, Any] = {"count": 0, "first": []}
        """Lines with the beginning of a held-out or sealed task, or something that a user says in it."""
        self.thumbs = Counter[str]()
        self.scores = AttemptScores()
        self._all_measured = Measured(project)
        self._seen = set[bytes]()

    @property
    def kind(self) -> str:
        return self.reading.kind

    @property
    def done(self) -> int:
        """Bytes that were read."""
        return self.source.tell()

    def rows(self, tell: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
        """Read the file, and `tell` after each line, whatever it holds."""
        for line in self.reading.lines():
            if line is not None and any(map(self._all_measured.has_beginning, line.talks)):
                self.measured["count"] += 1
                self.measured["first"] += [line.at][: NAMED - len(self.measured["first"])]
            elif line is not None:
                yield from filter(self._is_new, line.rows)
            tell()

    def _is_new(self, row: dict[str, Any]) -> bool:
        key = dataset_builder.row_digest(row)
        if key in self._seen:
            self.repeated += 1
            return False
        self._seen.add(key)
        self.taken += 1
        self.tokens += dataset_builder.tokens([row])
        self.native_calls += dataset_builder.native_calls([row])
        self.thumbs += dataset_builder.thumbs_of([row])
        self.scores.add([row])
        return True

    def refuse_nothing(self) -> None:
        """Raise Refused where no row was taken."""
        if not self.taken:
            first = self.reading.problems[0] if self.reading.problems else None
            why = f"{first.at}: {first.field} {first.reason}" if first else "it is empty, or all of it is measured with"
            raise Refused(f"no row of the file can be taken ({why})", field="file")

    @property
    def report(self) -> dict[str, Any]:
        """Say what became of the lines that were read so far, as JSON."""
        return {
            "kind": self.kind,
            "format": self.reading.format,
            "lines": self.reading.read,
            "rows": self.taken,
            "tokens": self.tokens,
            "problem_count": self.reading.problem_count,
            "problems": [asdict(problem) for problem in self.reading.problems],
            "measured": self.measured,
            "duplicates": self.repeated,
            "thumbs": dict(self.thumbs),
            "scores": self.scores.recipe,
        }

    @property
    def recipe(self) -> dict[str, Any]:
        """Say what a dataset of it remembers of where it comes from."""
        return {
            **{name: value for name, value in self.report.items() if name not in ("kind", "rows")},
            "native_calls": self.native_calls,
            **dict.fromkeys(("tasks", "from_failures", "from_rollouts", "synthetic"), 0),
        }

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """Why good lines were left out: `{"reason", "words", "count", "first"}`, the first ones by place."""
        return reasons_shown(self.measured)

    @property
    def use(self) -> str:
        return use_of(self.kind)


def reasons_shown(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lines that an uploaded dataset left out, as a page shows them."""
    words = "begins as a held-out or sealed task does, or a user says the same in both"
    return [{"reason": "measured", "words": words, **measured}] if measured.get("count") else []


def use_of(kind: str) -> str:
    """Say what rows of a kind are good for here."""
    learns = [algorithm.label for algorithm in ALGORITHMS.values() if algorithm.data == kind]
    if kind == Dataset.Kind.PROMPTS:
        return (
            "Reinforcement needs somebody who can score: no environment can score a bare prompt. "
            "Make tasks of them in an environment to train on them."
        )
    return f"{', '.join(learns)} can learn from it." if learns else "No algorithm here trains on it yet."


def check_card(given: Mapping[str, str]) -> dict[str, str]:
    """The card, its texts stripped. Raises Refused; without a licence too, which may be `unknown`."""
    card = {name: given.get(name, "").replace("\0", "").strip() for name in CARD}
    for name, most in CARD.items():
        if len(card[name]) > most:
            raise Refused(f"{len(card[name])} characters, and {most} is the most", field=name)
    if not card["licence"]:
        raise Refused(f"is missing: name it, such as CC-BY-4.0, or say {UNKNOWN}", field="licence")
    return card


def look(project: Project, source: BinaryIO, kind: str = "") -> tuple[Uploaded, list[dict[str, Any]]]:
    """Read the first `LOOKED_AT` lines; returns what they are, and their first rows. Raises Refused for a file that
    cannot be read."""
    found = Uploaded(project, source, kind, most=LOOKED_AT, seconds=SECONDS)
    rows = found.rows()
    first = list(islice(rows, FIRST))
    for _ in rows:
        pass
    return found, first
