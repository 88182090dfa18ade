"""The judge of ramps: every second, in beat; a worker stands in while beat does not look.

It freezes the sessions that have become final, bets on them, and acts: it takes back at a signal's bound, holds where
no comparison holds, and goes on along the plan. Only after a look that went well it renews the split's lease, so that
without a judge the candidate is sent nobody.

All that it knows lies in rows, and every time that it compares is the database's: its own process's clock says nothing.
A look is one transaction: killed anywhere, the next look begins where the last ended.
Where harm is found, the share is 0 in the transaction that froze the session which showed it; what is to be written of
that comes after, and is made up for by the next look.
"""

import logging
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Max, Q, QuerySet
from django.db.models.functions import Now
from psycopg.types.json import Jsonb

from flywheel.agents.models import ShadowCopy, SplitUnit
from flywheel.agents.splits.open_splits import LEASE_S
from flywheel.core.evidence.ramp.ramp_judge import PROOF, Judgement, Session, doubts, harms, proof
from flywheel.core.evidence.ramp.ramp_plan import WHOLE
from flywheel.core.text.number_words import percent
from flywheel.edge.refusals import Refused, Stale
from flywheel.failures.detectors import detector_settings
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import ramp_moves, ramp_units, self_tests, shadow_comparing
from flywheel.promotions.ramps.ramp_evidence import label_of, margins_of
from flywheel.system.sql import clock

OVER = "shadow over"
"""Among what a person has accepted: that the stages begin after the shadow."""
LATE_S = 2.0
log = logging.getLogger(__name__)
State = Ramp.State
_went_on: dict[int, int] = {}
"""By ramp how many sessions were final when this process last went on with it: the same ones say the same again."""


def look() -> None:
    """Judge every ramp that is under way. One that fails costs the others nothing."""
    for pk in Ramp.objects.filter(state__in=Ramp.OPEN).values_list("pk", flat=True):
        try:
            ramp_units.read_awaited(Ramp.objects.select_related("split__agent").get(pk=pk), clock())
        except Exception:
            log.exception("detectors could not read what ramp %s waits for; it is judged by what they have read", pk)
        try:
            judge(pk)
        except Stale:
            pass  # a person was first; the next look sees what they did
        except Exception:
            log.exception("ramp %s could not be judged; its candidate is sent nobody until it can", pk)


def stand_in() -> None:
    """Look in another process than beat's, where nobody has for `LATE_S`: a beat that was killed takes seconds to start
    anew. Where both look, each ramp is judged by whoever has its row."""
    late = Now() + timedelta(seconds=LEASE_S - LATE_S)
    if Ramp.objects.filter(state__in=Ramp.OPEN, split__lease_until__lt=late).exists():
        look()


def judge(pk: int) -> None:
    """Look at one ramp, unless somebody else does. Raises Stale where a person moves it meanwhile."""
    with transaction.atomic():
        rows = Ramp.objects.select_related("split__agent", "split__candidate", "split__live", "candidate__version")
        ramp = rows.select_for_update(of=("self",), no_key=True, skip_locked=True).filter(pk=pk).first()
        if ramp is None or not ramp.is_open:
            return
        if ramp.split.closed_at is not None and not ramp.finding.get("signals"):
            reason = f"the live version of {ramp.split.agent} moved meanwhile"
            ramp_moves.stop(ramp=ramp, actor=None, reason=reason, generation=ramp.generation)
            return
        if ramp.state == State.WAITING and not self_tests.is_awaited(ramp):
            ramp_moves.start(ramp=ramp)
        if ramp.split.closed_at is None and ramp.stage == Ramp.SHADOWED:
            shadow_comparing.compare(ramp)
        last = 0 if ramp.finding.get("signals") else _freeze(ramp)
        if not ramp.finding.get("signals"):
            ramp_moves.renew(ramp)
    if ramp.finding.get("signals"):
        ramp_moves.take_back(ramp=ramp, actor=None, reason=ramp.finding["words"], generation=ramp.generation)
    elif ramp.state == State.SHADOW:
        _leave_shadow(ramp)
    elif ramp.state == State.RUNNING:
        _go_on(ramp, has_more=_went_on.get(pk) != last)
        _went_on[pk] = last


def sessions_of(units: Sequence[SplitUnit]) -> list[Session]:
    return [Session(unit.is_candidate, unit.share / WHOLE, unit.parts) for unit in units]


def recomputed(ramp: Ramp) -> Judgement:
    """The judgement of all its final sessions from the first on; equals `Ramp.judgement` to the last bit."""
    return Judgement.begin(ramp.rules).follow(sessions_of(_final(ramp)))[1]


