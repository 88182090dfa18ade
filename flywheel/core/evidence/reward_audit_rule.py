"""May this reward be trained on? What people and a verifier said of the same outputs, and the rule that opens a launch.

A person judges outputs without seeing the verdict. Two of three the verifier passed, as far as there are as many: where
a policy mostly fails, outputs drawn as they come would hardly show one pass, and a wrong pass is what training seeks
out and repeats. So all numbers here are those of that sample, not of production.

    spread(attempts, …) draw(groups, …)    which outputs, and in which order
    examine(judgements, …)                 what came of it, in all audits of one reward; `is_green` by `Rule`

Why these numbers: docs/design/reward-audit.md.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.evidence.statistics.exact_tests import anytime_upper
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.text.number_words import percent

T = TypeVar("T")

LEAST, MOST = 50, 100
"""Outputs in one audit."""
SHARES = (2, 1)
"""Of these, as many parts the verifier passed, and failed."""
VERIFIER = "the verifier"
REVISION = 2
"""Of the rule, kept with each finding. The first looked at one audit alone, and let through one verifier in four that
is wrong in one pass of ten."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When an audit is green."""

    judged: int = LEAST
    failed: int = 10
    """Judged outputs that the verifier failed."""
    sources: int = 10
    """Source clusters that the judged outputs come from: the intervals take outputs for independent."""
    agreement: float = 0.8
    """That the lower end of the interval of agreement must reach."""
    false_passes: float = 0.1
    """Most of what the verifier passes that may be wrong, by the upper bound, which holds at every look."""
    unscored: float = 0.1
    """Most of the attempts that the verifier may have left without a score."""


RULE = Rule()
RENEWAL = Rule(judged=24, failed=4, sources=6, agreement=0.65, false_passes=0.2)
"""Of a small audit, where a policy has moved on from one whose audit under the same verifier is green: enough to see
that wrong passes have not doubled. 14 passes that people pass too bound them so."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One output: what the verifier said, and what a person said who did not know that."""

    verdict: bool
    person: bool | None
    """None: could not tell."""
    source: Hashable
    """The cluster of its task."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The findings of an audit."""

    agreement: Estimate
    kappa: Estimate
    """Agreement beyond chance; without a mean where it is undefined, with the reason."""
    false_passes: Estimate
    """Share of what the verifier passed that people failed, with a one-sided bound that holds at every look."""
    false_failures: Estimate
    """Share of what it failed that people passed."""
    cannot_tell: int
    unscored: int
    """Attempts that were answered and that the verifier gave no score: nobody can agree with what was not said."""
    attempts: int
    """Attempts that were answered."""
    sources: int
    audits: int
    """So many audits of the same reward together, so that none can be drawn again until one is green."""
    rule: int
    """``REVISION`` of the rule that it was judged by."""
    faults: list[str]
    """Why it is not green, each a sentence without its full stop."""

    @property
    def is_green(self) -> bool:
        return not self.faults

    @property
    def judged(self) -> int:
        return self.agreement.n


def share_of_passes(size: int) -> int:
    """Count the passes among so many outputs, where there are enough of both."""
    return size * SHARES[0] // sum(SHARES)


def draw(passed: Iterable[T], failed: Iterable[T], size: int, seed: int) -> list[T]:
    """So many of both together: of each its part by ``SHARES``, more where the other has too few, in a mixed order."""
    held = [list(islice(group, size)) for group in (passed, failed)]
    shares = [0, 0]
    while sum(shares) < size and any(share < len(group) for share, group in zip(shares, held, strict=True)):
        open_ = [at for at, group in enumerate(held) if shares[at] < len(group)]
        shares[min(open_, key=lambda at: shares[at] / SHARES[at])] += 1
    chosen = [each for share, group in zip(shares, held, strict=True) for each in group[:share]]
    # By what was drawn too: the same pattern of passes in every audit of a seed would be known after the first.
    Random(f"{seed} {chosen}").shuffle(chosen)
    return chosen


