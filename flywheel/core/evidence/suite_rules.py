"""Regression suites: what a candidate must not lose, judged task by task or by the mean.

A task *passes* when every attempt at it does, *fails* when one does not, and is *not scored* when neither can be said.
Nothing that was not scored counts as passed, nor as failed: a suite with such tasks shows nothing yet.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flywheel.core.evidence.gate.decision import Policy
from flywheel.core.evidence.statistics.estimates import NO_VARIANCE
from flywheel.core.evidence.statistics.exact_tests import Tried, chances, more_often
from flywheel.core.text.number_words import n_tasks, percent, points

State = Literal["passed", "cannot_tell", "below", "not_shown"]


Arm = dict[int, Tried]
"""What came of each task."""
Pairs = Mapping[int, tuple[Tried, Tried]]
"""Of each task what came of it before and after."""

MIN_FILL: Final = Policy.min_fill
"""Share of a general suite's attempts that must be scored in each arm, as the gate asks of the comparison."""
ALPHA: Final = 0.05
"""How likely chance alone may stop an unchanged candidate at any of its suites, which share it; in a safety suite half
of its share for single tasks and half for all together."""
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


def judge_no_break(before: Arm, after: Arm, *, alpha: float = ALPHA, is_greedy: bool = False) -> Finding:
    """A safety suite in which no task may get worse.

    One counts against the candidate when its share of bad attempts is significantly greater than the baseline's, so
    more attempts guard more; and where neither arm draws anything at random (`is_greedy`), also when the baseline
    passed every attempt and the candidate fails one. The attempts at all tasks together must not be bad significantly
    more often either. What no number of bad attempts would show is not guarded; where that is everything, nothing is
    shown. Why so: `docs/design/regression-suites.md`.
    """
    pairs = {task: (before.get(task, NOT_TRIED), after.get(task, NOT_TRIED)) for task in before | after}
    broken = _broken(before, after)
    counted = broken if is_greedy else []
    worse = [task for task in worse_of(pairs, alpha) if task not in counted]
    is_worse = more_often(pairs.values()) < alpha / 2
    rose = [task for task, (old, new) in pairs.items() if new.bad * old.scored > old.bad * new.scored]
    listed = rose if is_worse and not (counted or worse) else [*counted, *worse]
    found = {**_counts(before, after), "failed": listed, "broken": broken}
    if counted or worse or is_worse:
        said = [f"{n_tasks(len(counted))} newly failed"] if counted else []
        said += [f"{n_tasks(len(worse))} failed significantly more often"] if worse else []
        said = said or [f"{_bad(after)} attempts failed, {_bad(before)} before: significantly more"]
        return Finding("below", ", ".join(said), **found)
    unknown = [task for task, (old, new) in pairs.items() if old.unknown or new.unknown]
    all_bad = [(old, Tried(new.attempts, new.attempts)) for old, new in pairs.values()]
    is_tested = more_often(all_bad) < alpha / 2
    is_unseen = not is_tested and any(old.passed and not new.scored for old, new in pairs.values())
    if is_unseen or (unknown and _could_fail(pairs, unknown, alpha, is_greedy=is_greedy)):
        return Finding("not_shown", f"{n_tasks(len(unknown))} could not be scored in every attempt", **found)
    words = [f"all {found['before']} that passed before pass still"] if found["before"] and not broken else []
    words += [f"{n_tasks(len(broken))} newly failed, as chance may have it"] if broken else []
    words += ["none failed significantly more often"] if is_tested else []
    if not is_tested and not (is_greedy and found["before"]):
        if not found["before"]:
            return Finding("not_shown", "nothing passed before, so nothing is guarded", **found)
        return Finding("cannot_tell", ", ".join([*words, "more attempts at each task would show more"]), **found)
    return Finding("passed", ", ".join(words), **found)


def worse_of(pairs: Pairs, alpha: float = ALPHA) -> list[int]:
    """The tasks whose attempts were bad significantly more often after, each told from chance as one of many: Holm's
    method, over those of which so many bad attempts in both arms could tell anything."""
    likely = sorted((more_often([pairs[task]]), task) for task in _informative_tasks(pairs, alpha))
    for place, (chance, _) in enumerate(likely):
        if chance >= alpha / 2 / (len(likely) - place):
            return [task for _, task in likely[:place]]
    return [task for _, task in likely]


def _informative_tasks(pairs: Pairs, alpha: float) -> set[int]:
    """The tasks of which so many bad attempts in both arms could tell anything."""
    return {task for task, pair in pairs.items() if chances(*pair)[1][-1] < alpha / 2}


def _could_fail(pairs: Pairs, unknown: Collection[int], alpha: float, *, is_greedy: bool) -> bool:
    """Whether the candidate might fail, were every attempt scored: at worst, all is good before and bad after that was
    not. A task counts soonest where only those stand beside it that tell something whatever the rest would be."""
    worst = {
        task: (Tried(old.attempts, old.bad), Tried(new.attempts, new.bad + new.unknown))
        for task, (old, new) in pairs.items()
    }
    if is_greedy and any(old.passed and new.bad for old, new in worst.values()):
        return True
    if more_often(worst.values()) < alpha / 2:
        return True
    beside = _informative_tasks({task: pair for task, pair in pairs.items() if task not in unknown}, alpha)
    return any(more_often([pair]) < alpha / 2 / len({*beside, task}) for task, pair in worst.items())


def _broken(before: Arm, after: Arm) -> list[int]:
    return [task for task, tried in after.items() if tried.bad and before.get(task, NOT_TRIED).passed]


def _bad(arm: Arm) -> str:
    return f"{sum(tried.bad for tried in arm.values())} of {sum(tried.scored for tried in arm.values())}"


def judge_mean(
    before: Arm, after: Arm, difference: Mapping[str, Any], fill: float, margin: float, *, alpha: float = ALPHA
) -> Finding:
    """A general suite: success must not be shown to have fallen, unless by less than the margin. It is passed where the
    whole interval of the paired difference, candidate minus baseline, lies above -margin; where a fall is neither shown
    nor ruled out, it cannot tell, which stops nobody. `fill` is the share of attempts that were scored, in the arm with
    fewer."""
    broken = _broken(before, after)
    found = {**_counts(before, after), "broken": broken}
    mean, low = difference["mean"], difference["low"]
    if mean is None:
        return Finding("not_shown", "nothing could be compared", **found)
    if fill < MIN_FILL:
        return Finding("not_shown", f"only {percent(fill, 1)} of the attempts were scored", **found)
    if low is None and difference["reason"] == NO_VARIANCE:
        if mean <= -margin:
            return Finding("below", f"success fell by {_unsigned(-mean)} on every task", **found)
        return Finding("passed", "every task the same" if not mean else f"{points(mean)} on every task", **found)
    if low is None:
        return Finding("not_shown", difference["reason"] or "the interval is not known", **found)
    if low > -margin:
        return Finding("passed", f"success {points(mean)}, at worst {points(low)}", **found)
    if mean < 0 and (difference["p"] or 1.0) / 2 <= alpha:
        return Finding("below", f"success fell by {_unsigned(-mean)}, more than chance explains", **found)
    return Finding("cannot_tell", f"success {points(mean)}; it may have fallen by {_unsigned(-low)}", **found)


def _counts(before: Arm, after: Arm) -> dict[str, Any]:
    return {
        "tasks": len(before | after),
        "passed": sum(tried.passed is True for tried in after.values()),
        "before": sum(tried.passed is True for tried in before.values()),
    }


def _unsigned(share: float) -> str:
    return f"{100 * share:.1f} points"
