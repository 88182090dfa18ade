"""The only place that moves `Agent.live`: approve and promote, reject, roll back, and say later why.

A move is a compare-and-set on `Agent.generation` and one append-only `Promotion` row, in one transaction. Two people
never approve their own work: who launched may not approve, here and as a constraint of the database.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.weights import served_weights
from flywheel.core.digests import digest
from flywheel.edge.refusals import Refused, Stale
from flywheel.evals.serving import loaded_adapters, version_isolation
from flywheel.promotions import suite_standings
from flywheel.promotions.claims.promotion_claims import claims_of
from flywheel.promotions.models import Candidate, LateReason, Promotion, Ramp
from flywheel.promotions.sealed_comparison import Comparison, final_of

PROMOTE_S = 30.0
"""The longest that a server may take to be ready for what goes live."""
ROLLBACK_S = 10.0
"""The same of the way back, which then goes without it."""
MOVED = "the live version changed while you decided; look at the page again"


_ROWS = Candidate.objects.select_related("agent__live", "version", "baseline")


@dataclass(frozen=True, slots=True)
class Approval:
    """An approver's decision, as it was meant."""

    actor: Actor
    reason: str
    generation: int
    """The agent's as the approver saw it."""
    override: bool = False
    """Whether it is meant against the gate."""
    again: int | None = None
    """The last ramp of the version, however that ended: nobody lets it out again unaware of it."""
    ramp_pk: int | None = None
    """The ramp that finishes with it, of a candidate that is being released by steps."""


def promote(
    *,
    candidate: Candidate,
    actor: Actor,
    reason: str,
    generation: int,
    override: bool = False,
    again: int | None = None,
) -> Promotion:
    """Approve a waiting candidate and make its version live.

    `generation` is the agent's as the approver saw it. A candidate that the gate does not call eligible, that the
    sealed part of its set (where it has one) does not confirm, or that has not passed every regression suite of its
    agent (one that was retired since it was made is not passed), needs `override`, and is marked for ever; `again`
    names the last ramp of the version where it had one. Raises Refused.
    """
    approval = Approval(actor, reason, generation, override, again)
    approved(candidate, approval)  # what is refused anyway asks no server
    # Nobody waits for a server with the agent's lock.
    server = loaded_adapters.hand_over(candidate.version, within_s=PROMOTE_S)
    return go_live(candidate, approval, server)


@transaction.atomic
def go_live(candidate: Candidate, approval: Approval, server: tuple[str, str]) -> Promotion:
    """Make the candidate's version live if it may be, as all checks say now; `server` as `loaded_adapters.hand_over`
    has it. Raises Refused."""
    Agent.objects.select_for_update(no_key=True).get(pk=candidate.agent_id)  # nobody changes its suites meanwhile
    row = _ROWS.select_for_update(of=("self",)).get(pk=candidate.pk)
    stands, final, against = _check(row, approval)
    ramp = Ramp.objects.get(pk=approval.ramp_pk) if approval.ramp_pk is not None else None
    promotion = Promotion(
        agent=row.agent,
        kind=Promotion.Kind.PROMOTE,
        after=row.version,
        candidate=row,
        again=ramp.after if ramp else last_ramp(row),
        proposed_by=row.proposed_by,
        against_the_gate=bool(against),
        suites=[stand.snapshot() for stand in stands],
        sealed=final.snapshot() if final else {},
        claims=claims_of(row, stands, ramp.split_id if ramp else None),
        reason=approval.reason,
    )
    _move(promotion, server, approval.actor, approval.generation)
    row.state = Candidate.State.PROMOTED
    row.save(update_fields=["state"])
    row.agent.candidates.filter(state=Candidate.State.WAITING).update(state=Candidate.State.VOID)
    return promotion


def approved(candidate: Candidate, approval: Approval, *, is_locked: bool = False) -> Candidate:
    """The candidate as it stands now, if it may go live so. Raises Refused."""
    row = (_ROWS.select_for_update(of=("self",)) if is_locked else _ROWS).get(pk=candidate.pk)
    _check(row, approval)
    return row


