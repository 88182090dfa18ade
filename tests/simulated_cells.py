"""A line of a table of simulations."""

from collections.abc import Callable
from dataclasses import dataclass

Once = Callable[[int], tuple[bool, bool]]
"""One run by its seed: what happens here, and what happens by the naive practice."""
AtOnce = Callable[[int], tuple[float, float]]
"""So many runs: a figure in percent here, and by the naive practice."""


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    once: Once
    wanted: str
    low: float
    high: float
    """Bounds of the share, in percent, within which it holds."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A line whose runs are played together, since one alone takes as long as a thousand."""

    name: str
    at_once: AtOnce
    wanted: str
    low: float
    high: float
