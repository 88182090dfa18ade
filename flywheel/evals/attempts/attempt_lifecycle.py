"""Attempts from hand to hand: given out, answered once, given again when whoever had one is gone.

Each move is a compare-and-set on the row, so that two programs never have one attempt, and no answer counts twice.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import F, Min, Q, QuerySet
from django.utils import timezone

from flywheel.agents.models import Agent, AttemptKey, AttemptSpan, Version
from flywheel.agents.models.attempt_keys import parts_of
from flywheel.core.traces import Message, openai_messages
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Missing, Refused, Stale
from flywheel.evals.models import EvalRun, ProgramAttempt
from flywheel.evals.models.runs import BUDGET_CHUNK
from flywheel.trajectories.formats.values.hostile_json import text

MOST_GOES = 3
"""How often an attempt is given to programs that fall silent, before it is unscored."""
ONCE_ONLY = (
    "it broke off after calls were sent to a server that does not reset, so it is not tried again: they would be "
    "carried out twice"
)
LEASE_S, LEAST_LEASE_S = 60.0, 2.0
TIME_LIMIT_S = 300.0
OUTPUT_MAX = 1_000_000
"""Characters of an output."""
ERROR_MAX = 2_000
WAITING, CLAIMED, ANSWERED, ENDED = ProgramAttempt.State


class Over(Refused):
    """Its time is up."""

    status: ClassVar[int] = 410


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt as its program has it."""

    attempt: ProgramAttempt
    secret: str

    def to_json(self, base: str) -> dict[str, Any]:
        """Return what the program is given, where Flywheel is at this address."""
        attempt = self.attempt
        assert attempt.key is not None
        version, here = attempt.run.version, f"{base}/attempts/{attempt.key.public}"
        messages = [Message.from_json(row) for row in attempt.messages]
        asked = [message.content for message in messages if message.role == "user"]
        return {
            "attempt": attempt.key.public,
            "input": asked[-1] if asked else "",
            "messages": [_outside(message).to_openai() for message in messages],
            "seed": attempt.seed,
            "sampling": attempt.run.sampling,
            "time_limit_s": limit_s(attempt),
            "model": version.endpoint.get("model", ""),
            "base_url": f"{base}/gateway/v1",
            "api_key": self.secret,
            "tools_url": f"{here}/tools",
            "mcp_url": f"{here}/mcp",
            "result_url": f"{here}/result",
            "traces_url": f"{base}/v1/traces",
            "traceparent": attempt.key.traceparent,
        }


