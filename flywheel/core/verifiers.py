"""Is an attempt right? `verify(trace, target) -> Verdict`, pure, the same code in evals, rewards and regression tests.

A verifier is data: a `kind` and its settings. `build` turns that data into a function; `digest` of the data and of this
module's `REVISION` is stored with every score, so that a score always says what made it.

A verdict's score is a finite number in [0, 1], or None with the reason why nothing could be scored. None is never 0.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel.core import digests
from flywheel.core.traces import Trace

REVISION = 1
"""Raise it when a change to verifier code can change any score."""

PASS = 1.0
"""An attempt succeeds when its score reaches this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    score: float | None
    reason: str
    parts: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def success(self) -> bool | None:
        return None if self.score is None else self.score >= PASS - 1e-9


Verify = Callable[[Trace, Mapping[str, Any]], Verdict]


class VerifierError(ValueError):
    """The verifier's own settings are wrong; the message names the field and what would be right."""


def digest(spec: Mapping[str, Any]) -> str:
    """The identity of a verifier: its settings and the revision of the code that reads them."""
    return digests.digest({"spec": dict(spec), "revision": REVISION})


def unscored(reason: str) -> Verdict:
    return Verdict(score=None, reason=reason)


def guarded(verify: Verify) -> Verify:
    """Wrap a verifier so that what it raises, or a score that is no number in [0, 1], becomes an unscored verdict."""

    def safe(trace: Trace, target: Mapping[str, Any]) -> Verdict:
        try:
            verdict = verify(trace, target)
        except Exception as error:
            return unscored(f"the verifier raised {type(error).__name__}: {error}")
        score = verdict.score
        if score is not None and not (math.isfinite(score) and 0.0 <= score <= 1.0):
            return unscored(f"the verifier returned {score!r}, which is not a number from 0 to 1")
        return verdict

    return safe