def _final(ramp: Ramp) -> list[SplitUnit]:
    units = SplitUnit.objects.filter(split=ramp.split_id, number__isnull=False).order_by("number")
    return list(units.only("is_candidate", "share", "parts"))


def _judgement(ramp: Ramp) -> Judgement:
    return Judgement.from_json(ramp.judgement) if ramp.judgement else Judgement.begin(ramp.rules)


def _freeze(ramp: Ramp) -> int:
    """Take in what has become final, and end the share where that shows harm. Returns how many sessions are final."""
    units = ramp_units.final(ramp, clock())
    judged = [unit for unit in units if not unit.mixed]
    last = SplitUnit.objects.filter(split=ramp.split_id).aggregate(last=Max("number"))["last"] or 0
    path, after = _judgement(ramp).follow(sessions_of(judged))
    for number, (unit, wealth) in enumerate(zip(judged, path, strict=True), last + 1):
        unit.number, unit.wealth = number, wealth
    _save(units)
    if judged:
        ramp.judgement = after.to_json()
        Ramp.objects.filter(pk=ramp.pk).update(judgement=ramp.judgement)
    for unit in judged:
        if signals := harms(ramp.rules, unit.wealth):
            ramp_moves.end_share(ramp, _harm(ramp, unit, signals))
            break
    return last + len(judged)


def _harm(ramp: Ramp, unit: SplitUnit, signals: Sequence[str]) -> dict[str, Any]:
    said = [
        f"{label_of(ramp, key)} (wealth {unit.wealth[key]:,.0f}, bound {1 / ramp.rules.alphas[key]:,.0f})"
        for key in signals
    ]
    words = f"more of the candidate's sessions show {' and '.join(said)}, after {unit.number:,} final sessions"
    return {"words": words, "signals": list(signals), "unit": unit.number}


def _save(units: Sequence[SplitUnit]) -> None:
    """Each session is frozen once, whoever looks."""
    rows: list[Any] = [
        (
            *(unit.number, unit.frozen_at, unit.mixed, Jsonb(unit.parts), Jsonb(unit.wealth), unit.trajectories),
            *(unit.overriding_calls, Jsonb(unit.overrides), unit.pk),
        )
        for unit in units
    ]
    statement = (
        "UPDATE agents_splitunit SET number = %s, frozen_at = %s, mixed = %s, parts = %s, wealth = %s, "
        "trajectories = %s, overriding_calls = %s, overrides = %s WHERE id = %s AND frozen_at IS NULL"
    )
    with connection.cursor() as cursor:
        cursor.executemany(statement, rows)


def _leave_shadow(ramp: Ramp) -> None:
    """Hold where the candidate's answers are clearly worse; where the shadow is over, go on as the plan says."""
    plan, accepted = ramp.rules.shadow, ramp.finding.get("accepted", ())
    assert plan is not None
    rows = shadow_comparing.fault_rows(ramp)
    found = [row.fault for row in rows if row.is_found and f"shadow {row.fault.key}" not in accepted]
    if found:
        words = f"its answers to copies show more {' and '.join(fault.label for fault in found)}"
        _hold(ramp, words, doubts=[f"shadow {fault.key}" for fault in found])
        return
    sessions = rows[0].difference.n
    is_late = clock() >= ramp.stage_since + timedelta(minutes=plan.minutes)
    if sessions < plan.sessions and not is_late and not _is_spent(ramp):
        return
    said = f"the shadow compared {sessions:,} session{'' if sessions == 1 else 's'}"
    if (plan.then == "person" or not sessions) and OVER not in accepted:
        _hold(ramp, f"{said}; a person decides whether the first stage begins", doubts=[OVER])
        return
    if not self_tests.is_awaited(ramp):
        ramp_moves.advance(ramp=ramp, actor=None, reason=said, generation=ramp.generation)


def _is_spent(ramp: Ramp) -> bool:
    """Whether the budget is used up, and nothing of it is on its way or belongs to a session that is not over."""
    waiting = ShadowCopy.objects.filter(split=ramp.split_id).exclude(state=ShadowCopy.State.LOST)
    late = waiting.filter(Q(state=ShadowCopy.State.SENT) | Q(at__gte=shadow_comparing.over_at(ramp)))
    return ramp.split.shadow.is_spent and not late.exists()


