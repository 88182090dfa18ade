"""Plan what a task set can show by the gate, before anything is run: who passes, and what would do.

A plan, by formulas and no draws. A difference's standard error comes from the components of its spread (Miller 2024,
arXiv 2411.00640), made larger by sources whose tasks are alike, the more the less equal they are (Kish 1965); power is
that of a t-test with a degree of freedom less than sources (the normal approximation of its noncentral distribution:
Johnson and Welch 1940), which the gate's flips of whole sources come close to. Guards are judged as ``gate`` does, each
by its share of the error, for a candidate that is worse in nothing. Regression suites are not in it.

What is not known yet is assumed, and the plan says what: ``eval_scope.Rates``.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import special

from flywheel.core.evidence.gate.decision import LIMITS, SHARES, TOLERATED, Policy, spending
from flywheel.core.evidence.gate.guard_checks import MOST_TASKS, POWER, RISE, rise_caught
from flywheel.core.evidence.statistics.estimates import proportion_upper
from flywheel.core.evidence.statistics.eval_scope import Part, Scope
from flywheel.core.evidence.statistics.power import minimum_detectable
from flywheel.core.text.number_words import percent

PLANNED: Final = 0.9
"""How likely a margin that is advised lets an unchanged candidate pass, so that several of them still do together."""
LEAST_CHANCE: Final = 0.5
"""Of a candidate that is better by ``LARGE`` and worse in nothing; a strict policy that gives it less is refused."""
MANY: Final = 60
"""Attempts with a side effect from which on Fisher's test errs about as often as it may."""
MODEST: Final = 0.10
LARGE: Final = 0.20
"""True gains in success that a plan is told for."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard of the policy, before a candidate that is worse in nothing."""

    name: str
    field: str
    """Of the policy, that sets it."""
    passes: float
    """How likely the candidate passes it."""
    margin: float | None = None
    """The least margin by which it passes in ``PLANNED`` of cases; None where no margin would help."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The prospects of a candidate that is truly better by ``gain`` and worse in nothing."""

    gain: float
    is_shown: float
    """Chance that the held-out tasks show the gain."""
    is_eligible: float
    """Chance that every guard lets it pass, too."""
    passes: float
    """Chance that the sealed part confirms it, too, where there is one."""
    more: "More | None"
    """By which it would pass in four of five cases; None where no number of tasks that anybody has would do."""


@dataclass(frozen=True, slots=True)
class More:
    """Tasks beside those that are there, from sources like theirs."""

    held_out: int
    sealed: int


@dataclass(frozen=True, slots=True)
class Power:
    """The reach of a task set by a policy."""

    outlooks: tuple[Outlook, Outlook]
    """For a gain of ``MODEST`` and of ``LARGE``."""
    least_gain: float | None
    """That the held-out tasks show in four of five cases; None where not even the largest possible is."""
    least_confirmed: float | None
    """That the sealed part confirms in four of five cases; None also without one."""
    falls: dict[str, float | None]
    """The least fall by slice that is seen in four of five cases; None where the slice is too small to be tested."""
    guards: tuple[Guard, ...]
    weak: list[str]
    """Guards that may well stop a candidate which is worse in nothing, in words, and which margin would do."""

    @property
    def unseen(self) -> list[tuple[str, float | None]]:
        """Slices in which a fall of more than ``TOLERATED`` could go unseen, and up to how many points; those least
        seen first."""
        found = [(name, fall) for name, fall in self.falls.items() if fall is None or fall > TOLERATED]
        ordered = sorted(found, key=lambda each: (-(each[1] or math.inf), each[0]))
        return [(name, None if fall is None else 100 * fall) for name, fall in ordered]


def power_of(policy: Policy, scope: Scope) -> Power:
    """Plan what the scope can show by the policy."""
    modest, large = (_outlook(policy, scope, gain) for gain in (MODEST, LARGE))
    guards = tuple(guards_of(policy, scope, 0.0))
    return Power(
        outlooks=(modest, large),
        least_gain=_least(lambda gain: _shown(policy, scope, scope.held_out, gain, _held_out_alpha(policy, scope))),
        least_confirmed=_least(lambda gain: _confirmed(policy, scope, gain)) if scope.sealed.tasks else None,
        falls={name: _fall(policy, scope, part, 0.0) for name, part in scope.slices.items()},
        guards=guards,
        weak=[_advice(policy, guard) for guard in _weak(guards)],
    )


