"""Ramps by simulation, as lines of `python -m tests.simulate --only ramp`: how often a good version is taken back, how
soon a bad one is, how often one at the margin is let through, how long a watch runs without a reason.

Beside each stands the naive practice: a one-sided 95% interval of the difference of two shares, looked at every 50
sessions. A session has one trajectory unless more is said. Whatever is looked at is looked at after every session, up
to 4,000 of them; so `within 1,200` means that it was found after 1,200 sessions of both arms together, or earlier.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from flywheel.core.evidence.statistics.sequential.arm_bets import ArmBets, Array
from flywheel.core.evidence.statistics.sequential.arm_difference import difference, not_worse
from flywheel.core.evidence.statistics.sequential.claim_watch import ClaimWatch, bound
from flywheel.core.evidence.statistics.sequential.paired_difference import more_wealth
from flywheel.core.evidence.statistics.sequential.share_check import share_log_wealth
from tests.simulated_cells import Cell

ALPHA, MARGIN, LONGEST, LOOKS = 0.05, 0.05, 4000, 50
SPLIT = {"failed": 0.4, "unsafe": 0.2, "invalid": 0.1, "error": 0.1, "slow": 0.1, "costly": 0.1}
"""Of alpha."""
STAGES = (0.05, 0.1, 0.25, 0.5)
SHADOW_BOUND = 60.0
"""Of the wealth of each of three faults, which hold a ramp in at most 5% together."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A design of sessions, by what differs from 4,000 independent ones whose live version fails at `rate`."""

    rate: float = 0.3
    harm: float = 0.0
    """How much more often the candidate fails."""
    share: float = 0.5
    """Of the candidate; 0 for the four stages, a quarter of the sessions each."""
    drift: float = 0.0
    """How far the rate of both goes up and down."""
    trajectories: int = 1
    """Of a session, at most, and then as alike as an intra-cluster correlation of 0.4 makes them."""
    missing: float = 0.0
    """Share of failed sessions of whose result nothing is ever known, in both arms."""
    late: float = 0.0
    """After how many other sessions a failure becomes known, on average."""


def sessions(of: Traffic, seed: int, count: int = LONGEST) -> tuple[Array, Array, Array]:
    """Arms, shares and parts that failed, in the order in which they became final."""
    rng = np.random.default_rng([seed, 110])
    at = np.arange(count) / count
    share = np.full(count, of.share) if of.share else np.asarray(STAGES)[(4 * at).astype(int)]
    arm = (rng.random(count) < share).astype(float)
    rate = np.clip(of.rate + of.drift * np.sin(12 * at) + of.harm * arm, 0, 1)
    if of.trajectories > 1:
        rate = rng.beta(np.maximum(rate, 1e-6) * 1.5, np.maximum(1 - rate, 1e-6) * 1.5)
    tries = rng.integers(1, of.trajectories + 1, count)
    failed = rng.binomial(tries, rate) / tries
    final = np.argsort(np.arange(count) + of.late * np.where(failed > 0, rng.exponential(1, count), 0), kind="stable")
    final = final[~((failed[final] > 0) & (rng.random(count) < of.missing))]
    return arm[final], share[final], failed[final]


def taken_back(of: Traffic, seed: int, *, within: int = LONGEST, alpha: float = ALPHA) -> tuple[bool, bool]:
    """Is the version taken back? Naive: by the interval."""
    arm, share, failed = (column[:within] for column in sessions(of, seed))
    path, _ = ArmBets().follow(arm, share, failed)
    return bool((path >= 1 / alpha).any()), naively(arm, failed)


def by_any_signal(seed: int) -> tuple[bool, bool]:
    """Is a version that does as the live one taken back by any of all signals, each with its part of alpha?"""
    found = naive = False
    for number, part in enumerate(SPLIT.values()):
        of = Traffic(rate=0.3 if number == 0 else 0.05)
        is_found, is_naive = taken_back(of, len(SPLIT) * seed + number, alpha=ALPHA * part)
        found, naive = found or is_found, naive or is_naive
    return found, naive


