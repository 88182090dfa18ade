"""The only place that moves `Agent.live`: approve and promote, reject, roll back.

A move is a compare-and-set on `Agent.generation` and one append-only `Promotion` row, in one transaction. Two people
never approve their own work: who launched may not approve, here and as a constraint of the database.
"""

from django.db import transaction
from django.db.models import F

from flywheel.accounts.models import User, record
from flywheel.agents.models import Agent, Version
from flywheel.core.digests import digest
from flywheel.promotions.models import Candidate, Promotion


class CannotPromote(ValueError):
    """The move is refused; the message says why and who or what could change that."""


class MovedMeanwhile(CannotPromote):
    """Somebody else moved the live version since this page was loaded."""


@transaction.atomic
def promote(
    *, candidate: Candidate, actor: User, reason: str, generation: int, override: bool = False, through: str = ""
) -> Promotion:
    """Approve a waiting candidate and make its version live.

    `generation` is the agent's as the approver saw it. A candidate that the gate does not call eligible needs
    `override`, and is marked for ever. Raises CannotPromote.
    """
    row = Candidate.objects.select_for_update(of=("self",)).select_related("agent", "version").get(pk=candidate.pk)
    if row.state != Candidate.State.WAITING:
        raise CannotPromote(f"this candidate is {row.state} already")
    if not reason.strip():
        raise CannotPromote("reason: say why; it is kept with the promotion")
    if actor.pk in {row.proposed_by_id, row.version.created_by_id}:
        raise CannotPromote("you launched what made this candidate; another approver must decide")
    against = row.verdict != Candidate.Verdict.ELIGIBLE
    if against and not override:
        raise CannotPromote(f"the gate says {Candidate.Verdict(row.verdict).label}; promote against it only on purpose")
    if digest(row.report) != row.report_digest or row.version.digest != digest(row.version.content()):
        raise CannotPromote("the evidence or the version is not what was evaluated; evaluate again")
    if row.agent.live_id != row.baseline_id:
        raise CannotPromote(f"it was compared with {row.baseline}, which is not live any more; compare it with what is")
    promotion = _move(
        agent=row.agent,
        generation=generation,
        kind=Promotion.Kind.PROMOTE,
        after=row.version,
        candidate=row,
        proposed_by=row.proposed_by,
        approved_by=actor,
        against_the_gate=against,
        reason=reason,
        through=through,
    )
    row.state = Candidate.State.PROMOTED
    row.save(update_fields=["state"])
    row.agent.candidates.filter(state=Candidate.State.WAITING).update(state=Candidate.State.VOID)
    return promotion


@transaction.atomic
def reject(*, candidate: Candidate, actor: User, reason: str, through: str = "") -> None:
    """Decline a waiting candidate. Raises CannotPromote when it does not wait or no reason is given."""
    if not reason.strip():
        raise CannotPromote("reason: say why; it is kept with the candidate")
    moved = Candidate.objects.filter(pk=candidate.pk, state=Candidate.State.WAITING).update(
        state=Candidate.State.REJECTED
    )
    if not moved:
        raise CannotPromote("this candidate does not wait any more")
    record(
        project=candidate.project,
        actor=actor,
        action="promotions.reject",
        subject=candidate,
        reason=reason,
        through=through,
    )


@transaction.atomic
def roll_back(*, agent: Agent, to: Version, actor: User, reason: str, generation: int, through: str = "") -> Promotion:
    """Make an earlier live version live again: a new move, with nothing uploaded or evaluated anew.

    One approver is enough, so that an emergency ends quickly. Raises CannotPromote.
    """
    if not reason.strip():
        raise CannotPromote("reason: say why; it is kept with the rollback")
    if not agent.promotions.filter(after=to).exists():
        raise CannotPromote(f"{to} was never live")
    if agent.live_id == to.pk:
        raise CannotPromote(f"{to} is live already")
    promotion = _move(
        agent=agent,
        generation=generation,
        kind=Promotion.Kind.ROLLBACK,
        after=to,
        approved_by=actor,
        reason=reason,
        through=through,
    )
    agent.candidates.filter(state=Candidate.State.WAITING).exclude(baseline=to).update(state=Candidate.State.VOID)
    return promotion


@transaction.atomic
def make_first(*, agent: Agent, version: Version, actor: User, reason: str, through: str = "") -> Promotion:
    """Make the first version of an agent live: there is nothing yet to compare it with. Raises CannotPromote."""
    if agent.live_id is not None:
        raise CannotPromote(f"{agent} has a live version; a change of it needs a candidate")
    return _move(
        agent=agent,
        generation=agent.generation,
        kind=Promotion.Kind.FIRST,
        after=version,
        approved_by=actor,
        reason=reason,
        through=through,
    )


def _move(
    *,
    agent: Agent,
    generation: int,
    kind: Promotion.Kind,
    after: Version,
    approved_by: User,
    reason: str,
    through: str,
    candidate: Candidate | None = None,
    proposed_by: User | None = None,
    against_the_gate: bool = False,
) -> Promotion:
    before = Agent.objects.get(pk=agent.pk).live
    won = Agent.objects.filter(pk=agent.pk, generation=generation).update(live=after, generation=F("generation") + 1)
    if not won:
        raise MovedMeanwhile("the live version changed while you decided; look at the page again")
    promotion = Promotion.objects.create(
        agent=agent,
        kind=kind,
        generation=generation + 1,
        before=before,
        after=after,
        candidate=candidate,
        proposed_by=proposed_by,
        approved_by=approved_by,
        against_the_gate=against_the_gate,
        reason=reason,
    )
    agent.live, agent.generation = after, generation + 1
    record(
        project=agent.project,
        actor=approved_by,
        action=f"promotions.{kind}",
        subject=f"{agent} → {after}",
        reason=reason,
        through=through,
        before=str(before) if before else None,
        against_the_gate=against_the_gate,
    )
    return promotion
