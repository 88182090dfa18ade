"""Counts of scored attempts, of which AWR learns who did better: how many there are, and whether they differ at all."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from flywheel.core.traces import Trace

LEAST, MOST = -10.0, 1.0
"""Scores lie in [0, 1], and below it where something was taken off."""


def recorded(trace: Trace) -> list[dict[str, Any]]:
    """Return, of each thing that the assistant says in an attempt, the `token_ids` and `logprobs` with which it was
    sampled, where they were recorded; empty where the steps are not the messages one by one."""
    steps = [step.sampling for step in trace.steps if step.kind == "assistant"]
    said = sum(message.role == "assistant" for message in trace.conversation())
    if len(steps) != said:
        return []
    return [sampled(step) for step in steps]


def sampled(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `token_ids` and `logprobs` of an answer, of what was recorded of its sampling; empty where they are
    not there, or are not one number for each token."""
    tokens, logprobs = recorded.get("token_ids"), recorded.get("logprobs")
    if not (isinstance(tokens, list) and isinstance(logprobs, list) and tokens and len(tokens) == len(logprobs)):
        return {}
    is_whole = all(type(token) is int for token in tokens) and all(
        type(value) in (int, float) and isfinite(value) for value in logprobs
    )
    return {"token_ids": tokens, "logprobs": logprobs} if is_whole else {}


class AttemptScores:
    """Counts rows, and each attempt once however many rows it has."""

    def __init__(self) -> None:
        self._groups: dict[str, list[float]] = {}
        """By group: its attempts, their least and their greatest score."""
        self._seen = set[int]()
        self._rows = self._recorded = 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows that have a score."""
        for row in rows:
            self._rows += "score" in row
            self._recorded += "score" in row and bool(row.get("logprobs"))
            if "score" not in row or (name := hash((row["group"], row["attempt"]))) in self._seen:
                continue
            self._seen.add(name)
            score = row["score"]
            count, least, most = self._groups.get(row["group"], (0, score, score))
            self._groups[row["group"]] = [count + 1, min(least, score), max(most, score)]

    @property
    def recipe(self) -> dict[str, Any]:
        """A dataset's record of them, `{"attempts", "groups", "telling", "least", "most", "answers", "recorded"}`;
        `telling` are the groups in which one is better than another, `recorded` the answers (rows) whose tokens have
        their log-probabilities. Empty without scores."""
        if not self._groups:
            return {}
        counts, least, most = zip(*self._groups.values(), strict=True)
        return {
            "attempts": int(sum(counts)),
            "groups": len(counts),
            "telling": sum(low < high for low, high in zip(least, most, strict=True)),
            "least": min(least),
            "most": max(most),
            "answers": self._rows,
            "recorded": self._recorded,
        }


def scores_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the recipe's part of these rows; empty without scores."""
    found = AttemptScores()
    found.add(rows)
    return found.recipe


def all_alike(recipe: Mapping[str, Any]) -> str:
    """Say why nobody can learn which attempts are better; empty where somebody can, and for rows of other kinds."""
    found = recipe.get("scores")
    if not found or found["least"] < found["most"]:
        return ""
    return (
        f"has {found['attempts']:,} attempts that all score {found['most']:g}, and AWR learns from the difference; add "
        "attempts that did better or worse"
    )