def eligible(policy: Policy, scope: Scope, gain: float) -> float:
    """Return the chance that a candidate truly better by ``gain``, and worse in nothing, is eligible."""
    shown = _shown(policy, scope, scope.held_out, gain, _held_out_alpha(policy, scope))
    return shown * math.prod(guard.passes for guard in guards_of(policy, scope, gain))


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a policy cannot be satisfied by a task set."""

    field: str
    """Of the policy, that stops most."""
    words: str


def objection(policy: Policy, scope: Scope) -> Objection | None:
    """Object to a strict policy that stops most candidates which are better by ``LARGE`` and worse in nothing."""
    chance = eligible(policy, scope, LARGE)
    if not policy.strict or chance >= LEAST_CHANCE:
        return None
    weak = _weak(guards_of(policy, scope, LARGE))
    shown = _shown(policy, scope, scope.held_out, LARGE, _held_out_alpha(policy, scope))
    field = weak[0].field if weak and weak[0].passes < shown else "strict"
    words = (
        f"only {percent(chance)} of candidates that are {100 * LARGE:.0f} points better, and worse in nothing, would "
        f"pass by {round(scope.held_out.tasks):,} held-out tasks × {scope.samples[1]}"
    )
    if weak:
        words += f". What stops the others: {', '.join(_advice(policy, guard) for guard in weak)}"
    factor = tasks_for(scope, lambda at: eligible(policy, at, LARGE), LEAST_CHANCE)
    if factor is not None:
        words += f". About {math.ceil(scope.held_out.tasks * factor):,} held-out tasks like these would do, too"
    return Objection(field, words)


def _advice(policy: Policy, guard: Guard) -> str:
    """Say how likely a guard passes, and which margin would do."""
    limit, passes, margin = LIMITS.get(guard.field), percent(guard.passes), _margin_that_would_do(guard)
    if limit is None or margin is None:
        return f"{guard.name} ({passes} pass)"
    present, would_do = 100 * getattr(policy, guard.field), 100 * margin
    shown = [f"{number:g} {limit.unit if number != 1 else limit.unit.rstrip('s')}" for number in (present, would_do)]
    return f"{guard.name} ({passes} pass with a margin of {shown[0]}; {shown[1]} would do)"


def _margin_that_would_do(guard: Guard) -> float | None:
    """Return the guard's planned margin, up to the next tenth of a point; None where no policy may have it."""
    limit = LIMITS.get(guard.field)
    if limit is None or guard.margin is None or guard.margin > limit.most:
        return None
    return min(limit.most, math.ceil(round(1000 * guard.margin, 6)) / 1000)


def with_planned_margins(policy: Policy, scope: Scope) -> Policy:
    """Return the policy with a margin that would do for each of its guards that may well stop a candidate which is
    worse in nothing; unchanged where no margin does, and where the policy is not strict."""
    weak = _weak(guards_of(policy, scope, LARGE))
    margins = {guard.field: margin for guard in weak if (margin := _margin_that_would_do(guard)) is not None}
    return replace(policy, **margins)  # type: ignore[arg-type]


def tasks_for(scope: Scope, chance: Callable[[Scope], float], wanted: float) -> float | None:
    """Return how many times the tasks it takes until the chance is as wanted; None where ``MOST_TASKS`` do not do."""
    most = MOST_TASKS / scope.held_out.tasks
    low, high = 1.0, 1.0
    while chance(scope.scaled(high)) < wanted:
        if high >= most:
            return None
        low, high = high, min(most, 1.5 * high)
    while high - low > 0.5 / scope.held_out.tasks:
        middle = (low + high) / 2
        low, high = (low, middle) if chance(scope.scaled(middle)) >= wanted else (middle, high)
    return high


def guards_of(policy: Policy, scope: Scope, gain: float) -> list[Guard]:
    """List the policy's guards that can stop a candidate which is worse in nothing, and how likely each does not."""
    rates, attempts = scope.rates, sum(scope.samples) * scope.held_out.tasks
    found = [_slices(policy, scope, gain)] if scope.slices else []
    if rates.unsafe is not None:
        found += _side_effects(policy, scope, rates.unsafe)
    if rates.invalid is not None and policy.invalid_margin is not None:
        none = (1 - rates.invalid) ** attempts
        spread = _of_both(scope, rates.invalid * (1 - rates.invalid))
        found.append(_margin_guard(policy, scope, "invalid outputs", "invalid_margin", spread, none=none))
    for name, spread_of_logs in (("cost", rates.cost), ("latency", rates.latency)):
        if spread_of_logs is not None and getattr(policy, f"{name}_margin") is not None:
            spread = _of_both(scope, math.expm1(min(spread_of_logs, 20.0) ** 2))
            found.append(_margin_guard(policy, scope, name, f"{name}_margin", spread, is_ratio=True))
    return found


