"""Requests to the sandbox, and its answers."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

MIB = 2**20


class Status(StrEnum):
    """The way a call ended. Everything but `OK` means: there is no value, and `reason` says why."""

    OK = "ok"
    RAISED = "raised"
    """The code raised, or does not have the function that was asked for."""
    TIMEOUT = "timeout"
    """It used up its processor time or its wall time."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed or returned more than it may."""
    NAN = "nan"
    """What should be a number is none: NaN, infinity, or something else altogether."""
    RANGE = "range"
    """A number outside the declared range."""
    UNSCORED = "unscored"
    """It ran, and says itself that it cannot judge."""
    CRASHED = "crashed"
    """The process died of something else, or sent back what is no answer."""
    REFUSED = "refused"
    """It was not run: a layer is missing, or what was asked for is beyond what may be asked."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call. The upper bounds are those of hosted graders, so that a verifier can move."""

    cpu_seconds: int = 5
    wall_seconds: float = 10.0
    memory_bytes: int = 512 * MIB
    """Address space on top of what the interpreter itself takes."""
    result_bytes: int = 64 * 1024
    printed_bytes: int = 64 * 1024
    input_bytes: int = 64 * MIB
    """Of the code and its arguments together, as JSON."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("cpu_seconds", 1, 120),
            ("wall_seconds", 0.05, 120),
            ("memory_bytes", 16 * MIB, 2048 * MIB),
            ("result_bytes", 64, MIB),
            ("printed_bytes", 0, MIB),
            ("input_bytes", 1, 256 * MIB),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)!r}: it must be from {low} to {high}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call, as the processes around it saw it."""

    status: Status
    value: Any = None
    """What the function returned, when `status` is `ok`: any JSON value without NaN and infinity."""
    reason: str = ""
    """Why there is no value; it may quote the code's own words, so it is hostile text."""
    printed: str = ""
    """What it wrote to stdout and stderr, up to the limit."""
    seconds: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