def let_through(of: Traffic, seed: int) -> tuple[bool, bool]:
    """Does a version finish by proof that it is not worse by the margin? Naive: by the interval."""
    arm, share, failed = sessions(of, seed)
    return bool((not_worse(arm, share, failed, margin=MARGIN) >= 1 / ALPHA).any()), naively(arm, failed, -MARGIN)


def holds_difference(of: Traffic, seed: int) -> tuple[bool, bool]:
    """Does the interval hold the true difference at every look? Naive: 1.96 standard errors."""
    arm, share, failed = sessions(of, seed)
    here = naive = True
    for count in range(100, LONGEST + 1, 1000):
        found = difference(arm[:count], share[:count], failed[:count])
        here = here and found.low <= of.harm <= found.high
        if (spread := _spread(arm[:count], failed[:count])) is not None:
            naive = naive and abs(spread[0] - of.harm) <= 1.96 * spread[1]
    return here, naive


def naively(arm: Array, failed: Array, least: float = 0.0) -> bool:
    """Whether any look shows the candidate to be worse; with a `least` below 0, to be not worse by that."""
    for count in range(LOOKS, arm.size + 1, LOOKS):
        if (found := _spread(arm[:count], failed[:count])) is None:
            continue
        mean, error = found
        if (mean - 1.645 * error > 0) if least == 0 else (mean + 1.645 * error < -least):
            return True
    return False


def _spread(arm: Array, failed: Array) -> tuple[float, float] | None:
    of_each = failed[arm == 0], failed[arm == 1]
    if min(part.size for part in of_each) < 5:
        return None
    return float(of_each[1].mean() - of_each[0].mean()), float(np.sqrt(sum(part.var() / part.size for part in of_each)))


def shares_doubted(told: float, true: float, sessions_: int, seed: int) -> tuple[bool, bool]:
    """Are the arms found to be not as large as was told? Naive: a binomial test at 0.1% every 50 sessions."""
    rng = np.random.default_rng([seed, 111])
    counts = np.cumsum(rng.random(sessions_) < true)
    looks = np.arange(LOOKS, sessions_ + 1, LOOKS)
    off = np.abs(counts[looks - 1] - looks * told) / np.sqrt(looks * told * (1 - told))
    found = any(
        share_log_wealth([(told, int(counts[n - 1]), int(n - counts[n - 1]))]) >= np.log(1000) for n in looks.tolist()
    )
    return found, bool((off > 3.29).any())


def watched(before: float, after: float, claim: float, sessions_: int, seed: int) -> tuple[bool, bool]:
    """Is a claim called broken within so many sessions, after 300 at the rate before? Naive: a 95% interval of the
    last 200 sessions lies above the claim."""
    rng = np.random.default_rng([seed, 112])
    failed = np.concatenate([rng.random(300) < before, rng.random(sessions_) < after]).astype(float)
    _, kept = ClaimWatch(claim).follow(failed[:300])
    path, _ = kept.follow(failed[300:])
    sums = np.cumsum(failed)
    last = (sums[200:] - sums[:-200])[100:] / 200
    error = np.sqrt(np.maximum(last * (1 - last), 1e-9) / 200)
    return bool((path >= bound(1)).any()), bool((last - 1.645 * error > claim).any())


def shadowed(rates: Array, harms: Array, sessions_: int, seed: int) -> tuple[bool, bool]:
    """Do copies of so many sessions' calls hold a ramp, by any of the faults that live answers have at these rates and
    the candidate's more often by these harms? Both answer the same calls, so that half of a fault is the call's. Naive:
    a one-sided 95% interval of the mean difference every 50 sessions."""
    rng = np.random.default_rng([seed, 113])
    found = naive = False
    for rate, harm in zip(rates, harms, strict=True):
        calls = rng.integers(1, 6, sessions_)
        of_call = np.repeat(np.arange(sessions_), calls)
        hard = rng.random(of_call.size) < rate / 2
        more = [(rng.random(of_call.size) < rate / 2 + one) | hard for one in (harm, 0.0)]
        gap = np.bincount(of_call, more[0].astype(float) - more[1]) / calls
        found = found or any(more_wealth(gap[:n].tolist()) >= SHADOW_BOUND for n in range(1, sessions_ + 1))
        for n in range(LOOKS, sessions_ + 1, LOOKS):
            naive = naive or bool(gap[:n].mean() > 1.645 * gap[:n].std() / np.sqrt(n) > 0)
    return found, naive


