"""Who let it through: gate policies, candidates with their evidence, and the append-only log of promotions."""

from flywheel.promotions.models.candidates import Candidate, Harmless
from flywheel.promotions.models.policies import Policy
from flywheel.promotions.models.promotions import LateReason, Promotion

__all__ = ["Candidate", "Harmless", "LateReason", "Policy", "Promotion"]
