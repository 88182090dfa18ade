"""The harm that a stage would have caught: said before it begins, and after it found nothing.

In the logarithm the wealth of a bet (`arm_bets`) walks with a steady drift, so that its first passage of a bound is
that of Brownian motion (inverse Gaussian; Wald 1947). With drift g and variance v a session, the bound b is reached
within n sessions with a chance of

    Phi((n g - b) / sqrt(n v)) + exp(2 g b / v) Phi(-(n g + b) / sqrt(n v))

b is the logarithm of 1/alpha, and of the number of bets that share the wealth, less what those beside the best one add.
"""

import math

from scipy.special import log_ndtr, ndtr

from flywheel.core.evidence.statistics.sequential.arm_bets import WORSE

_BESIDE = 0.6
"""By how much, as a logarithm, the other bets lift the wealth above that of the best alone; from simulation."""
_HALVINGS = 24


def chance_of_catching(harm: float, *, share: float, sessions: int, rate: float, alpha: float) -> float:
    """Return the chance that a candidate is taken back within so many final sessions of both arms, if it fails more
    often by `harm` than the live version, which fails at `rate`.

    Raises ValueError where the two are not rates together, or share or alpha do not lie between 0 and 1.
    """
    if not (0 < share < 1 and 0 < alpha < 1):
        raise ValueError(f"share and alpha lie between 0 and 1, not at {share} and {alpha}")
    if not (0 < rate < 1 and harm >= 0 and rate + harm <= 1):
        raise ValueError(f"a rate from {rate} to {rate + harm} cannot be")
    bound = math.log(len(WORSE) / alpha) - _BESIDE
    drift, variance = max(_walk(bet, harm, share, rate) for bet in WORSE)
    if sessions < 1 or drift <= 0:
        return 0.0
    spread = math.sqrt(sessions * variance)
    late = 2 * drift * bound / variance + log_ndtr(-(sessions * drift + bound) / spread)
    return min(1.0, float(ndtr((sessions * drift - bound) / spread) + math.exp(late)))


def least_harm(*, share: float, sessions: int, rate: float, alpha: float, power: float = 0.8) -> float | None:
    """Return the smallest harm that would be caught with a chance of `power`; None where even failing always would not.

    Raises ValueError as `chance_of_catching` does.
    """

    def is_caught(harm: float) -> bool:
        found = chance_of_catching(harm, share=share, sessions=sessions, rate=rate, alpha=alpha)
        return found >= power

    low, high = 0.0, 1.0 - rate
    if not is_caught(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_caught(middle) else (middle, high)
    return high


def _walk(bet: float, harm: float, share: float, rate: float) -> tuple[float, float]:
    """Mean and variance of the logarithm of a session's factor, for a bet on one difference."""
    d = min(bet, 0.999 - rate)
    chance = rate + share * d
    mean = square = 0.0
    for arm, of_arm, fails in ((1, share, rate + harm), (0, 1 - share, rate)):
        for of_result, factor in (
            (fails, 1 + d / chance * (arm - share)),
            (1 - fails, 1 - d / (1 - chance) * (arm - share)),
        ):
            mean += of_arm * of_result * math.log(factor)
            square += of_arm * of_result * math.log(factor) ** 2
    return mean, square - mean**2
