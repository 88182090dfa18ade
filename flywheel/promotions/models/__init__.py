"""Who let it through: gate policies, candidates with their evidence, ramps, and the append-only log of
promotions."""

from flywheel.promotions.models.candidates import Candidate, Harmless
from flywheel.promotions.models.policies import Policy
from flywheel.promotions.models.promotions import LateReason, Promotion
from flywheel.promotions.models.ramps import Ramp, RampChange, SelfTest, ShadowVerdict
from flywheel.promotions.models.watches import Watch, WatchedSession

__all__ = [
    "Candidate",
    "Harmless",
    "LateReason",
    "Policy",
    "Promotion",
    "Ramp",
    "RampChange",
    "SelfTest",
    "ShadowVerdict",
    "Watch",
    "WatchedSession",
]
