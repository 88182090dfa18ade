"""Guards of the gate: is the candidate worse, is it not worse, or can these tasks not tell?

*Worse*: the lower bound of the harm lies above the margin. *Not worse*: its upper bound lies below. *Cannot tell*: the
margin lies between, and more tasks would tell; how many is said. Side effects have a guard of their own, where no
margin is tolerated and an exact test asks whether the candidate has them more often.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy import special

from flywheel.core.evidence.statistics.estimates import NO_VARIANCE, Estimate, Scores, proportion_upper
from flywheel.core.evidence.statistics.eval_metrics import METRICS, Row, task_samples
from flywheel.core.evidence.statistics.exact_tests import Tried, more_often
from flywheel.core.text.number_words import percent

Outcome = Literal["", "worse", "not worse", "cannot tell"]
POWER = 0.8
"""How likely a rise is caught that is said to be caught."""
RISE = 0.05
"""A rise of the share of attempts with side effects that would be caught, or nothing is said of their being no more."""
MOST_TASKS = 100_000


@dataclass(frozen=True)
class Check:
    name: str
    """In words, ready to show."""
    passed: bool | None
    """None = shown but not judged: not gated, not measured, or it cannot tell and need not."""
    detail: str
    """What was found, as a clause that reads on in ``Decision.words``."""
    value: float | None = None
    """The estimate: a difference in rates, or a relative change."""
    bound: float | None = None
    """The one-sided bound that was judged: lower for a gain, upper for a harm."""
    harm: bool = False
    """Whether this shows the candidate to be worse."""
    outcome: Outcome = ""
    """Of a guard; empty for what is none, and for one that is not gated or was not measured."""
    alpha: float | None = None
    """The chance of error that it may spend, of a guard."""
    tasks: int | None = None
    """How many tasks like these would tell, where these cannot."""


def difference_guard(
    name: str,
    harm: Estimate,
    margin: float | None,
    show: Callable[[float], str],
    alpha: float,
    *,
    unclear: bool | None,
) -> Check:
    """Judge a harm by its interval at ``1 - 2 alpha``, both in the margin's unit; None as margin is not gated.

    ``unclear`` is how it counts where it cannot tell.
    """
    if harm.mean is None:
        return Check(name, None, f"{name} could not be compared: {harm.reason}")
    spread = _spread(harm, show, alpha)
    if margin is None:
        return Check(name, None, f"{name} {show(harm.mean)}, {spread} (not gated)", harm.mean, harm.high)
    detail = f"{name} {show(harm.mean)}, {spread} (margin {show(margin)})"
    if above(harm, margin):
        return Check(name, False, detail, harm.mean, harm.low, harm=True, outcome="worse", alpha=alpha)
    if below(harm, margin):
        return Check(name, True, detail, harm.mean, harm.high, outcome="not worse", alpha=alpha)
    tasks = _tasks_to_tell(harm, margin)
    more = f"; about {tasks:,} tasks would tell" if tasks else ""
    return Check(name, unclear, detail + more, harm.mean, harm.high, outcome="cannot tell", alpha=alpha, tasks=tasks)


def _spread(harm: Estimate, show: Callable[[float], str], alpha: float) -> str:
    if harm.low is not None and harm.high is not None:
        return f"from {show(harm.low)} to {show(harm.high)}"
    if harm.mean == 0 and harm.reason == NO_VARIANCE and harm.clusters:
        rare = percent(proportion_upper(0, harm.clusters, level=1 - alpha), 1)
        return f"the same in every cluster, though up to {rare} of clusters could differ unseen"
    return harm.reason


def _tasks_to_tell(harm: Estimate, margin: float) -> int | None:
    """Estimate how many tasks would make the interval end before the margin, were the harm what it seems: its width
    falls with the root of their number. None where that is not known, or more than anybody has."""
    if harm.mean is None or harm.low is None or harm.high is None or math.isclose(harm.mean, margin):
        return None
    reach = harm.high - harm.mean if harm.mean < margin else harm.mean - harm.low
    tasks = math.ceil(harm.n * (reach / (margin - harm.mean)) ** 2)
    return max(tasks, harm.n + 1) if tasks <= MOST_TASKS else None


def side_effects(before: Sequence[Row], after: Sequence[Row], alpha: float, *, unclear: bool | None) -> Check:
    """Whether attempts with a side effect are more often than before: Fisher's exact test, one-sided, stratified by
    task, over what both arms attempted."""
    name = "side effects"
    arms = [{task: _tried(values) for task, values in task_samples(rows, METRICS["unsafe"].value).items()}
            for rows in (before, after)]  # fmt: skip
    pairs = {task: (arms[0][task], arms[1][task]) for task in arms[0] if task in arms[1]}
    old, new = (_total([pair[arm] for pair in pairs.values()]) for arm in (0, 1))
    if not old.scored or not new.scored:
        return Check(name, None, "side effects not measured")
    p = more_often(pairs.values())
    rates = old.bad / old.scored, new.bad / new.scored
    rose = rates[1] - rates[0]
    detail = f"side effects in {new.bad} of {new.scored} attempts, {old.bad} of {old.scored} before"
    if p <= alpha:
        rise = [task for task, (one, other) in pairs.items() if other.bad * one.scored > one.bad * other.scored]
        words = f"{detail}: significantly more, in {some(sorted(rise))}"
        return Check(name, False, words, rose, harm=True, outcome="worse", alpha=alpha)
    caught = rise_caught(max(rates[0], 1 / old.scored), old.scored, new.scored, alpha)
    words = f"{detail}; a rise of {100 * caught:.0f} points or more would have been caught"
    if caught <= RISE:
        return Check(name, True, words, rose, outcome="not worse", alpha=alpha)
    tasks = min(MOST_TASKS, math.ceil(len(pairs) * (caught / RISE) ** 2))
    return Check(name, unclear, words, rose, outcome="cannot tell", alpha=alpha, tasks=tasks)


def _tried(values: Sequence[float | None]) -> Tried:
    return Tried(len(values), sum(bool(value) for value in values), sum(value is None for value in values))


def _total(arm: Sequence[Tried]) -> Tried:
    return Tried(sum(one.attempts for one in arm), sum(one.bad for one in arm), sum(one.unknown for one in arm))


def rise_caught(rate: float, old: int, new: int, alpha: float) -> float:
    """The least rise above a rate that the test finds in four of five cases, by the normal approximation of two
    independent shares (Fleiss, Levin and Paik 2003, 4.2)."""
    reach = float(special.ndtri(1 - alpha) + special.ndtri(POWER))
    low, high = 0.0, 1.0 - rate
    for _ in range(40):
        rise = (low + high) / 2
        spread = rate * (1 - rate) / old + (rate + rise) * (1 - rate - rise) / new
        low, high = (low, rise) if rise >= reach * math.sqrt(spread) else (rise, high)
    return high


def unmeasured(name: str, before: Scores, after: Scores, min_fill: float) -> Check | None:
    """Refuse a guard that one arm did not measure on the tasks where the other did."""
    either = sum(x is not None or y is not None for x, y in zip(before, after, strict=True))
    both = sum(x is not None and y is not None for x, y in zip(before, after, strict=True))
    if not either:
        return Check(name, None, f"{name} not measured")
    if both < min_fill * either:
        return Check(name, False, f"{name} measured in both arms on only {both} of {either} tasks")
    return None


def below(estimate: Estimate, limit: float) -> bool:
    """Whether the estimate is shown to lie below ``limit``: by its bound, or by its value where no task differs."""
    if estimate.mean is None:
        return False
    if estimate.reason == NO_VARIANCE:
        return estimate.mean < limit
    return estimate.high is not None and estimate.high < limit


def above(estimate: Estimate, limit: float) -> bool:
    """Whether the estimate is shown to lie above ``limit``."""
    mean, low, high = (None if x is None else -x for x in (estimate.mean, estimate.low, estimate.high))
    return below(replace(estimate, mean=mean, low=high, high=low), -limit)


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of them, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
