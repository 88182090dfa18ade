"""Counts of scored attempts, of which AWR learns who did better: how many there are, and whether they differ at all."""

from collections.abc import Iterable, Mapping
from typing import Any

LEAST, MOST = -10.0, 1.0
"""Scores lie in [0, 1], and below it where something was taken off."""


class AttemptScores:
    """Counts rows one after the other, each attempt once however many rows it has."""

    def __init__(self) -> None:
        self._groups: dict[str, list[float]] = {}
        """By group: its attempts, their least and their greatest score."""
        self._seen = set[int]()

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows that have a score."""
        for row in rows:
            if "score" not in row or (name := hash((row["group"], row["attempt"]))) in self._seen:
                continue
            self._seen.add(name)
            score = row["score"]
            count, least, most = self._groups.get(row["group"], (0, score, score))
            self._groups[row["group"]] = [count + 1, min(least, score), max(most, score)]

    @property
    def recipe(self) -> dict[str, Any]:
        """A dataset's record of them, `{"attempts", "groups", "telling", "least", "most"}`; `telling` are the groups in
        which one is better than another. Empty without scores."""
        if not self._groups:
            return {}
        counts, least, most = zip(*self._groups.values(), strict=True)
        return {
            "attempts": int(sum(counts)),
            "groups": len(counts),
            "telling": sum(low < high for low, high in zip(least, most, strict=True)),
            "least": min(least),
            "most": max(most),
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