def spread(attempts: Iterable[T], task_of: Callable[[T], Hashable], seed: int) -> Iterator[T]:
    """The attempts in a random order in which every task comes once before any comes twice."""
    random = Random(seed)
    by_task: dict[Hashable, list[T]] = {}
    for attempt in attempts:
        by_task.setdefault(task_of(attempt), []).append(attempt)
    rows = list(by_task.values())
    random.shuffle(rows)
    for row in rows:
        random.shuffle(row)
    for place in range(max(map(len, rows), default=0)):
        yield from (row[place] for row in rows if place < len(row))


def examine(
    judgements: Sequence[Judgement],
    *,
    unscored: int,
    attempts: int,
    audits: int = 1,
    rule: Rule = RULE,
    judge: str = VERIFIER,
) -> Finding:
    """Measure how far people and verifier agree, over all audits of one reward, and say whether that is enough. `judge`
    is what the faults call the verifier, or the reward recipe that judged instead."""
    told = [each for each in judgements if each.person is not None]
    agreement = _share([each.person == each.verdict for each in told])
    kappa = cohen_kappa([each.person for each in told], [each.verdict for each in told])
    false_passes = _bounded([not each.person for each in told if each.verdict])
    false_failures = _share([bool(each.person) for each in told if not each.verdict])
    sources = len({each.source for each in told})
    return Finding(
        agreement=agreement,
        kappa=kappa,
        false_passes=false_passes,
        false_failures=false_failures,
        cannot_tell=len(judgements) - len(told),
        unscored=unscored,
        attempts=attempts,
        sources=sources,
        audits=audits,
        rule=REVISION,
        faults=[
            *_too_little(agreement, false_failures, sources, rule, judge),
            *_too_bad(agreement, false_passes, unscored, attempts, rule, judge),
        ],
    )


def _share(said: Sequence[bool]) -> Estimate:
    return proportion(sum(said), len(said))


def _bounded(wrong: Sequence[bool]) -> Estimate:
    events, n = sum(wrong), len(wrong)
    if not n:
        return proportion(0, 0)
    method = "upper bound that holds at every look"
    return Estimate(events / n, 0.0, anytime_upper(events, n), n, 0, None, method)


def clean_passes(wrong: int, n: int, limit: float) -> int:
    """Count how many more passes that people pass too would bound the share of wrong ones at ``limit``."""
    enough = range(int(10 * (wrong + 5) / limit))
    return bisect_left(enough, True, key=lambda more: anytime_upper(wrong, n + more) <= limit)


def _too_little(agreement: Estimate, false_failures: Estimate, sources: int, rule: Rule, judge: str) -> Iterator[str]:
    if agreement.n < rule.judged:
        yield f"{agreement.n} outputs were judged; at least {rule.judged} are needed"
    if false_failures.n < rule.failed:
        yield f"{judge} failed {false_failures.n} of the judged outputs; at least {rule.failed} are needed"
    if sources < rule.sources:
        yield f"the judged outputs come from {sources} sources; at least {rule.sources} are needed"


def _too_bad(
    agreement: Estimate, false_passes: Estimate, unscored: int, attempts: int, rule: Rule, judge: str
) -> Iterator[str]:
    if agreement.mean is not None and agreement.low is not None and agreement.low < rule.agreement:
        yield (
            f"agreement is {percent(agreement.mean)}, but may be as low as {percent(agreement.low)}; "
            f"at least {percent(rule.agreement)} must be shown"
        )
    wrong, passes = round((false_passes.mean or 0) * false_passes.n), false_passes.n
    high = 1.0 if false_passes.high is None else false_passes.high
    if high > rule.false_passes:
        more = clean_passes(wrong, passes, rule.false_passes)
        yield (
            f"people failed {wrong} of {passes} outputs that {judge} passed, so that up to {percent(high, 1)} of "
            f"what it passes may be wrong, which training would learn to make; at most {percent(rule.false_passes)} "
            f"must be shown, by {more} more that people pass too"
        )
    if attempts and unscored > rule.unscored * attempts:
        yield f"{unscored} of {attempts} answered attempts have no score; {percent(rule.unscored)} at most may lack one"
