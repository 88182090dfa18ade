"""May this reward be trained on? What people and a verifier said of the same outputs, and the rule that opens a launch.

A person judges outputs without seeing the verdict. Half of them the verifier passed and half it failed, as far as there
are as many: where a policy mostly fails, outputs drawn as they come would hardly show one pass, and a wrong pass is
what training seeks out and repeats. So all numbers here are those of that balanced sample, not of production.

    spread(attempts, …) draw(groups, …)    which outputs, and in which order
    examine(judgements, …)                 what came of it; `is_green` by `Rule`

Why these numbers: docs/design/reward-audit.md.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TypeVar

from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.core.evidence.statistics.reviewer_agreement import cohen_kappa
from flywheel.core.text.number_words import percent

T = TypeVar("T")

LEAST, MOST = 50, 100
"""Outputs in one audit."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When an audit is green."""

    judged: int = LEAST
    of_each: int = 10
    """Judged outputs that the verifier passed, and that it failed."""
    sources: int = 10
    """Source clusters that the judged outputs come from: the intervals take outputs for independent."""
    agreement: float = 0.8
    """That the lower end of the interval of agreement must reach."""
    false_passes: float = 0.05
    """Most of what the verifier passed that people may have failed."""
    unscored: float = 0.1
    """Most of the attempts that the verifier may have left without a score."""


RULE = Rule()


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
    """Share of what the verifier passed that people failed."""
    false_failures: Estimate
    """Share of what it failed that people passed."""
    cannot_tell: int
    unscored: int
    """Attempts that were answered and that the verifier gave no score: nobody can agree with what was not said."""
    attempts: int
    """Attempts that were answered."""
    sources: int
    faults: list[str]
    """Why it is not green, each a sentence without its full stop."""

    @property
    def is_green(self) -> bool:
        return not self.faults

    @property
    def judged(self) -> int:
        return self.agreement.n


def draw(groups: Iterable[Iterable[T]], size: int, seed: int) -> list[T]:
    """So many of the groups together: of each the same number, more where another has too few, in a mixed order."""
    held = [list(islice(group, size)) for group in groups]
    shares = [0] * len(held)
    while sum(shares) < size and any(share < len(group) for share, group in zip(shares, held, strict=True)):
        open_ = [at for at, group in enumerate(held) if shares[at] < len(group)]
        shares[min(open_, key=lambda at: shares[at])] += 1
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


def examine(judgements: Sequence[Judgement], *, unscored: int, attempts: int, rule: Rule = RULE) -> Finding:
    """Measure how far people and verifier agree, and say whether that is enough."""
    told = [each for each in judgements if each.person is not None]
    agreement = _share([each.person == each.verdict for each in told])
    kappa = cohen_kappa([each.person for each in told], [each.verdict for each in told])
    false_passes = _share([not each.person for each in told if each.verdict])
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
        faults=[
            *_too_little(agreement, false_passes, false_failures, sources, rule),
            *_too_bad(agreement, false_passes, unscored, attempts, rule),
        ],
    )


def _share(said: Sequence[bool]) -> Estimate:
    return proportion(sum(said), len(said))


def _too_little(
    agreement: Estimate, false_passes: Estimate, false_failures: Estimate, sources: int, rule: Rule
) -> Iterator[str]:
    if agreement.n < rule.judged:
        yield f"{agreement.n} outputs were judged; at least {rule.judged} are needed"
    for estimate, what in ((false_passes, "passed"), (false_failures, "failed")):
        if estimate.n < rule.of_each:
            yield f"the verifier {what} {estimate.n} of the judged outputs; at least {rule.of_each} are needed"
    if sources < rule.sources:
        yield f"the judged outputs come from {sources} sources; at least {rule.sources} are needed"


def _too_bad(agreement: Estimate, false_passes: Estimate, unscored: int, attempts: int, rule: Rule) -> Iterator[str]:
    if agreement.mean is not None and agreement.low is not None and agreement.low < rule.agreement:
        yield (
            f"agreement is {percent(agreement.mean)}, but may be as low as {percent(agreement.low)}; "
            f"at least {percent(rule.agreement)} must be shown"
        )
    if false_passes.mean is not None and false_passes.mean > rule.false_passes:
        yield (
            f"people failed {percent(false_passes.mean)} of what the verifier passed; "
            f"{percent(rule.false_passes)} at most may be, for that is what training would learn to make"
        )
    if attempts and unscored > rule.unscored * attempts:
        yield f"{unscored} of {attempts} answered attempts have no score; {percent(rule.unscored)} at most may lack one"
