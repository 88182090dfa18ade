"""Are the arms as large as was promised? Where they are not, something other than the coin decides, and nothing holds.

While the share stays the same, the number of sessions in the candidate's arm is compared with what a beta prior around
the share expects (Lindon and Malek 2020, arXiv 2011.03567): the ratio of the two likelihoods is a martingale while the
coin is as promised. Over the stages of a ramp they are multiplied.
"""

from collections.abc import Iterable

from scipy.special import betaln, xlogy

PRIOR = 200.0
"""Sessions that the prior weighs: how far from the share the arms are thought to be, if they are not as promised."""


def share_log_wealth(stages: Iterable[tuple[float, int, int]]) -> float:
    """Return the logarithm of the wealth against "every session was put by its share", of `(share, candidate, live)`
    sessions for each stage. Raises ValueError for a share that is not between 0 and 1."""
    found = 0.0
    for share, candidate, live in stages:
        if not 0 < share < 1:
            raise ValueError(f"a share lies between 0 and 1, not at {share}")
        a, b = PRIOR * share, PRIOR * (1 - share)
        found += float(
            betaln(a + candidate, b + live) - betaln(a, b) - xlogy(candidate, share) - xlogy(live, 1 - share)
        )
    return found
