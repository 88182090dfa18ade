"""From what a verifier returned to a verdict: a finite number in the declared range, or none with its cause.

A verifier is a Python file with `verify(trace, target)`. It returns a number, or `{"score", "reason", "parts"}`; a
score of None says that it cannot judge.

One that must run what the model wrote does not do so itself, since whoever shares a process with the judge can be the
judge. It has `program(trace, target)`, which returns the code (or `{"code", "function", "arguments"}`, or None); that
is run in a sandbox of its own, and `verify(trace, target, ran)` gets its `{"status", "value", "reason", "printed"}`.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from workers.sandbox.host import run
from workers.sandbox.outcome import Limits, Outcome, Status

_HAS_PROGRAM = re.compile(r"^def program\s*\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict and what was measured on the way."""

    status: Status
    score: float | None
    reason: str
    parts: Mapping[str, float | None] = field(default_factory=dict)
    printed: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Unscored(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def score(
    code: str,
    trace: Any,
    target: Any = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    limits: Limits | None = None,
    given: Collection[str] | None = None,
) -> Scored:
    """The verdict of a Python verifier on one trace. `limits` are those of each call; `given` as `run` has it."""
    ask = partial(run, limits=limits, given=given)
    arguments = [trace, target]
    if _HAS_PROGRAM.search(code):
        asked = ask(code, function="program", arguments=arguments)
        if asked.status is not Status.OK:
            return _unscored(asked, asked.status, f"program(): {asked.reason}")
        try:
            arguments.append(_ran(asked.value, ask))
        except _Unscored as error:
            return _unscored(asked, error.status, str(error))
    outcome = ask(code, arguments=arguments)
    if outcome.status is not Status.OK:
        return _unscored(outcome, outcome.status, outcome.reason)
    try:
        number, reason, parts = _read(outcome.value, low, high)
    except _Unscored as error:
        return _unscored(outcome, error.status, str(error))
    return Scored(Status.OK, number, reason, parts, outcome.printed, outcome.seconds, outcome.peak_bytes)


def _ran(wanted: Any, ask: Callable[..., Outcome]) -> dict[str, Any] | None:
    """Run the model's program in a sandbox of its own; what it did, for the verifier to look at."""
    if wanted is None:
        return None
    asked = {"code": wanted} if isinstance(wanted, str) else wanted
    known = {"code", "function", "arguments"}
    if not isinstance(asked, dict) or not isinstance(asked.get("code"), str) or asked.keys() - known:
        raise _Unscored(Status.RAISED, "program() must return the code, {'code', 'function', 'arguments'}, or None")
    function, arguments = asked.get("function"), asked.get("arguments", [])
    if not isinstance(function, str | None) or not isinstance(arguments, list):
        raise _Unscored(Status.RAISED, "program(): 'function' is a name, and 'arguments' a list")
    ran = ask(asked["code"], function=function, arguments=arguments)
    if ran.status is Status.REFUSED:
        raise _Unscored(Status.REFUSED, ran.reason)
    return {"status": ran.status.value, "value": ran.value, "reason": ran.reason, "printed": ran.printed}


def _read(value: Any, low: float, high: float) -> tuple[float, str, dict[str, float | None]]:
    told = value if isinstance(value, dict) else {"score": value}
    if unknown := sorted(told.keys() - {"score", "reason", "parts"}):
        raise _Unscored(
            Status.NAN, f"verify() may return 'score', 'reason' and 'parts', and returned {unknown[0]!r} too"
        )
    reason = str(told.get("reason") or "")[:2000]
    if told.get("score") is None:
        raise _Unscored(Status.UNSCORED, reason or "the verifier says that it cannot judge")
    number = _number("the score", told["score"])
    if not low <= number <= high:
        raise _Unscored(Status.RANGE, f"the score is {number:g}, which is not from {low:g} to {high:g}")
    parts = told.get("parts") or {}
    if not isinstance(parts, dict):
        raise _Unscored(Status.NAN, "'parts' must be {name: number}")
    return number, reason, {k: None if v is None else _number(f"part {k!r}", v) for k, v in parts.items()}


def _number(what: str, value: Any) -> float:
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            raise _Unscored(Status.RANGE, f"{what} is too large") from None
        if math.isfinite(number):
            return number
    raise _Unscored(Status.NAN, f"{what} must be a number, and is {str(value)[:80]!r}")


def _unscored(outcome: Outcome, status: Status, reason: str) -> Scored:
    return Scored(status, None, reason, {}, outcome.printed, outcome.seconds, outcome.peak_bytes)
