"""Uploaded datasets: a file's good rows with a card, nothing of what is measured, each row once.

look(project, file)                 what a dataset of it would be, and what is left out; writes nothing
take(project, name=…, source=…, card=…, actor=…)     keep it as the next version of the name
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.recipes import ALGORITHMS
from flywheel.edge.refusals import Refused, check_choice
from flywheel.environments.versions.environment_versions import check_name
from flywheel.training.datasets import contamination_checks, dataset_builder, uploaded_rows
from flywheel.training.datasets.dataset_builder import Draft
from flywheel.training.datasets.measured_tasks import Measured
from flywheel.training.datasets.uploaded_rows import KEPT, READERS, Problem
from flywheel.training.models import Dataset

CARD = {"description": 2_000, "licence": 200, "source": 500, "language": 100}
"""What a card says, and the most characters of it."""
UNKNOWN = "unknown"
"""A licence that nobody knows; it has to be said."""
MAX_BYTES = 32 * 1024 * 1024
NAMED = 20
"""Lines that are named of those that are left out."""


@dataclass
class Uploaded:
    """The rows of a file, and what is wrong with the others."""

    kind: str
    format: str
    read: int
    """Lines of the file."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Of the lines that are no rows."""
    measured: list[str] = field(default_factory=list)
    """Lines with the beginning of a held-out or sealed task, or something that a user says in it."""
    repeated: int = 0
    """Rows that are there already."""

    @property
    def tokens(self) -> int:
        """About how many the rows hold, prompts included."""
        return dataset_builder.tokens(self.rows)

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """Why good lines were left out: `{"reason", "words", "count", "first"}`, the first ones by place."""
        return reasons_shown({"count": len(self.measured), "first": self.measured[:NAMED]})

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


def look(project: Project, source: BinaryIO, kind: str = "") -> Uploaded:
    """Read a file of a kind, or of what its first good line is. Raises Refused for one that cannot be read."""
    if kind:
        check_choice(kind, READERS, field="kind")
    read = uploaded_rows.read_rows(source, kind)
    found = Uploaded(read.kind, read.format, read.read, problems=read.problems)
    measured = Measured(project)
    seen = set[bytes]()
    for line in read.lines:
        if any(map(measured.has_beginning, line.talks)):
            found.measured.append(line.at)
            continue
        for row in line.rows:
            key = dataset_builder.row_digest(row)
            found.repeated += key in seen
            found.rows += [] if key in seen else [row]
            seen.add(key)
    return found


def take(
    project: Project,
    *,
    name: str,
    source: BinaryIO,
    card: Mapping[str, str],
    actor: Actor,
    kind: str = "",
    file_name: str = "",
) -> tuple[Dataset, Uploaded]:
    """Keep the good rows of a file, or return the dataset of this name that has them already. Raises Refused."""
    check_name(name)
    said, found = check_card(card), look(project, source, kind)
    if not found.rows:
        first = found.problems[0] if found.problems else None
        why = f"{first.at}: {first.field} {first.reason}" if first else "it is empty, or all of it is measured with"
        raise Refused(f"no row of the file can be taken ({why})", field="file")
    origin, recipe = Dataset.Origin.UPLOAD, _recipe(found, file_name)
    kept = dataset_builder.keep(name, Draft(found.kind, None, found.rows, recipe, project, origin, said), actor)
    contamination_checks.shown(kept)  # a longer check is left to the launch
    return kept, found


def _recipe(found: Uploaded, file_name: str) -> dict[str, Any]:
    return {
        "file": file_name[:200],
        "format": found.format,
        "lines": found.read,
        "problem_count": len(found.problems),
        "problems": [asdict(problem) for problem in found.problems[:KEPT]],
        "measured": {"count": len(found.measured), "first": found.measured[:NAMED]},
        "duplicates": found.repeated,
        "tokens": found.tokens,
        "thumbs": dict(Counter(str(row["label"]).lower() for row in found.rows if "label" in row)),
        "native_calls": dataset_builder.native_calls(found.rows),
        **dict.fromkeys(("tasks", "from_failures", "from_rollouts", "synthetic"), 0),
    }
