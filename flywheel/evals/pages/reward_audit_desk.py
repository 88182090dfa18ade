"""Contexts of a reward audit's pages: the desk, which keeps the verdicts to itself, and the result."""

from typing import Any

from django.db.models import Count

from flywheel.accounts.actors import Actor
from flywheel.core.evidence.reward_audit_rule import REVISION, RULE
from flywheel.evals.models import RewardAudit, RewardAuditItem
from flywheel.evals.reward_audits.audit_lifecycle import Answer, verdicts_on_answers
from flywheel.evals.reward_audits.learnable_tasks import solve_rates
from flywheel.evals.reward_audits.reward_standing import Judged, audit_sentence, audits_of, standing
from flywheel.failures.pages.desk.conversation_window import view_of

LISTED = 200
"""Tasks that are listed."""


def desk(audit: RewardAudit, actor: Actor, *, place: int = 0, after: int = 0, notice: str = "") -> dict[str, Any]:
    """One output with everything but its verdict: the one at `place`, else the next that waits after `after`."""
    items = list(audit.items.all())
    waiting = [item for item in items if not item.answer]
    at = next((item for item in items if item.place == place), None)
    at = at or next((item for item in waiting if item.place > after), waiting[0] if waiting else None)
    mine = [item for item in items if item.judged_by_id == actor.user.pk and item.judged_at]
    context: dict[str, Any] = {
        "audit": audit,
        "run": audit.run,
        "reward": Judged.of_audit(audit),
        "items": items,
        "judged": len(items) - len(waiting),
        "left": len(waiting),
        "last": max(mine, key=lambda item: (item.judged_at, item.place), default=None),
        "notice": notice,
        "at": None,
    }
    if at is None:
        return context
    item = audit.items.select_related("result__task__environment", "result__trajectory__project", "judged_by").get(
        pk=at.pk
    )
    trajectory = item.result.trajectory
    return context | {
        "at": item,
        "task": item.result.task,
        "may_judge": not item.answer or item.judged_by_id == actor.user.pk,
        "view": view_of(trajectory, "") if trajectory else None,
        "previous": next((each for each in reversed(items) if each.place < item.place), None),
        "next": next((each for each in items if each.place > item.place), None),
    }


def result(audit: RewardAudit) -> dict[str, Any]:
    """A finished audit: the verdict, where people and verifier differ in all that counts, tasks that cannot teach."""
    is_old = audit.result.get("rule") != REVISION
    reward = Judged.of_audit(audit)
    together = audits_of(reward).filter(finished_at__lte=audit.finished_at)
    rows = RewardAuditItem.objects.filter(audit__in=[audit] if is_old else together)
    rows = rows.select_related("result__task__environment", "result__trajectory", "rescored", "judged_by")
    items = list(rows.order_by("-audit", "place"))
    solved = solve_rates(audit.run)
    return {
        "audit": audit,
        "run": audit.run,
        "found": audit.result,
        "words": audit_sentence(audit),
        "standing": standing(Judged.now(audit.run.version, audit.run.task_set, audit.recipe)),
        "reward": reward,
        "rule": RULE,
        "is_old": is_old,
        "disagreements": sorted(filter(_differs, items), key=lambda item: not item.verdict.success),
        "cannot_tell": [item for item in items if item.answer == Answer.CANNOT_TELL],
        "causes": list(
            verdicts_on_answers([audit.run_id], [audit.rescore_id])
            .filter(success=None)
            .values_list("cause")
            .annotate(n=Count("pk"))
            .order_by("-n")
        ),
        "solved": solved[:LISTED],
        "unlearnable": [task for task in solved if not task.is_learnable],
        "runs": audit.training_runs.select_related("created_by").order_by("-pk")[:LISTED],
    }


def _differs(item: RewardAuditItem) -> bool:
    return item.answer in (Answer.PASS, Answer.FAIL) and (item.answer == Answer.PASS) is not bool(item.verdict.success)
