"""The only place that moves a ramp and its split.

Each change is a compare-and-set on `Ramp.generation` with one append-only `RampChange`, in one transaction. People may
move a ramp in both directions; the judge goes on along the plan that was approved, holds, and takes back. A ramp that
is over sends nobody to its candidate any more, also those who had met it.
"""

import secrets
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import NoticeEvent
from flywheel.accounts.notices import notify
from flywheel.agents.models import Agent, Shadow, Split, Version
from flywheel.agents.splits.open_splits import LEASE_S
from flywheel.core.evidence.ramp.ramp_plan import BUCKET, WHOLE, Plan
from flywheel.core.text.number_words import percent
from flywheel.edge.refusals import Refused, Stale
from flywheel.evals.serving import loaded_adapters
from flywheel.failures.buckets.bucket_definitions import every
from flywheel.promotions import live_version
from flywheel.promotions.models import Candidate, Promotion, Ramp, RampChange
from flywheel.system.sql import clock

JUDGE_S = 3.0
"""The longest that the judge waits for a server: the leases of all splits are its to renew."""
MOVED = "the ramp changed while you decided; look at the page again"
State = Ramp.State
_NOTICES = {
    State.SHADOW: (NoticeEvent.RAMP_STAGE, "{version} answers copies of calls, which nobody gets"),
    State.RUNNING: (NoticeEvent.RAMP_STAGE, "{version} answers {share} of the sessions"),
    State.HOLDING: (NoticeEvent.RAMP_HELD, "The release of {version} is on hold"),
    State.TAKEN_BACK: (NoticeEvent.RAMP_TAKEN_BACK, "{version} was taken back"),
    State.FINISHED: (NoticeEvent.RAMP_FINISHED, "{version} is live for everybody"),
}
_OVER = {State.TAKEN_BACK: Candidate.State.TAKEN_BACK, State.STOPPED: Candidate.State.STOPPED}


def begin(
    *,
    candidate: Candidate,
    plan: Plan,
    actor: Actor,
    reason: str,
    generation: int,
    override: bool = False,
    again: int | None = None,
) -> Ramp:
    """Approve a waiting candidate to be released by the steps of `plan`; the first is taken once the judge looks.

    Everything is checked as `live_version.promote` does, now and when it goes live. `generation` is the agent's as the
    approver saw it; `again` names the last ramp of this version, which is needed where it had one.
    Raises Refused.
    """
    _check_buckets(candidate, plan)
    approval = live_version.Approval(actor, reason, generation, override, again)
    row = live_version.approved(candidate, approval)
    server = loaded_adapters.hand_over(row.version, within_s=live_version.PROMOTE_S)
    with transaction.atomic():
        agent = Agent.objects.select_for_update(no_key=True).get(pk=row.agent_id)
        row = live_version.approved(candidate, approval, is_locked=True)
        if agent.ramps.filter(state__in=Ramp.OPEN).exists():
            raise Refused(f"{agent} has a ramp under way; finish, stop or take it back first")
        live_version.check_server(row.version, agent, server)
        split = _open_split(agent, row.version, plan, server[0])
        ramp = Ramp.objects.create(
            agent=agent,
            candidate=row,
            split=split,
            after=live_version.last_ramp(row),
            plan=plan.to_json(),
            stage=Ramp.SHADOWED if plan.shadow else 0,
            agent_generation=generation,
            override=override,
            reason=reason,
            approved_by=actor.user,
        )
        RampChange.objects.create(
            ramp=ramp,
            generation=ramp.generation,
            state=ramp.state,
            stage=ramp.stage,
            share=0,
            by=actor.user,
            reason=reason,
        )
        Candidate.objects.filter(pk=row.pk).update(state=Candidate.State.RAMPING)
        actor.record(
            project=agent.project,
            action="promotions.ramp",
            subject=f"{agent} → {row.version}",
            reason=reason,
            plan=ramp.plan,
            after=again,
        )
    return ramp


def _open_split(agent: Agent, version: Version, plan: Plan, served: str) -> Split:
    """A split that gives the version nothing yet, with the budget of the plan's shadow."""
    assert agent.live_id is not None
    split = Split.objects.create(
        agent=agent,
        live_id=agent.live_id,
        candidate=version,
        salt=secrets.token_hex(32),
        served={str(agent.live_id): agent.served, str(version.pk): served},
        lease_until=timezone.now(),
    )
    if plan.shadow:
        budget = {name: getattr(plan.shadow, name) for name in ("calls", "tokens", "dollars")}
        Shadow.objects.create(split=split, **budget)
    return split


def start(*, ramp: Ramp) -> Ramp:
    """The shadow where the plan has one, else the first stage, as the judge sees the ramp for the first time."""
    if ramp.stage == Ramp.SHADOWED:
        reason = "the judge is there: the shadow begins"
        return _move(ramp, None, reason, ramp.generation, state=State.SHADOW, stage=Ramp.SHADOWED)
    return _move(
        ramp, None, "the judge is there: the first stage begins", ramp.generation, state=State.RUNNING, stage=0
    )


