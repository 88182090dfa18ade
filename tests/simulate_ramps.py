"""Ramps by simulation, as lines of `python -m tests.simulate --only ramp`: how often a good version is taken back, how
soon a bad one is, how often one at the margin is let through, how long a watch runs without a reason.

Beside each stands the naive practice: a one-sided 95% interval of the difference of two shares, looked at every 50
sessions. A session has one trajectory unless more is said. Whatever is looked at is looked at after every session, up
to 4,000 of them; so `within 1,200` means that it was found after 1,200 sessions of both arms together, or earlier.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from flywheel.core.evidence.ramp.ramp_plan import ALPHA, MOST_BUCKETS, Plan
from flywheel.core.evidence.statistics.sequential.arm_bets import ArmBets, Array
from flywheel.core.evidence.statistics.sequential.arm_difference import difference, not_worse
from flywheel.core.evidence.statistics.sequential.claim_watch import (
    ODDS,
    RUN_LENGTH,
    ClaimWatch,
    add_session,
    bet_factors,
    bound,
)
from flywheel.core.evidence.statistics.sequential.paired_difference import more_wealth
from flywheel.core.evidence.statistics.sequential.share_check import share_log_wealth
from tests import simulated_signals
from tests.simulated_cells import Batch, Cell
from tests.simulated_traffic import LONGEST, LOOKS, Traffic, naively, sessions, spreads

MARGIN = 0.05
MORE = 1.7
"""How many times as many sessions a signal may take that has its part of alpha instead of all of it."""
WATCHED, NAIVELY_WATCHED = 60_000, 20_000
"""Sessions after which a watch without an alarm is left: its run length counts as these."""
UNSAFE, ERRORS, CATEGORY = 0.01, 0.02, 0.02
"""The least claims that a promotion makes."""
HARMS = (
    ("failed", 0.3, 0.1, 0.5, 1200),
    ("failed", 0.3, 0.1, 0.1, 3200),
    ("failed", 0.3, 0.2, 0.5, 350),
    ("failed", 0.3, 0.2, 0.1, 850),
    ("unsafe", 0.002, 0.048, 0.5, 450),
    ("unsafe", 0.002, 0.048, 0.1, 1000),
    ("invalid", 0.05, 0.1, 0.5, 450),
    ("slow", 0.05, 0.1, 0.5, 450),
)
"""Signal, rate of the live version, how much more often the candidate does it, its share, and the sessions within which
four of five are to be caught with all of alpha."""
SHADOW_BOUND = 60.0
"""Of the wealth of each of three faults, which hold a ramp in at most 5% together."""


def taken_back(of: Traffic, seed: int, *, within: int = LONGEST, alpha: float = ALPHA) -> tuple[bool, bool]:
    """Is the version taken back? Naive: by the interval."""
    arm, share, failed = (column[:within] for column in sessions(of, seed, max(within, LONGEST)))
    path, _ = ArmBets().follow(arm, share, failed)
    return bool((path >= 1 / alpha).any()), naively(arm, failed)


def times_as_many(of: Traffic, alpha: float, most: int, runs: int) -> tuple[float, float]:
    """Return the sessions until 80% of so many harmful versions are taken back at this part of alpha, in percent of
    those at all of it. Naive: an interval for each signal is not split, and takes as many."""
    ends: dict[float, list[int]] = {alpha: [], ALPHA: []}
    for seed in range(runs):
        path, _ = ArmBets().follow(*sessions(of, seed, most))
        for each, found in ends.items():
            reached = path >= 1 / each
            found.append(1 + int(reached.argmax()) if reached.any() else most)
    longer, shorter = (float(np.quantile(ends[each], 0.8)) for each in (alpha, ALPHA))
    return 100 * longer / shorter, 100.0


def let_through(of: Traffic, seed: int, *, margin: float = MARGIN) -> tuple[bool, bool]:
    """Does a version finish by proof that it is not worse by the margin? Naive: by the interval."""
    arm, share, failed = sessions(of, seed)
    return bool((not_worse(arm, share, failed, margin=margin) >= 1 / ALPHA).any()), naively(arm, failed, -margin)


def holds_difference(of: Traffic, seed: int) -> tuple[bool, bool]:
    """Does the interval hold the true difference at every look? Naive: 1.96 standard errors."""
    arm, share, failed = sessions(of, seed)
    here, counts = True, np.arange(100, LONGEST + 1, 1000)
    for count in counts:
        found = difference(arm[:count], share[:count], failed[:count])
        here = here and found.low <= of.harm <= found.high
    mean, error = spreads(arm, failed, counts)
    return here, not (abs(mean - of.harm) > 1.96 * error).any()


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


def run_length(claims: Sequence[float], watches: int, *, known: float = 0.0) -> tuple[float, float]:
    """Return the mean run length of so many watches of these claims whose truth lies exactly on each, in percent of
    what is promised. Naive: until a 95% interval of the last 200 sessions lies above a claim.

    Signals are independent: where they come together, so do the alarms, and fewer watches alarm at all. With `known`,
    that part of the sessions is known to be the version's answer, and each claim has a second sum of these alone.
    """
    rng = np.random.default_rng([len(claims), 115, *([round(100 * known)] if known else [])])
    rates = np.asarray(claims)
    kept, broken = np.stack([bet_factors(claim, np.array([0.0, 1.0])) for claim in claims], axis=-1)[:, :, None]
    of_known = np.repeat([False, True], rates.size)[: rates.size * (2 if known else 1)]
    sums, total = np.zeros((len(ODDS), watches, of_known.size)), 0
    for _ in range(WATCHED):
        total += sums.shape[1]
        failed = rng.random((sums.shape[1], rates.size)) < rates
        after = add_session(sums, np.tile(np.where(failed, broken, kept), of_known.size // rates.size))
        if known:
            is_reported = rng.random((sums.shape[1], 1)) >= known
            after = np.where(of_known & is_reported, sums, after)
        sums = after
        is_alarm = (sums.mean(axis=0) >= bound(rates.size)).any(axis=1)
        if is_alarm.any():
            sums = sums[:, ~is_alarm]
    naive = sum(_naive_run_length(rng, rates) for _ in range(watches))
    return 100 * total / watches / RUN_LENGTH, 100 * naive / watches / RUN_LENGTH


def _naive_run_length(rng: np.random.Generator, rates: Array) -> int:
    sums = np.cumsum(rng.random((NAIVELY_WATCHED, rates.size)) < rates, axis=0)
    last = (sums[200:] - sums[:-200]) / 200
    is_alarm = (last - 1.645 * np.sqrt(last * (1 - last) / 200) > rates).any(axis=1)
    return 201 + int(is_alarm.argmax()) if is_alarm.any() else NAIVELY_WATCHED


def ramp_cells() -> Iterator[Cell | Batch]:
    yield from error_cells()
    yield from harm_cells()
    yield from split_cells()
    yield from other_cells()
    yield from watch_cells()


def error_cells() -> Iterator[Cell]:
    back, most = "at most 5%", 5.9
    designs = {
        f"live fails {rate:.0%}, share {share:.0%}": Traffic(rate, share=share)
        for rate in (0.02, 0.1, 0.3, 0.6)
        for share in (0.05, 0.1, 0.5)
    }
    others = {
        "drift of 15 points": Traffic(drift=0.15),
        "drift and stages": Traffic(drift=0.15, share=0),
        "1 to 20 alike trajectories": Traffic(trajectories=20),
        "failures known 100 sessions later": Traffic(late=100),
        "half of the failures unknown": Traffic(missing=0.5),
        "all of these": Traffic(drift=0.15, share=0, trajectories=20, late=100, missing=0.5),
    }
    for name, of in (designs | others).items():
        once = partial(simulated_signals.taken_back, of)
        yield Cell(f"ramp, no worse, all signals, {name}: taken back", once, back, 0, most)
    for name, of in {"stages": Traffic(share=0), **others}.items():
        yield Cell(f"ramp, no worse, failures alone, {name}: taken back", partial(taken_back, of), back, 0, most)
    yield Cell("ramp, better by 5 points: taken back", partial(taken_back, Traffic(harm=-0.05)), back, 0, most)


def harm_cells() -> Iterator[Cell]:
    for signal, rate, harm, share, within in HARMS:
        for alpha, longer in ((ALPHA, 1.0), (Plan().alphas[signal], MORE)):
            count = round(within * longer)
            design = f"{signal} {rate:.3g} to {rate + harm:.3g}, share {share:.0%}, alpha {100 * alpha:g}%"
            once = partial(taken_back, Traffic(rate, harm, share), within=count, alpha=alpha)
            yield Cell(f"ramp, {design}: within {count:,}", once, "at least 80%", 80, 100)


def split_cells() -> Iterator[Batch]:
    for signal, rate, harm, share, within in HARMS:
        alpha = Plan().alphas[signal]
        design = f"{signal} {rate:.3g} to {rate + harm:.3g}, share {share:.0%}, alpha {100 * alpha:g}%"
        at_once = partial(times_as_many, Traffic(rate, harm, share), alpha, 3 * within)
        name = f"ramp, {design}: sessions until 80% are caught, % of those at 5%"
        yield Batch(name, at_once, f"at most {MORE:.0%}", 0, 100 * MORE)


def other_cells() -> Iterator[Cell]:
    back, most = "at most 5%", 5.9
    for share in (0.1, 0.5):
        name = f"ramp, worse by the margin, share {share:.0%}: finishes"
        yield Cell(name, partial(let_through, Traffic(harm=MARGIN, share=share)), "at most 5%", 0, most)
        name = f"ramp, unsafe 0.002 to 0.022, margin 2 points, share {share:.0%}: finishes"
        rare = partial(let_through, Traffic(0.002, 0.02, share), margin=0.02)
        yield Cell(name, rare, "at most 5%", 0, most)
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


def watch_cells() -> Iterator[Cell | Batch]:
    yield Cell("ramp, watch, 1 to 6%, claim 2%: within 450", partial(watched, 0.01, 0.06, 0.02, 450),
               "at least 95%", 95, 100)  # fmt: skip
    yield Cell("ramp, watch, 1% for 4,000 sessions, claim 2%: alarm", partial(watched, 0.01, 0.01, 0.02, 4000),
               "at most 5%", 0, 5)  # fmt: skip
    for name, claims in {
        "one claim of 2%": [CATEGORY],
        "unsafe, errors and a category": [UNSAFE, ERRORS, CATEGORY],
        "unsafe, errors and 20 categories": [UNSAFE, ERRORS, *[CATEGORY] * MOST_BUCKETS],
    }.items():
        yield Batch(f"ramp, watch, exactly at {name}: mean run length, % of {RUN_LENGTH:,.0f} sessions",
                    partial(run_length, claims), "at least 100%", 100, 10_000)  # fmt: skip
    for known in (0.1, 0.5, 0.9):
        yield Batch(f"ramp, watch, exactly at unsafe and errors, {known:.0%} known: mean run length of both sums, "
                    f"% of {RUN_LENGTH:,.0f} sessions",
                    partial(run_length, [UNSAFE, ERRORS], known=known), "at least 100%", 100, 10_000)  # fmt: skip