def _weak(guards: Iterable[Guard]) -> list[Guard]:
    """Those that may well stop a candidate which is worse in nothing, the likeliest first."""
    return sorted((guard for guard in guards if guard.passes < PLANNED), key=lambda each: each.passes)


# Gain


def _outlook(policy: Policy, scope: Scope, gain: float) -> Outlook:
    def passes(at: Scope) -> float:
        return eligible(policy, at, gain) * _confirmed(policy, at, gain)

    factor = tasks_for(scope, passes, POWER)
    more = [math.ceil(round(part.tasks * ((factor or 1) - 1), 6)) for part in (scope.held_out, scope.sealed)]
    return Outlook(
        gain,
        _shown(policy, scope, scope.held_out, gain, _held_out_alpha(policy, scope)),
        eligible(policy, scope, gain),
        passes(scope),
        None if factor is None else More(*more),
    )


def _held_out_alpha(policy: Policy, scope: Scope) -> float:
    return policy.alpha if scope.sealed.tasks else spending(policy.alpha, scope.opening)


def _confirmed(policy: Policy, scope: Scope, gain: float) -> float:
    """The chance that the sealed part confirms the gain; 1 where there is none to ask."""
    if not scope.sealed.tasks:
        return 1.0
    return _shown(policy, scope, scope.sealed, gain, spending(policy.alpha, scope.opening))


def _shown(policy: Policy, scope: Scope, part: Part, gain: float, alpha: float) -> float:
    """The chance that the tasks show a true gain; it ends where every attempt succeeds."""
    true = min(gain, 1 - scope.rates.success)
    if part.sources < policy.min_clusters or not _can_refuse(part, alpha):
        return 0.0
    spread = scope.rates.variance(true, scope.samples, part).per_task
    return _power(true - policy.delta_min, spread, part, alpha)


def _least(chance: Callable[[float], float]) -> float | None:
    """The least gain whose chance is ``POWER``, to a tenth of a point."""
    low, high = 0, 1000
    if chance(1.0) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle / 1000) >= POWER else (middle, high)
    return high / 1000


def _can_refuse(part: Part, alpha: float) -> bool:
    """Whether the flips of so many sources can refuse anything at this error."""
    return math.floor(part.sources) * math.log(2) >= -math.log(alpha)


def _power(over: float, spread: float, part: Part, alpha: float) -> float:
    """The chance that a true difference is shown to exceed a limit from which it lies ``over`` away."""
    standard_error = math.sqrt(max(spread, 0.0) / part.tasks)
    if standard_error == 0:
        return float(over > 0)
    df = max(1.0, part.sources - 1)
    critical = float(special.stdtrit(df, 1 - alpha))
    away = over / standard_error
    return float(special.ndtr((away - critical) / math.sqrt(1 + critical**2 / (2 * df))))


# Guards


def _margin_guard(
    policy: Policy,
    scope: Scope,
    name: str,
    field: str,
    spread: float,
    *,
    is_ratio: bool = False,
    none: float = 0.0,
) -> Guard:
    """Plan a guard by its margin; ``spread`` is a task's variance of the harm, of its logarithm for a ratio, and
    ``none`` how likely neither arm has any of it, so that nothing differs."""
    part, alpha = scope.held_out, policy.alpha * SHARES[name]
    margin: float = getattr(policy, field)
    allowed = math.log1p(margin) if is_ratio else margin
    if not policy.strict:
        return Guard(name, field, 1.0 if not _can_refuse(part, alpha) else 1 - _power(-allowed, spread, part, alpha))
    differs = _power(allowed, spread, part, alpha) if _can_refuse(part, alpha) else 0.0
    df = max(1.0, part.sources - 1)
    critical = float(special.stdtrit(df, 1 - alpha))
    reach = critical + float(special.ndtri(PLANNED)) * math.sqrt(1 + critical**2 / (2 * df))
    needed = min(700.0, reach * math.sqrt(spread / part.tasks))
    planned = (math.expm1(needed) if is_ratio else needed) if _can_refuse(part, alpha) else None
    return Guard(name, field, none * float(margin > 0) + (1 - none) * differs, planned)


