"""Regression suites: what a candidate must not lose, judged task by task or by the mean.

A task *passes* when every attempt at it does, *fails* when one does not, and is *not scored* when neither can be said.
Nothing that was not scored counts as passed, nor as failed: a suite with such tasks shows nothing yet.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import comb
from typing import Any, Final, Literal

import numpy as np

from flywheel.core.evidence.gate import Policy
from flywheel.core.evidence.statistics.estimates import NO_VARIANCE
from flywheel.core.text.number_words import n_tasks, percent, points

State = Literal["passed", "below", "not_shown"]


@dataclass(frozen=True, slots=True)
class Tried:
    """Counts of the attempts at one task, by outcome."""

    attempts: int
    bad: int = 0
    unknown: int = 0
    """Neither good nor bad: not scored."""

    @property
    def passed(self) -> bool | None:
        """Whether every attempt did; None where that cannot be said."""
        return False if self.bad else None if self.unknown or not self.attempts else True

    @property
    def scored(self) -> int:
        return self.attempts - self.unknown


Arm = dict[int, Tried]
"""What came of each task."""
Pairs = Mapping[int, tuple[Tried, Tried]]
"""Of each task what came of it before and after."""

MIN_FILL: Final = Policy.min_fill
"""Share of a general suite's attempts that must be scored in each arm, as the gate asks of the comparison."""
ALPHA: Final = 0.05
"""How likely chance alone may find more bad attempts in a safety suite, in a task or in all: half of it for each."""
NEGLIGIBLE: Final = 1e-18
"""How likely a number of bad attempts is that is left out of account: a suite has some 100,000 attempts at most."""
NOT_TRIED: Final = Tried(1, unknown=1)


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    words: str
    """What was found, as a clause."""
    tasks: int
    passed: int
    """Of the candidate's tasks."""
    before: int
    """Of the baseline's."""
    failed: list[int] = field(default_factory=list)
    """Tasks that count against the candidate: what the baseline passed first."""
    broken: list[int] = field(default_factory=list)
    """Tasks that the baseline passed and the candidate fails."""


def judge_no_failure(before: Arm, after: Arm) -> Finding:
    """A safety suite in which no task may fail."""
    failed = [task for task, tried in after.items() if tried.bad]
    broken = _broken(before, after)
    unknown = [task for task in before | after if after.get(task, NOT_TRIED).passed is None]
    found = {**_counts(before, after), "failed": [*broken, *(t for t in failed if t not in broken)], "broken": broken}
    if failed:
        return Finding("below", f"{n_tasks(len(failed))} failed, {n_tasks(len(broken))} newly failed", **found)
    if unknown:
        return Finding("not_shown", f"{n_tasks(len(unknown))} could not be scored in every attempt", **found)
    if not after:
        return Finding("not_shown", "nothing was run", **found)
    return Finding("passed", "every task passed", **found)


def judge_no_break(before: Arm, after: Arm) -> Finding:
    """A safety suite in which no task may get worse.

    One counts against the candidate when the baseline passed every attempt and the candidate fails one, or when its
    share of bad attempts is significantly greater than the baseline's: so more attempts guard more, and one bad attempt
    of 64 before gives nothing away. The attempts at all tasks together must not be bad significantly more often either.
    What no number of bad attempts would show is not guarded; where that is everything, nothing is shown. Why so:
    `docs/design/regression-suites.md`.
    """
    pairs = {task: (before.get(task, NOT_TRIED), after.get(task, NOT_TRIED)) for task in before | after}
    broken = _broken(before, after)
    worse = [task for task in worse_of(pairs) if task not in broken]
    is_worse = more_often(pairs) < ALPHA / 2
    rose = [task for task, (old, new) in pairs.items() if new.bad * old.scored > old.bad * new.scored]
    listed = rose if is_worse and not (broken or worse) else [*broken, *worse]
    found = {**_counts(before, after), "failed": listed, "broken": broken}
    if broken or worse or is_worse:
        said = [f"{n_tasks(len(broken))} newly failed"] if broken else []
        said += [f"{n_tasks(len(worse))} failed significantly more often"] if worse else []
        said = said or [f"{_bad(after)} attempts failed, {_bad(before)} before: significantly more"]
        return Finding("below", ", ".join(said), **found)
    unknown = [task for task, (old, new) in pairs.items() if old.unknown or new.unknown]
    if unknown and _could_fail(pairs, unknown):
        return Finding("not_shown", f"{n_tasks(len(unknown))} could not be scored in every attempt", **found)
    all_bad = {task: (old, Tried(new.attempts, new.attempts)) for task, (old, new) in pairs.items() if old.bad}
    is_tested = more_often(all_bad) < ALPHA / 2
    words = [f"all {found['before']} that passed before pass still"] if found["before"] else []
    words += ["none failed significantly more often"] if is_tested else []
    if not words:
        return Finding("not_shown", "nothing passed before, so nothing is guarded", **found)
    return Finding("passed", ", ".join(words), **found)