def _go_on(ramp: Ramp, *, has_more: bool) -> None:
    """Hold, go to the next stage, or finish, as the plan says. Looks at what all sessions say only where there are more
    than last time, or the stage is due."""
    plan, stage = ramp.rules, ramp.rules.steps[ramp.stage]
    units = SplitUnit.objects.filter(split=ramp.split_id, number__isnull=False)
    is_due = clock() >= ramp.stage_since + timedelta(minutes=stage.minutes)
    judged = units.filter(share=stage.share).count() if is_due else 0
    is_done = is_due and judged >= stage.sessions
    if (has_more or is_done) and (found := _doubts(ramp, units.filter(share=stage.share) if is_done else None)):
        _hold(ramp, "; ".join(found.values()), doubts=sorted(found))
        return
    if not is_done:
        return
    is_last = ramp.stage + 1 >= len(plan.stages)
    reason = f"nothing was found in {judged:,} sessions at {percent(stage.share / WHOLE)}"
    if is_last and not ramp.is_held_back:
        reason = _may_finish(ramp, has_more)
    if not reason:
        self_tests.forget(ramp)
        return
    if self_tests.is_awaited(ramp):
        return
    if not _agree(recomputed(ramp), _judgement(ramp)):
        _hold(ramp, "what is kept of its judgement does not follow from its sessions")
    elif not is_last:
        ramp_moves.advance(ramp=ramp, actor=None, reason=reason, generation=ramp.generation)
    else:
        try:
            ramp_moves.finish(ramp=ramp, actor=None, reason=reason, generation=ramp.generation)
        except Stale:
            raise
        except Refused as refused:
            _hold(ramp, f"it cannot go live: {refused}")


def _hold(ramp: Ramp, words: str, **found: Any) -> None:
    accepted = {name: ramp.finding[name] for name in ("accepted",) if name in ramp.finding}
    finding = {**accepted, "words": words, **found}
    ramp_moves.hold(ramp=ramp, actor=None, reason=words, generation=ramp.generation, finding=finding)


def _agree(one: Judgement, other: Judgement) -> bool:
    """Whether two are the same but for the last digits, in which processors differ."""
    return all(
        len(bets.logs) == len(other.bets[key].logs)
        and all(
            math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(bets.logs, other.bets[key].logs, strict=True)
        )
        for key, bets in one.bets.items()
    )


def _doubts(ramp: Ramp, of_stage: QuerySet[SplitUnit] | None) -> dict[str, str]:
    """Reasons to hold it, by kind: no comparison is valid, nothing is known of a stage that is over, or what found its
    failures is switched off or finds another category."""
    rows = SplitUnit.objects.filter(split=ramp.split_id).values_list("share")
    judged = rows.filter(number__isnull=False)
    found = doubts(ramp.rules, _judgement(ramp).wealth, list(_arms(rows)), list(_arms(judged)))
    if of_stage is not None and not of_stage.exclude(parts__failed=None).exists():
        found["results"] = f"of none of {of_stage.count():,} sessions is it known how they ended"
    found |= _changed_detectors(ramp)
    return {kind: words for kind, words in found.items() if kind not in ramp.finding.get("accepted", ())}


def _changed_detectors(ramp: Ramp) -> dict[str, str]:
    """The same of detectors that find something else than when it began: who accepts one kind has not accepted the
    other."""
    off, pointed = detector_settings.changed_since(ramp.agent.project_id, ramp.created_at)
    found = {}
    if off:
        verbs = ("has", "finds") if len(off) == 1 else ("have", "find")
        words = "since it began, {} {} been switched off, and {} nothing any more"
        found["detectors"] = words.format(" and ".join(off), *verbs)
    if pointed:
        verbs = ("has", "it finds") if len(pointed) == 1 else ("have", "they find")
        words = "since it began, {} {} been pointed at another category, and what {} counts there"
        found["pointed"] = words.format(" and ".join(pointed), *verbs)
    return found


def _arms(rows: Any) -> Any:
    return rows.annotate(candidate=Count("pk", Q(is_candidate=True)), live=Count("pk", Q(is_candidate=False)))


def _may_finish(ramp: Ramp, has_more: bool) -> str:
    """Why it may, by its plan; empty where it may not yet."""
    plan = ramp.rules
    if plan.finish == "nothing_found":
        return "nothing was found in any stage"
    if plan.finish == "person" or not (has_more or ramp.test_wanted_at):
        return ""
    sessions = sessions_of(_final(ramp))
    if proof(plan, sessions) < 1 / PROOF:
        return ""
    margins = " and ".join(f"{percent(margin)} or more in {label}" for label, margin in margins_of(ramp))
    return f"shown not to be worse by {margins}, in {len(sessions):,} sessions"