@transaction.atomic
def reject(*, candidate: Candidate, actor: Actor, reason: str) -> None:
    """Decline a waiting candidate. Raises Refused when it does not wait or no reason is given."""
    if not reason.strip():
        raise Refused("enter a reason; it is kept with the candidate", field="reason")
    waiting = Candidate.objects.filter(pk=candidate.pk, state=Candidate.State.WAITING)
    if not waiting.update(state=Candidate.State.REJECTED):
        raise Refused("this candidate is no longer pending")
    actor.record(project=candidate.project, action="promotions.reject", subject=candidate, reason=reason)


def roll_back(
    *, agent: Agent, to: Version, actor: Actor, generation: int, reason: str = "", within_s: float = ROLLBACK_S
) -> Promotion:
    """Make an earlier live version live again: a new move, with nothing uploaded or evaluated anew.

    One approver is enough and the reason may follow (`give_reason`), so that an emergency ends quickly: a server that
    does not answer delays it by `within_s` and does not stop it; the promotion's `unserved` then says why. Raises
    Refused.
    """
    if not agent.promotions.filter(after=to).exists():
        raise Refused(f"{to} was never live")
    if agent.live_id == to.pk:
        raise Refused(f"{to} is live already")
    server = loaded_adapters.hand_over(to, within_s=within_s)
    promotion = Promotion(agent=agent, kind=Promotion.Kind.ROLLBACK, after=to, reason=reason.strip())
    with transaction.atomic():
        _move(promotion, server, actor, generation)
        agent.candidates.filter(state=Candidate.State.WAITING).exclude(baseline=to).update(state=Candidate.State.VOID)
    return promotion


@transaction.atomic
def give_reason(*, promotion: Promotion, actor: Actor, reason: str) -> None:
    """Say why a version was rolled back, where that was left out. Raises Refused, and Stale when it is said already."""
    if not reason.strip():
        raise Refused("say why; it is kept with the rollback", field="reason")
    row = Promotion.objects.select_for_update(of=("self",), no_key=True).get(pk=promotion.pk)
    if row.why:
        raise Stale("the reason is given already")
    LateReason.objects.create(promotion=row, text=reason.strip(), by=actor.user)
    subject = f"{row.agent} → {row.after}"
    actor.record(project=row.agent.project, action="promotions.give_reason", subject=subject, reason=reason.strip())


def make_first(*, agent: Agent, version: Version, actor: Actor, reason: str) -> Promotion:
    """Make the first version of an agent live: there is nothing yet to compare it with. Raises Refused."""
    if agent.live_id is not None:
        raise Refused(f"{agent} has a live version; a change of it needs a candidate")
    server = loaded_adapters.hand_over(version, within_s=PROMOTE_S)
    promotion = Promotion(agent=agent, kind=Promotion.Kind.FIRST, after=version, reason=reason)
    with transaction.atomic():
        return _move(promotion, server, actor, agent.generation)


def _check(row: Candidate, approval: Approval) -> tuple[list[suite_standings.Standing], Comparison | None, list[str]]:
    """Return its standing at its suites and at the sealed part, and why the gate does not let it through. Raises
    Refused where it cannot be approved, by this actor or so."""
    _check_state(row, approval)
    if not approval.reason.strip():
        raise Refused("enter a reason; it is kept with the promotion", field="reason")
    if approval.actor.user.pk in {row.proposed_by_id, row.version.created_by_id}:
        raise Refused("you launched this candidate's run; another approver must decide")
    stands, final = suite_standings.standings_of(row), final_of(row)
    against = _against(row, stands, final)
    if against and not approval.override:
        raise Refused(f"{'; '.join(against)}; to promote anyway, override the gate")
    if digest(row.report) != row.report_digest or row.version.digest != digest(row.version.content()):
        raise Refused("the evidence or the version changed since the eval; evaluate again")
    if problem := version_isolation.of(row.version_eval, row.baseline_eval).problem:
        raise Refused(problem)
    if row.agent.live_id != row.baseline_id:
        raise Refused(f"it was compared with {row.baseline}, which is no longer live; compare it with the live version")
    if row.agent.generation != approval.generation:
        raise Stale(MOVED)
    return stands, final, against