def hold(
    *, ramp: Ramp, actor: Actor | None, reason: str, generation: int, finding: dict[str, Any] | None = None
) -> Ramp:
    """Stay at the present stage, or before the first; in the shadow no further copies are made. Raises Refused, and
    Stale as all of these do."""
    _check(ramp, State.WAITING, State.SHADOW, State.RUNNING)
    return _move(ramp, actor, reason, generation, state=State.HOLDING, finding=finding)


def go_on(*, ramp: Ramp, actor: Actor, reason: str, generation: int) -> Ramp:
    """Go on at the stage at which it was held, or to the first; what was doubted then holds it no more. A self-test
    follows at once."""
    _check(ramp, State.HOLDING)
    _check_four_eyes(ramp, actor)
    accepted = sorted({*ramp.finding.get("accepted", ()), *ramp.finding.get("doubts", ())})
    state = next((each for each in (State.RUNNING, State.SHADOW) if has_been(ramp, each)), State.WAITING)
    return _move(ramp, actor, reason, generation, state=state, finding={"accepted": accepted})


def advance(*, ramp: Ramp, actor: Actor | None, reason: str, generation: int) -> Ramp:
    """Go to the next stage, from the shadow to the first; nobody who has met an arm changes it."""
    _check(ramp, State.RUNNING, State.SHADOW)
    _check_four_eyes(ramp, actor)
    if ramp.stage + 1 >= len(ramp.rules.stages):
        raise Refused("this is the last stage; finish the ramp")
    return _move(ramp, actor, reason, generation, state=State.RUNNING, stage=ramp.stage + 1)


def stop(*, ramp: Ramp, actor: Actor | None, reason: str, generation: int) -> Ramp:
    """End it for a reason that says nothing of the candidate."""
    _check(ramp, *Ramp.OPEN)
    if actor and ramp.is_held_back:
        raise Refused(f"{ramp.candidate.version} is live already; finish the ramp, or take it back")
    return _move(ramp, actor, reason, generation, state=State.STOPPED)


def take_back(*, ramp: Ramp, actor: Actor | None, reason: str, generation: int) -> Ramp:
    """End it since the candidate does harm. Where it is live already, the version before is made live again."""
    _check(ramp, *Ramp.OPEN)
    if ramp.is_held_back:
        _check_reason(reason)
        if "signals" not in ramp.finding:  # the judge makes up for what follows, should this end here
            if not Ramp.objects.filter(pk=ramp.pk, generation=generation).exists():
                raise Stale(MOVED)
            end_share(ramp, {"words": reason.strip(), "signals": ["a person"]})
        _bring_back(ramp, actor, reason)
    return _move(ramp, actor, reason, generation, state=State.TAKEN_BACK)


def finish(*, ramp: Ramp, actor: Actor | None, reason: str, generation: int) -> Promotion:
    """Make the candidate live, with all checks of a promotion, in the approver's name where the judge does it: for
    everybody, or but for the holdback of the plan, which a second finish ends."""
    _check(ramp, State.RUNNING)
    _check_reason(reason)
    if ramp.promotion is not None:
        _move(ramp, actor, reason, generation, state=State.FINISHED)
        return ramp.promotion
    row = ramp.candidate
    approver = actor or Actor(ramp.approved_by, through=f"the judge of {ramp}")
    approval = live_version.Approval(approver, reason, ramp.agent_generation, ramp.override, ramp_pk=ramp.pk)
    within_s = live_version.PROMOTE_S if actor else JUDGE_S
    server = loaded_adapters.hand_over(row.version, within_s=within_s)
    with transaction.atomic():
        # In the judge's order, ramp before split: else the two could wait for each other.
        if "signals" in Ramp.objects.select_for_update(no_key=True).get(pk=ramp.pk).finding:
            raise Stale(MOVED)
        promotion = live_version.go_live(row, approval, server)
        if ramp.rules.holdback:
            Split.objects.filter(pk=ramp.split_id).update(closed_at=None, is_holdback=True)
            held = len(ramp.rules.stages)
            _move(ramp, actor, reason, generation, state=State.RUNNING, stage=held, promotion=promotion)
            renew(ramp)
        else:
            _move(ramp, actor, reason, generation, state=State.FINISHED, promotion=promotion)
    return promotion


def has_been(ramp: Ramp, state: str) -> bool:
    """Whether it was ever in this state: `RUNNING` from its first stage on."""
    return ramp.changes.filter(state=state).exists()


