"""The reach of a paired eval: its spread taken apart, the least difference that it would show, the tasks it takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from flywheel.core.evidence.statistics.estimates import Array, Clusters, Codes, Scores, complete


@dataclass(frozen=True)
class Variance:
    """Components of the spread of a paired eval; the input to power calculations."""

    omega2: float
    """Variance of the true difference between tasks."""
    sigma2_baseline: float
    sigma2_candidate: float
    """Mean variance of one sample within a task."""
    k_baseline: float
    k_candidate: float
    """Samples per task."""
    design_effect: float = 1.0
    """By how much clustering inflates the variance: 1 + (m - 1) * ICC."""

    @property
    def per_task(self) -> float:
        """Variance that one task contributes to the mean difference (Miller 2024, arXiv 2411.00640)."""
        within = self.sigma2_baseline / self.k_baseline + self.sigma2_candidate / self.k_candidate
        return self.design_effect * (self.omega2 + within)


def variance_components(baseline: Sequence[Scores], candidate: Sequence[Scores], clusters: Clusters) -> Variance | None:
    """Split the spread of a paired eval into tasks, samples and clusters; None below two paired tasks.

    ``baseline[i]`` and ``candidate[i]`` are the sample scores of task i. ``sigma^2``: mean within-task
    variance (for yes/no scores ``K/(K-1) s (1-s)``); ``omega^2 = max(0, Var(d) - sigma_A^2/K_A -
    sigma_B^2/K_B)`` (Miller 2024); K the harmonic mean. Where K = 1 a sample's own noise cannot be told apart
    and stays in ``omega^2``. Design effect from the one-way ANOVA intraclass correlation of d, clipped at 0.
    """
    before = [[s for s in samples if s is not None] for samples in baseline]
    after = [[s for s in samples if s is not None] for samples in candidate]
    means = [[math.fsum(s) / len(s) if s else None for s in arm] for arm in (before, after)]
    (mean_before, mean_after), codes, _ = complete(means, clusters)
    if codes.size < 2:
        return None
    differences = mean_after - mean_before
    both = [i for i in range(len(before)) if before[i] and after[i]]
    sigma2_baseline, k_baseline = _within([before[i] for i in both])
    sigma2_candidate, k_candidate = _within([after[i] for i in both])
    between = float(differences.var(ddof=1)) - sigma2_baseline / k_baseline - sigma2_candidate / k_candidate
    effect = _design_effect(differences, codes)
    return Variance(max(0.0, between), sigma2_baseline, sigma2_candidate, k_baseline, k_candidate, effect)


def minimum_detectable(n: int, variance: Variance, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """Give the smallest true difference that ``n`` tasks would show with this ``power``, in the scores' unit.

    ``(z_{1-alpha/2} + z_power) sqrt(variance per task / n)`` (Miller 2024).
    Raises ValueError unless ``n >= 1``.
    """
    if n < 1:
        raise ValueError(f"{n} tasks can show nothing.")
    return _z_sum(alpha, power) * math.sqrt(variance.per_task / n)


def required_n(delta: float, variance: Variance, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Give the number of tasks needed to show a true difference ``delta``, rounded up (Miller 2024).

    Raises ValueError when ``delta`` is 0.
    """
    if delta == 0:
        raise ValueError("No number of tasks shows a difference of 0.")
    return max(1, math.ceil(_z_sum(alpha, power) ** 2 * variance.per_task / delta**2))


def _within(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean within-task variance over the tasks with two samples or more, and the harmonic mean of K."""
    variances = [float(np.var(s, ddof=1)) for s in samples if len(s) > 1]
    k = len(samples) / math.fsum(1 / len(s) for s in samples)
    return (math.fsum(variances) / len(variances) if variances else 0.0), k


def _design_effect(values: Array, codes: Codes) -> float:
    sizes = np.bincount(codes).astype(np.float64)
    n, count = values.size, sizes.size
    if count < 2 or count == n:
        return 1.0
    means = np.bincount(codes, values) / sizes
    between = float(sizes @ (means - values.mean()) ** 2) / (count - 1)
    within = float(((values - means[codes]) ** 2).sum()) / (n - count)
    m0 = (n - float(sizes @ sizes) / n) / (count - 1)
    spread = between + (m0 - 1) * within
    icc = max(0.0, (between - within) / spread) if spread > 0 else 0.0
    return 1 + (float(sizes @ sizes) / n - 1) * icc


def _z_sum(alpha: float, power: float) -> float:
    return float(special.ndtri(1 - alpha / 2) + special.ndtri(power))
