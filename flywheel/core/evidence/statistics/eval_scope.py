"""The scope of an eval, as a plan takes it: tasks by their sources, attempts, and what the baseline is like."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from flywheel.core.evidence.statistics.eval_metrics import METRICS, Row, Value, clusters_of, task_means, task_samples
from flywheel.core.evidence.statistics.power import Variance, variance_components

SAMPLES, BASELINE_SAMPLES = 4, 16
"""Attempts at each task unless somebody says otherwise: of most versions, and of a baseline, which is asked once and
compared with every candidate. 16 beside 4 add 5/8 of the variance to each gain that 4 beside 4 do."""
KEPT: Final = 0.5
"""Correlation of the two arms' chances, task by task. Question scores of related models correlate at 0.3 to 0.7 (Miller
2024); 0 would be two strangers, 1 the same agent made better everywhere alike."""


@dataclass(frozen=True, slots=True)
class Part:
    """The tasks of one split and how they spread over their sources; fractions only where a plan is scaled."""

    tasks: float
    sources: float
    effective: float
    """How many sources of equal size would tell as much (Kish 1965)."""

    @classmethod
    def of(cls, sizes: Collection[int]) -> "Part":
        """The part whose sources have so many tasks each. Raises ValueError for a source without tasks."""
        if any(size < 1 for size in sizes):
            raise ValueError("A source has one task at least.")
        tasks = sum(sizes)
        return cls(tasks, len(sizes), tasks**2 / sum(size**2 for size in sizes) if sizes else 0.0)

    def scaled(self, factor: float) -> "Part":
        """So many times the tasks, from sources like these."""
        return Part(self.tasks * factor, self.sources * factor, self.effective * factor)


@dataclass(frozen=True, slots=True)
class Rates:
    """The results of the baseline; the candidate's are taken to be alike. Defaults are for planning."""

    success: float = 0.5
    """Share of attempts, 0 to 1; a half is where success varies most."""
    icc: float = 0.3
    """Part of the spread of success that lies between tasks; the rest is chance from attempt to attempt. More than the
    simulation of the gate has (0.18), so that plans are careful."""
    shared: float = 0.1
    """Correlation of differences within a source."""
    kept: float = KEPT
    invalid: float | None = 0.03
    """Share of attempts whose output cannot be parsed, as is usual for small models; None = not measured."""
    unsafe: float | None = 0.005
    """Share of attempts with a side effect; None = not measured."""
    latency: float | None = 0.5
    """Standard deviation of the logarithm of an attempt's time, within a task; None = not measured."""
    cost: float | None = 0.5
    """The same of what an attempt costs."""

    def __post_init__(self) -> None:
        for name in ("success", "icc", "shared", "kept", "invalid", "unsafe"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {value!r}.")
        for name in ("latency", "cost"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {value!r}.")

    def variance(self, gain: float, samples: tuple[int, int], part: Part) -> Variance:
        """Components of the spread of the difference, for a candidate that is truly better by so much; ``samples`` are
        the attempts of the baseline and of the candidate at each task."""
        rates = self.success, min(1.0, self.success + gain)
        spreads = [rate * (1 - rate) for rate in rates]
        between = [spread * self.icc for spread in spreads]
        omega2 = max(0.0, sum(between) - 2 * self.kept * math.sqrt(between[0] * between[1]))
        within = [spread * (1 - self.icc) for spread in spreads]
        per_source = part.tasks / part.effective
        return Variance(omega2, within[0], within[1], *samples, 1 + (per_source - 1) * self.shared)


def rates_of(rows: Sequence[Row]) -> Rates:
    """Read the rates off the baseline's attempts; planning defaults stand where they cannot tell."""
    known = Rates()
    value = METRICS["success"].value
    cluster, samples = clusters_of(rows), task_samples(rows, value)
    sizes = Part.of(Counter(cluster.values()).values())
    # Against an arm that never varies, the difference has this arm's spread, split into its parts.
    nothing = [[0.0] * len(each) for each in samples.values()]
    one = variance_components([*samples.values()], nothing, [cluster[task] for task in samples])
    found: dict[str, float] = {}
    if one is not None and one.omega2 + one.sigma2_baseline > 0 and one.k_baseline > 1:
        found["icc"] = one.omega2 / (one.omega2 + one.sigma2_baseline)
    if one is not None and sizes.tasks > sizes.effective and one.omega2 + one.sigma2_baseline > 0:
        found["shared"] = min(1.0, (one.design_effect - 1) / (sizes.tasks / sizes.effective - 1))
    success = _mean_of(rows, value)
    valid = _mean_of(rows, METRICS["valid_output"].value)
    return replace(
        known,
        **found,
        success=known.success if success is None else success,
        invalid=None if valid is None else 1 - valid,
        unsafe=_mean_of(rows, METRICS["unsafe"].value),
        latency=_spread_of_logs(rows, METRICS["latency_p50_ms"].value, known.latency),
        cost=_spread_of_logs(rows, METRICS["cost_usd"].value, known.cost),
    )


def _mean_of(rows: Sequence[Row], value: Value) -> float | None:
    """The mean over tasks, as the gate weighs them; None where nothing was measured."""
    means = [mean for mean in task_means(rows, value).values() if mean is not None]
    return math.fsum(means) / len(means) if means else None


def _spread_of_logs(rows: Sequence[Row], value: Value, unknown: float | None) -> float | None:
    """The standard deviation of logarithms within tasks; None where nothing was measured, ``unknown`` where no task
    was attempted twice."""
    logs = [[math.log(x) for x in each if x] for each in task_samples(rows, value).values()]
    spreads = [float(np.var(each, ddof=1)) for each in logs if len(each) > 1]
    if not any(logs):
        return None
    return math.sqrt(math.fsum(spreads) / len(spreads)) if spreads else unknown


@dataclass(frozen=True, slots=True)
class Scope:
    """The reach of an eval: tasks by their sources, attempts, and what is known of the baseline."""

    held_out: Part
    samples: tuple[int, int]
    """Attempts of the baseline and of the candidate at each task."""
    sealed: Part = Part(0, 0, 0)
    """Without tasks where the set has no sealed part."""
    slices: Mapping[str, Part] = field(default_factory=dict)
    """Of the held-out tasks."""
    rates: Rates = Rates()
    opening: int = 1
    """Which opening of the sealed part this is, or without one which verdict on these held-out tasks."""

    def __post_init__(self) -> None:
        if min(self.samples) < 1:
            raise ValueError(f"{min(self.samples)} samples a task can show nothing.")
        if self.held_out.tasks < 1:
            raise ValueError("Without held-out tasks nothing can be shown.")

    def scaled(self, factor: float) -> "Scope":
        """So many times the tasks of each part, from sources like these."""
        slices = {name: part.scaled(factor) for name, part in self.slices.items()}
        return replace(self, held_out=self.held_out.scaled(factor), sealed=self.sealed.scaled(factor), slices=slices)
