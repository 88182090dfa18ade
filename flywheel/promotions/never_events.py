"""Never events of a candidate: attempts that did what cannot be taken back, for a person to look at.

The gate stops a candidate at the first one. An approver who has read the attempt may say that there is no harm in it,
because the verifier is wrong or nobody minds; why is kept, and whoever waits for a decision is judged anew.
"""

from django.db import transaction
from django.db.models import QuerySet

from flywheel.accounts.actors import Actor
from flywheel.edge.refusals import Refused
from flywheel.evals.models import Result
from flywheel.promotions.candidacy import judge_again
from flywheel.promotions.models import Candidate, Harmless


def never_events(candidate: Candidate) -> QuerySet[Result]:
    """The candidate's attempts with a never event, those called harmless among them."""
    rows = candidate.version_eval.results.filter(parts__never_event__gt=0)
    return rows.select_related("task__environment", "trajectory", "harmless__by").order_by("task__number", "sample")


def call_harmless(*, candidate: Candidate, result: int, actor: Actor, reason: str) -> None:
    """Note that there is no harm in an attempt, and judge every candidate of this eval that waits. Raises Refused."""
    if candidate.state != Candidate.State.WAITING:
        raise Refused(f"this candidate is {candidate.state} already")
    if not reason.strip():
        raise Refused("explain why it is harmless; the reason is kept", field="reason")
    if actor.user.pk in {candidate.proposed_by_id, candidate.version.created_by_id}:
        raise Refused("you launched this candidate's run; another approver must review it")
    row = never_events(candidate).filter(pk=result).first()
    if row is None:
        raise Refused("this is no never event of the candidate", field="result")
    with transaction.atomic():
        _, is_new = Harmless.objects.get_or_create(result=row, defaults={"reason": reason[:2000], "by": actor.user})
        if not is_new:
            raise Refused("already marked as harmless", field="result")
        waiting = Candidate.objects.select_for_update().filter(
            version_eval=candidate.version_eval, state=Candidate.State.WAITING
        )
        for each in waiting.select_related(None):
            judge_again(each)
        actor.record(
            project=candidate.project,
            action="promotions.call_harmless",
            subject=candidate,
            attempt=str(row),
            reason=reason,
        )