def _check_state(row: Candidate, approval: Approval) -> None:
    """Refuse a candidate that is decided, or whose ramp is not the one that finishes with it."""
    state = Candidate.State(row.state)
    if approval.ramp_pk is not None:
        if state != Candidate.State.RAMPING:
            raise Refused(f"this candidate is {state.label.lower()} already")
        return
    if state not in Candidate.UNDECIDED:
        raise Refused(f"this candidate is {state.label.lower()} already")
    last = last_ramp(row)
    if last is not None and not last.is_open and last.pk != approval.again:
        label = Ramp.State(last.state).label.lower()
        ended = "went live" if last.state == Ramp.State.FINISHED else f"was {label}"
        raise Refused(
            f"{row.version} {ended} in {last}; look at what came of it, and confirm that it is to be let out again",
            field="again",
        )


def last_ramp(row: Candidate) -> Ramp | None:
    """The last of the candidate's version."""
    return Ramp.objects.filter(candidate__version=row.version_id).order_by("-pk").first()


def check_server(version: Version, present: Agent, server: tuple[str, str]) -> None:
    """Refuse a version that the gateway could not answer with although it answers with the live one now."""
    _, problem = server
    if problem and present.served and not served_weights.server_of(version):
        raise Refused(f"the gateway answers with {present.served} now, and could not with this: {problem}")


def _against(row: Candidate, stands: Sequence[suite_standings.Standing], final: Comparison | None) -> list[str]:
    """Why the gate does not let it through; empty when it does."""
    against = []
    if row.verdict != Candidate.Verdict.ELIGIBLE:
        against.append(f"the gate says {Candidate.Verdict(row.verdict).label}")
    if final and not final.is_passed:
        against.append(f"its sealed part is {final.label} ({final.words})")
    open_ = [stand for stand in stands if not stand.is_passed]
    return against + [f"suite {stand.suite} is {stand.label} ({stand.words})" for stand in open_]


def _move(promotion: Promotion, server: tuple[str, str], actor: Actor, generation: int) -> Promotion:
    """Carry out what the unsaved row says, if the agent's generation is still `generation`; `server` is the name that
    serves it, and why none does. Raises Refused."""
    agent, after, (name, problem) = promotion.agent, promotion.after, server
    present = Agent.objects.select_for_update(of=("self",), no_key=True).select_related("live__agent").get(pk=agent.pk)
    if promotion.kind != Promotion.Kind.ROLLBACK:
        check_server(after, present, server)
    elif problem and present.served and not served_weights.server_of(after):
        promotion.unserved = f"the gateway does not answer with {after} until the server has it ({problem})"
    won = Agent.objects.filter(pk=agent.pk, generation=generation).update(
        live=after, served=name, generation=F("generation") + 1
    )
    if not won:
        raise Stale(MOVED)
    # A ramp beside the version that was live is over; its judge says so.
    open_split = Split.objects.filter(agent=agent, closed_at=None)
    open_split.update(share=0, closed_at=timezone.now(), generation=F("generation") + 1)
    promotion.before, promotion.approved_by = present.live, actor.user
    agent.live, agent.generation = after, generation + 1
    promotion.generation = agent.generation
    promotion.save(force_insert=True)
    actor.record(
        project=agent.project,
        action=f"promotions.{promotion.kind}",
        subject=f"{agent} → {after}",
        reason=promotion.reason,
        before=str(present.live) if present.live else None,
        against_the_gate=promotion.against_the_gate,
        again=promotion.again_id,
        suites={suite["suite"]: suite["state"] for suite in promotion.suites},
        **({"sealed": promotion.sealed["state"]} if promotion.sealed else {}),
        unserved=promotion.unserved,
    )
    return promotion