def _bring_back(ramp: Ramp, actor: Actor | None, reason: str) -> None:
    """Make the version before live again, unless it is, or another one went live meanwhile."""
    agent = Agent.objects.select_related("project").get(pk=ramp.agent_id)
    if agent.live_id == ramp.split.candidate_id:
        live_version.roll_back(
            agent=agent,
            to=ramp.split.live,
            actor=actor or Actor(ramp.approved_by, through=f"the judge of {ramp}"),
            generation=agent.generation,
            reason=reason,
            within_s=live_version.ROLLBACK_S if actor else JUDGE_S,
        )


def end_share(ramp: Ramp, finding: dict[str, Any]) -> None:
    """Send nobody to the candidate from the next look on, and keep why: one statement each, which ask no server."""
    Split.objects.filter(pk=ramp.split_id).update(share=0, generation=F("generation") + 1)
    Ramp.objects.filter(pk=ramp.pk).update(finding=finding)
    ramp.finding = finding


def renew(ramp: Ramp) -> None:
    """Let the split hold for `LEASE_S` from now on, by the database's clock."""
    Split.objects.filter(pk=ramp.split_id, closed_at=None).update(lease_until=Now() + timedelta(seconds=LEASE_S))


def _check(ramp: Ramp, *states: str) -> None:
    if ramp.state not in states:
        raise Refused(f"{ramp} is {State(ramp.state).label.lower()}")


def _check_buckets(candidate: Candidate, plan: Plan) -> None:
    known = every(candidate.project)
    for key in plan.alphas:
        if key.startswith(BUCKET) and key.removeprefix(BUCKET) not in known:
            raise Refused(f"{key!r} names no category of this project", field="alphas")


def _check_four_eyes(ramp: Ramp, actor: Actor | None) -> None:
    """Whoever launched the candidate may hold it or take it back, not let it go further."""
    candidate = ramp.candidate
    if actor and actor.user.pk in {candidate.proposed_by_id, candidate.version.created_by_id}:
        raise Refused("you launched this candidate's run; another approver must decide")


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise Refused("enter a reason; it is kept with the ramp", field="reason")


def _move(
    ramp: Ramp,
    actor: Actor | None,
    reason: str,
    generation: int,
    *,
    state: str,
    stage: int | None = None,
    **fields: Any,
) -> Ramp:
    """Carry it out, if the ramp's generation is still `generation`. Raises Refused."""
    _check_reason(reason)
    # The first address that a process asks for loads every page, for seconds: nobody waits for the row meanwhile.
    url = reverse("promotions:ramp", args=[ramp.agent.project.slug, ramp.pk])
    with transaction.atomic():
        given = {name: value for name, value in fields.items() if value is not None}
        changes: dict[str, Any] = {"state": state, "test_wanted_at": None, **given}
        if stage is not None:
            changes |= {"stage": stage, "stage_since": clock()}
        row = Ramp.objects.filter(pk=ramp.pk, generation=generation, state__in=Ramp.OPEN)
        if state != State.TAKEN_BACK:  # where harm was found while a person decided, nothing else may follow
            row = row.exclude(finding__has_key="signals")
        if not row.update(generation=F("generation") + 1, **changes):
            raise Stale(MOVED)
        for name, value in (changes | {"generation": generation + 1}).items():
            setattr(ramp, name, value)
        is_over = state not in Ramp.OPEN
        is_answering = state == State.RUNNING or (not is_over and has_been(ramp, State.RUNNING))
        share = ramp.rules.steps[ramp.stage].share if is_answering else 0
        split = Split.objects.filter(pk=ramp.split_id)
        split.update(share=share, generation=F("generation") + 1, **({"closed_at": timezone.now()} if is_over else {}))
        Shadow.objects.filter(split=ramp.split_id).update(is_on=state == State.SHADOW)
        if state in _OVER and (ramp.promotion_id is None or state == State.TAKEN_BACK):
            Candidate.objects.filter(pk=ramp.candidate_id).update(state=_OVER[State(state)])
        RampChange.objects.create(
            ramp=ramp,
            generation=ramp.generation,
            state=state,
            stage=ramp.stage,
            share=WHOLE if state == State.FINISHED else share,
            by=actor.user if actor else None,
            reason=reason.strip(),
            data=ramp.finding,
        )
        (actor or Actor(ramp.approved_by, through=f"the judge of {ramp}")).record(
            project=ramp.agent.project,
            action=f"promotions.ramp_{state}",
            subject=f"{ramp.agent} → {ramp.candidate.version}",
            reason=reason.strip(),
            stage=ramp.stage,
            share=share,
        )
        if stage is not None or state != State.RUNNING:
            _tell(ramp, share, reason.strip(), url)
    return ramp


def _tell(ramp: Ramp, share: int, reason: str, url: str) -> None:
    event, title = _NOTICES.get(State(ramp.state), (None, ""))
    if event is not None:
        notify(
            project=ramp.agent.project,
            event=event,
            subject=str(ramp),
            title=title.format(version=ramp.candidate.version, share=percent(share / WHOLE)),
            text=reason,
            url=url,
        )