def ramp_cells() -> Iterator[Cell]:
    back, most = "at most 5%", 5.9
    for rate in (0.02, 0.1, 0.3, 0.6):
        for share in (0.05, 0.1, 0.5):
            name = f"ramp, no worse, live fails {rate:.0%}, share {share:.0%}: taken back"
            yield Cell(name, partial(taken_back, Traffic(rate, share=share)), back, 0, most)
    for name, of in {
        "drift of 15 points": Traffic(drift=0.15),
        "drift and stages": Traffic(drift=0.15, share=0),
        "1 to 20 alike trajectories": Traffic(trajectories=20),
        "failures known 100 sessions later": Traffic(late=100),
        "half of the failures unknown": Traffic(missing=0.5),
    }.items():
        yield Cell(f"ramp, no worse, {name}: taken back", partial(taken_back, of), back, 0, most)
    yield Cell("ramp, no worse, all signals together: taken back", by_any_signal, back, 0, most)
    yield Cell("ramp, better by 5 points: taken back", partial(taken_back, Traffic(harm=-0.05)), back, 0, most)
    for rate, harm, share, within in (
        (0.3, 0.1, 0.5, 1200),
        (0.3, 0.1, 0.1, 3200),
        (0.3, 0.2, 0.5, 350),
        (0.3, 0.2, 0.1, 850),
        (0.002, 0.048, 0.5, 450),
    ):
        for alpha, longer in ((ALPHA, 1.0), (ALPHA * SPLIT["failed"], 1.7)):
            count = int(within * longer)
            name = f"ramp, {rate:.3g} to {rate + harm:.3g}, share {share:.0%}, alpha {alpha:.0%}: within {count:,}"
            once = partial(taken_back, Traffic(rate, harm, share), within=min(count, LONGEST), alpha=alpha)
            if count <= LONGEST:
                yield Cell(name, once, "at least 80%", 80, 100)
    for share in (0.1, 0.5):
        name = f"ramp, worse by the margin, share {share:.0%}: finishes"
        yield Cell(name, partial(let_through, Traffic(harm=MARGIN, share=share)), "at most 5%", 0, most)
    yield Cell("ramp, worse by the margin, drift and stages: finishes",
               partial(let_through, Traffic(harm=MARGIN, drift=0.15, share=0)), "at most 5%", 0, most)  # fmt: skip
    for share in (0.1, 0.5):
        name = f"ramp, interval of 10 points, share {share:.0%}: holds at every look"
        yield Cell(name, partial(holds_difference, Traffic(harm=0.1, share=share)), "at least 95%", 94, 100)
    yield Cell("ramp, shares as told: doubted", partial(shares_doubted, 0.1, 0.1, 12_000), "at most 0.1%", 0, 0.3)
    yield Cell("ramp, 15% for 10%: doubted in 1,200", partial(shares_doubted, 0.1, 0.15, 1200), "at least 75%", 75, 100)
    alike = np.array([0.02, 0.05, 0.2])
    yield Cell("ramp, shadow, three faults no more often, 400 sessions: held",
               partial(shadowed, alike, 0 * alike, 400), back, 0, most)  # fmt: skip
    yield Cell("ramp, shadow, a fault 5 to 15% of the calls: held within 200",
               partial(shadowed, alike[1:2], np.array([0.1]), 200), "at least 80%", 80, 100)  # fmt: skip
    yield Cell("ramp, watch, 1 to 6%, claim 2%: within 450", partial(watched, 0.01, 0.06, 0.02, 450),
               "at least 95%", 95, 100)  # fmt: skip
    yield Cell("ramp, watch, 1% for 4,000 sessions, claim 2%: alarm", partial(watched, 0.01, 0.01, 0.02, 4000),
               "at most 5%", 0, 5)  # fmt: skip
    yield Cell("ramp, watch, at the claim for 2,000 sessions: alarm", partial(watched, 0.02, 0.02, 0.02, 2000),
               "at most 11%", 0, 11)  # fmt: skip