def _of_both(scope: Scope, variance: float) -> float:
    """A task's variance of the difference, of this variance of an attempt in either arm."""
    return sum(variance / samples for samples in scope.samples)


def _side_effects(policy: Policy, scope: Scope, rate: float) -> list[Guard]:
    name, part, tasks = "side effects", scope.held_out, scope.held_out.tasks
    before, after = (round(tasks * samples) for samples in scope.samples)
    none = (1 - rate) ** (before + after)
    by_margin = _margin_guard(policy, scope, name, "unsafe_margin", _of_both(scope, rate * (1 - rate)), none=none)
    found = [by_margin]
    if not policy.unsafe_margin:
        alpha = policy.alpha * SHARES[name]
        passes = 1 - _false_alarm(rate, before, after, alpha)
        if policy.strict:
            passes *= _rise_ruled_out(rate, before, after, alpha)
        found = [Guard(name, "unsafe_margin", passes, by_margin.margin)]
    if policy.unsafe_rate_max is not None:
        sources = max(1, math.floor(part.sources))
        touched = 1 - (1 - rate) ** (scope.samples[1] * tasks / part.sources)
        limit, level = policy.unsafe_rate_max, 1 - policy.alpha
        passes = _at_most(sources, touched, lambda events: proportion_upper(events, sources, level=level) <= limit)
        found.append(Guard("rate of side effects", "unsafe_rate_max", passes))
    return found


def _false_alarm(rate: float, before: int, after: int, alpha: float) -> float:
    """Return how likely Fisher's test calls the same rate higher: of all bad attempts, so many are after by a coin that
    weighs as the arms do."""
    both, share = before + after, after / (before + after)
    expected = both * rate
    if expected > MANY:
        return alpha
    bad = np.arange(1, math.ceil(expected + 10 * math.sqrt(expected) + 10))
    late = bad[:, None]
    tails = np.where(late <= bad, special.bdtrc(np.minimum(late, bad) - 1.0, bad, share), 0.0)
    likely = special.bdtr(bad, both, rate) - special.bdtr(bad - 1.0, both, rate)
    return float(np.clip(np.where(tails <= alpha, tails, 0.0).max(axis=0) @ likely, 0.0, alpha))


def _rise_ruled_out(rate: float, before: int, after: int, alpha: float) -> float:
    """Return how likely so many attempts of each arm, few enough of the baseline's bad, would have caught ``RISE``."""
    return _at_most(before, rate, lambda bad: rise_caught(max(bad, 1) / before, before, after, alpha) <= RISE)


def _at_most(tries: int, rate: float, holds: Callable[[int], bool]) -> float:
    """Return how likely so few of the tries come out so that it still holds, as it does up to some number of them."""
    low, high = -1, tries + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return float(special.bdtr(low, tries, rate)) if low >= 0 else 0.0


def _slices(policy: Policy, scope: Scope, gain: float) -> Guard:
    if not policy.strict:
        return Guard("slices", "strict", 1.0)
    chances = [_slice_told(policy, scope, part, gain) for part in scope.slices.values()]
    return Guard("slices", "strict", math.prod(chances))


def _slice_told(policy: Policy, scope: Scope, part: Part, gain: float) -> float:
    """The chance that a slice's own spread, which is estimated, says that a fall of ``TOLERATED`` would be seen."""
    fall = _fall(policy, scope, part, gain)
    if fall is None:
        return 0.0
    if fall <= 0:
        return 1.0
    return float(special.ndtr(math.log(TOLERATED / fall) * math.sqrt(2 * max(1.0, part.effective - 1))))


def _fall(policy: Policy, scope: Scope, part: Part, gain: float) -> float | None:
    """The least fall in a slice that is seen in four of five cases; None below the policy's least tasks."""
    tested = sum(each.tasks >= policy.slice_min_tasks for each in scope.slices.values())
    if part.tasks < policy.slice_min_tasks:
        return None
    variance = scope.rates.variance(min(gain, 1 - scope.rates.success), scope.samples, part)
    reach = minimum_detectable(1, variance, alpha=2 * policy.alpha * SHARES["slices"] / tested)
    return min(1.0, reach / math.sqrt(part.tasks))