def _outside(message: Message) -> Message:
    """The message with its tools called as OpenAI takes it."""
    calls = tuple(replace(call, name=openai_messages.outside(call.name)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, name=openai_messages.outside(message.name))


def limit_s(attempt: ProgramAttempt) -> float:
    """Seconds that the program has for one turn."""
    return float(attempt.run.version.endpoint.get("timeout_s", TIME_LIMIT_S))


def claim(attempt: ProgramAttempt, lease_s: float | None = None) -> Claim | None:
    """Give the attempt to whoever asks, until its time limit, with a key of its own; None when somebody else has it.

    `lease_s`: after so long without a sign of life it is given to somebody else. A worker of ours, which has none,
    keeps the time limit itself and may claim one attempt ahead.
    """
    now = timezone.now()
    deadline = now + timedelta(seconds=limit_s(attempt) * (2 if lease_s is None else 1))
    lease_until = deadline if lease_s is None else min(deadline, now + timedelta(seconds=lease_s))
    changes: dict[str, Any] = {"state": CLAIMED, "claimed_at": now, "lease_s": lease_s, "lease_until": lease_until}
    with transaction.atomic():
        if not ProgramAttempt.objects.filter(pk=attempt.pk, state=WAITING).update(goes=F("goes") + 1, **changes):
            return None
        key, secret = AttemptKey.make(attempt.run.version, attempt.run.sampling, deadline)
        before = ProgramAttempt.objects.values_list("key", flat=True).get(pk=attempt.pk)
        ProgramAttempt.objects.filter(pk=attempt.pk).update(key=key)
        AttemptSpan.objects.filter(key=before, is_own=True).update(key=key)
        AttemptKey.objects.filter(pk=before).delete()  # of the turn before
    for name, value in (changes | {"key": key, "goes": attempt.goes + 1}).items():
        setattr(attempt, name, value)
    return Claim(attempt, secret)


def claim_some(agent: Agent, code: str, limit: int, lease_s: float = LEASE_S) -> list[Claim]:
    """Give out attempts of this agent's versions whose program pulls its work and is this code, while their evals run,
    and no more of a version at once than its `concurrency`, where it names one."""
    running = EvalRun.objects.filter(state=State.RUNNING, cancel_requested_at=None, version__agent=agent)
    running = running.filter(version__endpoint__way="pull", version__endpoint__code=code)
    waiting = running.filter(attempts__state=WAITING).values("version")
    claims: list[Claim] = []
    for version in waiting.annotate(first=Min("pk")).order_by("first").values_list("version", flat=True):
        if len(claims) < limit:
            claims += _claim_of(version, running, limit - len(claims), max(LEAST_LEASE_S, lease_s))
    return claims


@transaction.atomic
def _claim_of(version: int, running: QuerySet[EvalRun], limit: int, lease_s: float) -> list[Claim]:
    """Claim so many of this version; whoever else does meanwhile waits, and counts these."""
    Version.objects.select_for_update(no_key=True).get(pk=version)
    claims: list[Claim] = []
    for run in running.filter(version=version).select_related("version__agent").order_by("pk"):
        most = run.version.endpoint.get("concurrency")
        if most is not None:
            under_way = ProgramAttempt.objects.filter(run__version=version, state=CLAIMED).count()
            limit = min(limit, len(claims) + most - under_way)
        if len(claims) >= limit:
            break
        for attempt in _next_of(run, limit - len(claims)):
            attempt.run = run
            if made := claim(attempt, lease_s):
                claims.append(made)
    return claims


def _next_of(run: EvalRun, limit: int) -> list[ProgramAttempt]:
    """So many that wait; with a budget those that are begun, and new ones while few are under way."""
    waiting = run.attempts.filter(state=WAITING).select_related("task").order_by("pk")
    if not run.budget:
        return list(waiting[:limit])
    begun = run.attempts.filter(Q(state__in=[CLAIMED, ANSWERED]) | Q(state=WAITING) & ~Q(taken=[])).count()
    new = waiting.filter(taken=[])[: max(0, BUDGET_CHUNK - begun)]
    return [*waiting.exclude(taken=[])[:limit], *new][:limit]


def find(public: str, token: str) -> ProgramAttempt:
    """The attempt of this id, for whoever has its key. Raises Missing."""
    named, hashed = parts_of(token)
    rows = ProgramAttempt.objects.select_related(
        "key", "task", "run__version__agent", "run__project", "run__task_set__environment_version__environment"
    )
    attempt = rows.filter(key__public=public, key__hashed=hashed).first() if named == public else None
    if attempt is None:
        raise Missing("there is no such attempt, or it was given to another program; send its key as a bearer token")
    return attempt


def refuse_over(attempt: ProgramAttempt) -> None:
    """Raise Stale for an attempt that has its answer, and Over for one whose time is up or whose eval has ended."""
    if attempt.state != CLAIMED:
        raise Stale("this attempt has its answer already")
    if attempt.run.is_finished or attempt.run.cancel_requested_at is not None:
        raise Over("this attempt is over: its eval was stopped or has ended")
    if attempt.key is None or attempt.key.is_over:
        raise Over(f"this attempt is over: its {limit_s(attempt):g} s are up")


def renew(attempt: ProgramAttempt) -> datetime:
    """Hold a claimed attempt for another lease, at most until its deadline; until when. Raises Stale and Over."""
    refuse_over(attempt)
    assert attempt.key is not None
    until = min(attempt.key.deadline, timezone.now() + timedelta(seconds=attempt.lease_s or limit_s(attempt)))
    if not ProgramAttempt.objects.filter(pk=attempt.pk, key=attempt.key, state=CLAIMED).update(lease_until=until):
        raise Stale("this attempt has its answer already")
    return until


def answer(
    attempt: ProgramAttempt,
    output: str | None,
    error: str = "",
    *,
    code: str = "",
    is_away: bool = False,
    began: datetime | None = None,
) -> None:
    """Take the program's answer for this turn, or the reason why there is none; `began`: when it was called. Raises
    Stale: no answer counts twice."""
    if output is not None and len(output) > OUTPUT_MAX:
        error = f"its output has {len(output)} characters, at most {OUTPUT_MAX} are taken"
        output = None
    mine = ProgramAttempt.objects.filter(pk=attempt.pk, key=attempt.key_id, state=CLAIMED)
    with transaction.atomic():
        moved = mine.update(
            state=ANSWERED,
            output=None if output is None else text(output),
            error=text(error)[:ERROR_MAX],
            is_away=is_away,
            code=text(code)[:300],
            ended_at=timezone.now(),
            **({"claimed_at": began} if began else {}),
        )
        if not moved:
            raise Stale("this attempt has its answer already")
        AttemptKey.objects.filter(attempt=attempt.pk, deadline__gt=timezone.now()).update(deadline=timezone.now())


def give_again(attempts: Sequence[ProgramAttempt], *, is_repeatable: bool = True) -> list[ProgramAttempt]:
    """Let somebody else have attempts whose program is gone; what it did at them counts for nothing. Returns those that
    wait now: one that was renewed, or moved on, since it was looked at stays.

    `is_repeatable`: whether its world begins anew with each attempt. Else one in which a call was sent ends instead.
    """
    given = []
    with transaction.atomic():
        for attempt in attempts:
            if (row := _held(attempt).select_for_update().first()) is None:
                continue
            if not is_repeatable and _has_sent(row):
                answer(row, None, ONCE_ONLY)
                continue
            AttemptKey.objects.filter(attempt=row.pk).delete()
            row.key, row.state, row.uses, row.open_call = None, WAITING, [], None
            row.save(update_fields=["key", "state", "uses", "open_call"])
            given.append(row)
    return given


def _has_sent(row: ProgramAttempt) -> bool:
    """Whether a call of its tools was, or may have been, sent to the world's server."""
    return bool(row.uses) or not {"begun", "problem"}.isdisjoint(row.open_call or {})


def _held(attempt: ProgramAttempt) -> QuerySet[ProgramAttempt]:
    """The row, where it is still claimed by the same program, and by the same lease, as when it was read."""
    return ProgramAttempt.objects.filter(
        pk=attempt.pk, state=CLAIMED, key=attempt.key_id, lease_until=attempt.lease_until
    )


def expire(attempts: Sequence[ProgramAttempt], *, is_repeatable: bool = True) -> None:
    """Look at pulled attempts whose lease has run out: prolonged where there is a sign of life, given again where
    there is none (see `give_again`), and ended where their program lives and its time is up."""
    now = timezone.now()
    for attempt in attempts:
        key = attempt.key
        if key is None or attempt.lease_until is None or attempt.claimed_at is None or attempt.lease_until > now:
            continue
        lease = timedelta(seconds=attempt.lease_s or 0)
        silent_since = now - lease
        is_calling = key.calls > key.spans.filter(is_own=False).count() or "name" in (attempt.open_call or {})
        is_alive = is_calling or key.spans.filter(started_at__gt=silent_since).exists()
        is_alive = is_alive or any(datetime.fromisoformat(use["at"]) > silent_since for use in attempt.uses[-1:])
        was_renewed = attempt.claimed_at + lease < key.deadline <= attempt.lease_until
        if key.deadline <= now and (is_alive or was_renewed):
            _end(attempt, f"timed out: no answer within {limit_s(attempt):g} s")
        elif is_alive:
            until = min(key.deadline, now + lease)
            _held(attempt).update(lease_until=until)
        elif attempt.goes >= MOST_GOES:
            _end(attempt, f"given to a program {MOST_GOES} times, and each time it fell silent")
        else:
            give_again([attempt], is_repeatable=is_repeatable)


def _end(attempt: ProgramAttempt, error: str) -> None:
    with contextlib.suppress(Stale), transaction.atomic():  # its answer came in this moment
        if _held(attempt).select_for_update().first() is not None:
            answer(attempt, None, error)
