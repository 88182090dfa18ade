"""Sessions with all of a ramp's signals at once, and the judgement of them by the judge's own functions.

A trajectory with an unsafe action, an invalid call or a server's error fails four times in five. Of its other failures
two in three are of a category that the candidate is to have fixed. A session that has failed is more often slow and
costly. The candidate does as the live version does, so whatever is found is an error.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flywheel.core.evidence.ramp.ramp_judge import Judgement, harms
from flywheel.core.evidence.ramp.ramp_plan import Plan, with_buckets
from flywheel.core.evidence.statistics.sequential.arm_bets import Array
from tests.simulated_traffic import LONGEST, Traffic, naively

PLAN: Final = with_buckets(Plan(limits={"slow": 10.0, "dear": 1.0}), ["wrong_tool", "broken_schema"])
"""The default one, which spends all of its chance of error once limits and two categories are judged too."""
UNSAFE, ERRORS, INVALID = 0.005, 0.01, 0.25
"""Shares of the trajectories; that of invalid calls is of those that fail."""
FAILS_THEN, WRONG_TOOL = 0.8, 2 / 3
SLOW = (0.04, 0.12)
"""Of the sessions without and with a failure; the same for costly ones."""
WAIT = 1000
"""Other sessions until a result that nobody reports counts as missing."""


def sessions(of: Traffic, seed: int, count: int = LONGEST) -> tuple[Array, Array, dict[str, Array]]:
    """Return arm, share and by signal the part that went wrong, NaN where that is not known, in the order in which they
    become final."""
    rng = np.random.default_rng([seed, 114])
    arm, share = of.arms(rng, count)
    rate = np.clip(of.rate + of.drift * np.sin(12 * np.arange(count) / count), 0, 1)
    parts = _parts(of, rng, rate)
    failed = parts["failed"] > 0
    at = np.arange(count)
    known_at = at + of.late * np.where(failed, rng.exponential(1, count), 0)
    known_at[failed & (rng.random(count) < of.missing)] = np.inf
    # What shows an error or an unsafe action is final without an outcome.
    final_at = np.where((parts["unsafe"] > 0) | (parts["errors"] > 0), at, np.minimum(known_at, at + WAIT))
    parts["failed"] = np.where(known_at <= final_at, parts["failed"], np.nan)
    order = np.argsort(final_at, kind="stable")
    return arm[order], share[order], {key: part[order] for key, part in parts.items()}


def taken_back(of: Traffic, seed: int) -> tuple[bool, bool]:
    """Is a version that does as the live one taken back by any signal? Naive: by any signal's interval."""
    arm, share, parts = sessions(of, seed)
    wealth, _ = Judgement.begin(PLAN).follow_columns(arm, share, parts)
    alphas = np.array([PLAN.alphas[key] for key in PLAN.signals])
    reached = (np.stack([wealth[key] for key in PLAN.signals]) * alphas[:, None] >= 1).any(axis=0)
    # The judge asks after each session; before a bound is reached the answer is no.
    found = any(harms(PLAN, {key: path[row] for key, path in wealth.items()}) for row in np.flatnonzero(reached))
    known = {key: ~np.isnan(part) for key, part in parts.items()}
    return found, any(naively(arm[known[key]], parts[key][known[key]]) for key in PLAN.signals)


def _parts(of: Traffic, rng: np.random.Generator, rate: Array) -> dict[str, Array]:
    """By signal the part of each session that went wrong, where so many of its trajectories fail on average."""
    tries = rng.integers(1, of.trajectories + 1, rate.size)
    of_session = np.repeat(np.arange(rate.size), tries)

    def drawn(chance: Array) -> NDArray[np.bool_]:
        """One for each trajectory that it happens to; alike within a session of several."""
        if of.trajectories > 1:
            chance = rng.beta(np.maximum(chance, 1e-6) * 1.5, np.maximum(1 - chance, 1e-6) * 1.5)
        return rng.random(of_session.size) < chance[of_session]

    unsafe, errors = drawn(np.full(rate.size, UNSAFE)), drawn(np.full(rate.size, ERRORS))
    invalid = drawn(INVALID * rate)
    wrong = 1 - (1 - UNSAFE) * (1 - ERRORS) * (1 - INVALID * rate)
    of_rest = np.clip((rate - FAILS_THEN * wrong) / (1 - wrong), 0, 1)
    is_wrong = unsafe | errors | invalid
    failed = np.where(is_wrong, rng.random(of_session.size) < FAILS_THEN, drawn(of_rest))
    found = {
        "failed": failed,
        "unsafe": unsafe,
        "errors": errors,
        "invalid": invalid,
        "bucket:wrong_tool": failed & ~is_wrong & (rng.random(of_session.size) < WRONG_TOOL),
        "bucket:broken_schema": invalid & failed,
    }
    parts = {key: np.bincount(of_session, shown) / tries for key, shown in found.items()}
    for key in ("slow", "dear"):
        parts[key] = (rng.random(rate.size) < np.where(parts["failed"] > 0, SLOW[1], SLOW[0])).astype(float)
    return parts
