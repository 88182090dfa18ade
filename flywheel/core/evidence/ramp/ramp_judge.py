"""The judgement of a ramp after some final sessions: harm, doubt, or proof. Pure, and the same after every restart.

Each signal has a wealth of its own (`statistics.sequential.arm_bets`) with its part of the ramp's chance of error; the
candidate is taken back where one reaches its bound. What holds a ramp instead: arms that are not as large as was
promised, and results that are missing more often in one arm, for then no comparison holds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flywheel.core.evidence.ramp.ramp_plan import WHOLE, Plan
from flywheel.core.evidence.statistics.sequential.arm_bets import DIFFERENT, ArmBets, Array
from flywheel.core.evidence.statistics.sequential.arm_difference import not_worse
from flywheel.core.evidence.statistics.sequential.share_check import share_log_wealth

DOUBT: Final = 0.001
"""The chance of each doubt, that a ramp whose coin and results are sound is ever held for it."""
PROOF: Final = 0.05
"""The chance that a ramp finishes by proof though the candidate is worse by the margin or more."""
MISSING: Final = "missing"
UNSURE: Final = 20.0
"""From this wealth of `missing` on, `failed` alone takes nothing back: where results of one arm are missing, those that
are known come from the other, and look like a difference."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session whose result is final."""

    is_candidate: bool
    share: float
    """The chance with which it was put into the candidate's arm."""
    parts: Mapping[str, float | None]
    """By signal the part of it that went wrong, from 0 to 1; None where that is not known."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The wealth of each signal, that of `missing` too, and all that is needed to go on."""

    bets: Mapping[str, ArmBets]

    @classmethod
    def begin(cls, plan: Plan) -> "Judgement":
        return cls({key: ArmBets() for key in plan.signals} | {MISSING: ArmBets(DIFFERENT)})

    @property
    def wealth(self) -> dict[str, float]:
        return {key: bets.wealth for key, bets in self.bets.items()}

    def follow(self, sessions: Sequence[Session]) -> tuple[list[dict[str, float]], "Judgement"]:
        """Return the wealth of each signal after each of these further sessions, and the state after the last.

        Raises ValueError as `arm_bets.sessions` does.
        """
        parts = {
            key: np.array([session.parts.get(key) for session in sessions], dtype=float)  # None becomes NaN
            for key in {"failed", *self.bets} - {MISSING}
        }
        wealth, after = self.follow_columns(
            np.array([session.is_candidate for session in sessions], dtype=float),
            np.array([session.share for session in sessions], dtype=float),
            parts,
        )
        rows = zip(*(wealth[key].tolist() for key in self.bets), strict=True)
        return [dict(zip(self.bets, row, strict=True)) for row in rows], after

    def follow_columns(
        self, arm: Array, share: Array, parts: Mapping[str, Array]
    ) -> tuple[dict[str, Array], "Judgement"]:
        """The same where sessions come as columns of one length: `arm` is 1 for the candidate, and in `parts` NaN is
        not known. Returns the wealth by signal, (sessions,) each, and the state after the last.

        Raises ValueError as `arm_bets.sessions` does.
        """
        paths, after = {}, {}
        for key, bets in self.bets.items():
            part = np.isnan(parts["failed"]).astype(float) if key == MISSING else parts[key]
            is_known = ~np.isnan(part)
            wealth, after[key] = bets.follow(arm[is_known], share[is_known], part[is_known])
            paths[key] = np.concatenate([[bets.wealth], wealth])[np.cumsum(is_known)]
        return paths, Judgement(after)

    def to_json(self) -> dict[str, Any]:
        return {
            key: {
                "differences": list(bets.differences),
                "logs": list(bets.logs),
                "failed": bets.failed,
                "sessions": bets.sessions,
            }
            for key, bets in self.bets.items()
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Judgement":
        return cls(
            {
                key: ArmBets(tuple(kept["differences"]), tuple(kept["logs"]), kept["failed"], kept["sessions"])
                for key, kept in given.items()
            }
        )


def harms(plan: Plan, wealth: Mapping[str, float]) -> list[str]:
    """The signals whose bound is reached, the one that is farthest beyond it first."""
    reached = _reached(plan, wealth)
    if wealth[MISSING] >= UNSURE:
        reached.pop("failed", None)
    return sorted(reached, key=lambda key: -reached[key])


def doubts(
    plan: Plan,
    wealth: Mapping[str, float],
    met: Sequence[tuple[int, int, int]],
    judged: Sequence[tuple[int, int, int]] = (),
) -> dict[str, str]:
    """Why no comparison holds, in words, by what is doubted (`shares`, `judged`, `missing`); empty
    where nothing is.

    `met` has, for each share in parts of `WHOLE`, the sessions that were put into the candidate's arm and into live's,
    final or not; `judged` those of them that were judged.
    """
    found = {}
    if counts := _unlike_planned(met):
        found["shares"] = f"the arms are not as large as planned: {counts} went to the candidate"
    if counts := _unlike_planned(judged):
        found["judged"] = (
            f"sessions are judged more often in one arm than in the other: the candidate has {counts} that were judged"
        )
    is_unsure = wealth[MISSING] >= UNSURE and "failed" in _reached(plan, wealth)
    if is_unsure or wealth[MISSING] >= 1 / DOUBT:
        found[MISSING] = "results are missing more often in one arm than in the other"
    return found


def proof(plan: Plan, sessions: Sequence[Session]) -> float:
    """Return the wealth against "sessions of the candidate fail more often by the margin or more": shown not to be at
    1 / `PROOF`. Where other signals have margins, it is that of the one of which least is shown: all of them have to
    be, so that the chance of error is no larger. `sessions` are all of the ramp in the order in which they became
    final."""
    return min(_proof_of(key, margin, sessions) for key, margin in plan.proved.items())


def _proof_of(signal: str, margin: float, sessions: Sequence[Session]) -> float:
    known = [(session, part) for session in sessions if (part := session.parts.get(signal)) is not None]
    if not known:
        return 1.0
    path = not_worse(
        [float(session.is_candidate) for session, _ in known],
        [session.share for session, _ in known],
        [part for _, part in known],
        margin=margin,
    )
    return float(path.max())


def _unlike_planned(arms: Sequence[tuple[int, int, int]]) -> str:
    """The candidate's part at each share in words, where the shares do not explain it; else empty."""
    stages = [(share / WHOLE, candidate, live) for share, candidate, live in arms if candidate + live]
    if share_log_wealth(stages) < -math.log(DOUBT):
        return ""
    return "; ".join(
        f"{candidate:,} of {candidate + live:,} sessions at {share:.0%}" for share, candidate, live in stages
    )


def _reached(plan: Plan, wealth: Mapping[str, float]) -> dict[str, float]:
    """By how much the signals whose bound is reached are beyond it."""
    times = {key: wealth.get(key, 0.0) * plan.alphas[key] for key in plan.signals}
    return {key: beyond for key, beyond in times.items() if beyond >= 1}