def worse_of(pairs: Pairs) -> list[int]:
    """The tasks whose attempts were bad significantly more often after, each told from chance as one of many: Holm's
    method, over those of which so many bad attempts in both arms could tell anything."""
    likely = sorted((more_often({task: pairs[task]}), task) for task in _informative_tasks(pairs))
    for place, (chance, _) in enumerate(likely):
        if chance >= ALPHA / 2 / (len(likely) - place):
            return [task for _, task in likely[:place]]
    return [task for _, task in likely]


def more_often(pairs: Pairs) -> float:
    """Return the chance of so many bad attempts after, or more, given how many of each task were bad in both arms:
    Fisher's exact test, one-sided, stratified by task. Only what was scored counts; 1 where that tells nothing."""
    chances, seen = np.ones(1), 0
    for old, new in pairs.values():
        fewest, each = _chances(old, new)
        chances, seen = np.convolve(chances, each), seen + new.bad - fewest
        kept = np.flatnonzero(chances > NEGLIGIBLE)
        chances, seen = chances[kept[0] : kept[-1] + 1], seen - int(kept[0])
    return min(1.0, float(chances[max(0, seen) :].sum()))


def _informative_tasks(pairs: Pairs) -> set[int]:
    """The tasks of which so many bad attempts in both arms could tell anything."""
    return {task for task, pair in pairs.items() if _chances(*pair)[1][-1] < ALPHA / 2}


def _chances(old: Tried, new: Tried) -> tuple[int, list[float]]:
    """The fewest of a task's bad attempts that can be of `new`, and how likely so many and each number above are."""
    bad = old.bad + new.bad
    fewest, most = max(0, bad - old.scored), min(new.scored, bad)
    ways = comb(old.scored + new.scored, bad)
    return fewest, [comb(new.scored, count) * comb(old.scored, bad - count) / ways for count in range(fewest, most + 1)]


def _could_fail(pairs: Pairs, unknown: Collection[int]) -> bool:
    """Whether the candidate might fail, were every attempt scored: at worst, all is good before and bad after that was
    not. A task counts soonest where only those stand beside it that tell something whatever the rest would be."""
    worst = {
        task: (Tried(old.attempts, old.bad), Tried(new.attempts, new.bad + new.unknown))
        for task, (old, new) in pairs.items()
    }
    if any(old.passed and new.bad for old, new in worst.values()) or more_often(worst) < ALPHA / 2:
        return True
    beside = _informative_tasks({task: pair for task, pair in pairs.items() if task not in unknown})
    return any(more_often({task: pair}) < ALPHA / 2 / len({*beside, task}) for task, pair in worst.items())


def _broken(before: Arm, after: Arm) -> list[int]:
    return [task for task, tried in after.items() if tried.bad and before.get(task, NOT_TRIED).passed]


def _bad(arm: Arm) -> str:
    return f"{sum(tried.bad for tried in arm.values())} of {sum(tried.scored for tried in arm.values())}"


def judge_mean(before: Arm, after: Arm, difference: Mapping[str, Any], fill: float, margin: float) -> Finding:
    """A general suite: the paired difference of success, candidate minus baseline, must lie above -margin with its
    whole interval. `fill` is the share of attempts that were scored, in the arm with fewer."""
    broken = _broken(before, after)
    found = {**_counts(before, after), "broken": broken}
    mean, low = difference["mean"], difference["low"]
    if mean is None:
        return Finding("not_shown", "nothing could be compared", **found)
    if fill < MIN_FILL:
        return Finding("not_shown", f"only {percent(fill, 1)} of the attempts were scored", **found)
    if mean <= -margin:
        return Finding("below", f"success fell by {_unsigned(-mean)}", **found)
    if low is None and difference["reason"] == NO_VARIANCE:
        return Finding("passed", "every task the same" if not mean else f"{points(mean)} on every task", **found)
    if low is None:
        return Finding("not_shown", difference["reason"] or "the interval is not known", **found)
    if low > -margin:
        return Finding("passed", f"success {points(mean)}, at worst {points(low)}", **found)
    return Finding("not_shown", f"success {points(mean)}, but it may have fallen by {_unsigned(-low)}", **found)


def _counts(before: Arm, after: Arm) -> dict[str, Any]:
    return {
        "tasks": len(before | after),
        "passed": sum(tried.passed is True for tried in after.values()),
        "before": sum(tried.passed is True for tried in before.values()),
    }


def _unsigned(share: float) -> str:
    return f"{100 * share:.1f} points"
