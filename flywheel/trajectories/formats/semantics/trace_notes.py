"""Notes that an export makes on a trajectory from outside: a score, a thumb, a comment."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flywheel.core.traces import Outcome
from flywheel.trajectories.formats.messages.message_shapes import as_text
from flywheel.trajectories.formats.messages.message_turns import of_score
from flywheel.trajectories.formats.semantics.judgments import MAX_COMMENT, MAX_KEY, MAX_VALUE, OUTCOME, outcome_of
from flywheel.trajectories.formats.values.hostile_json import text

ENDS = {"success", "correct", "correctness", "passed", "resolved", "task_success", OUTCOME}
"""Scores whose value says whether the trajectory succeeded."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a file that is no trajectory but speaks of one, which may be in another file."""

    key: str
    value: Any
    """As the source writes it; `said` reads it."""
    trace_id: str = ""
    """The trajectory's, as it is stored; empty where the source names only a `target`."""
    span_id: str = ""
    """The step's; empty when it is about the whole."""
    target: str = ""
    """Id of a step or of a whole trajectory, as the source writes it; which one only the store knows."""
    score: float | None = None
    """The number, where the value is a word."""
    comment: str = ""
    source: str = "code"
    """As in `Judgment`."""
    by: str = ""
    at: datetime | None = None
    identity: str = ""
    """The source's own id of the note."""

    @property
    def as_feedback(self) -> tuple[Any, float | None, str]:
        """Value, score and comment, as feedback has them: long words and structures are a comment."""
        value, comment = self.value, text(self.comment)
        if not isinstance(value, bool | int | float | None):
            words = as_text(value)
            is_short = isinstance(value, str) and 0 < len(words.strip()) <= MAX_VALUE
            value, comment = (words, comment) if is_short else (None, "\n".join(filter(None, (words, comment))))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value, float(value) if is_number else self.score, comment[:MAX_COMMENT]

    @property
    def name(self) -> str:
        return text(self.key)[:MAX_KEY]

    @property
    def outcome(self) -> Outcome | None:
        """The trajectory's outcome, where only the source's name for it or its way of writing the value says so."""
        if self.key not in ENDS or (self.key == OUTCOME and outcome_of(self.value)):
            return None
        return of_score(self.value)
