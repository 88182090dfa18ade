"""Eval runs with their attempts and results, comparisons of two, old rollouts judged again, and audits of rewards."""

from flywheel.evals.models.comparisons import Comparison
from flywheel.evals.models.program_attempts import ProgramAttempt
from flywheel.evals.models.rescores import Rescore, Rescored, RescoreEvent
from flywheel.evals.models.reward_audits import AuditOverride, RewardAudit, RewardAuditItem
from flywheel.evals.models.runs import Engine, EvalEvent, EvalRun, Result

__all__ = [
    "AuditOverride", "Comparison", "Engine", "EvalEvent", "EvalRun", "ProgramAttempt", "Rescore",
    "RescoreEvent", "Rescored", "Result", "RewardAudit", "RewardAuditItem",
]  # fmt: skip
