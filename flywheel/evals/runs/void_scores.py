"""Scores that a canary made void: a judge that is talked round once may have been talked round at any attempt.

The run ends as failed, so that nothing is compared, trained or promoted on it; what its judge had said becomes
unscored. The rollouts stay, and another verifier may judge them (`run_rescores.py`).
"""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from flywheel.core.verifiers import Verdict
from flywheel.environments.proofs.judge_endpoints import is_touched, voided
from flywheel.evals.models import Result
from flywheel.trajectories.models import Trajectory

AT_ONCE = 500
_WRITTEN = ("score", "success", "parts", "reason", "cause")


def void_of(report: Mapping[str, Any]) -> dict[str, str]:
    """Find the parts in a run's `judges` whose scores do not count, and why."""
    return {name: row["void"] for name, row in report.items() if row.get("void")}


def unscore(rows: QuerySet[Any], report: Mapping[str, Any]) -> None:
    """Take back what void judges said in these results or rescored ones; in the transaction that notes the void."""
    void = void_of(report)
    if not void:
        return
    said = rows.filter(parts__has_any_keys=list(void)).exclude(cause="canary")
    touched = [row for row in said.iterator(AT_ONCE) if is_touched(row.parts, void)]
    for row in touched:
        verdict = voided(Verdict(row.score, row.reason, row.parts, row.cause), void)
        row.score = row.success = None
        row.parts, row.reason, row.cause = dict(verdict.parts), verdict.reason, verdict.cause
        if isinstance(row, Result):
            row.error = verdict.reason
    fields = [*_WRITTEN, "error"] if rows.model is Result else list(_WRITTEN)
    rows.model._default_manager.bulk_update(touched, fields, batch_size=AT_ONCE)
    names = [row.trajectory_id for row in touched if isinstance(row, Result) and row.trajectory_id]
    Trajectory.objects.filter(pk__in=names).update(outcome=None)
