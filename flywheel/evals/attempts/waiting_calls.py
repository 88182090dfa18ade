"""Calls of an attempt's tools that only a worker can carry out: in a world of Python, at a team's tool server.

The web process writes the call down on the attempt's row and looks until its answer stands there; the worker that has
the eval carries it out (`workers.policies.tool_carriers`). One call of an attempt waits at a time. A call whose worker
was killed is carried out by the next one, unless it was perhaps done at a server that cannot begin anew: then the
attempt is unscored, and says so. So is one that is answered before its call is settled.

A call that waits holds a thread of the web's, so few may wait at once and none for ever; whoever waits holds no
connection to the database.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db import transaction
from django.db.models import QuerySet

from flywheel.core.digests import canonical
from flywheel.edge.refusals import Refused, Stale
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.attempts.attempt_lifecycle import CLAIMED
from flywheel.evals.attempts.program_rollouts import ToolUse
from flywheel.evals.models import ProgramAttempt
from flywheel.system.sql import give_back
from flywheel.trajectories.ingest.gateway.openai_endpoints import slots

LOOK_S = 0.03
MOST_WAIT_S = 300.0
"""For how long one request waits for its call."""
AT_ONCE, AT_ONCE_EACH = 16, 8
"""Calls that wait in this process, each in a slot of the gateway's, and those of one attempt among them."""
RETRY_AFTER_S = 1
MOST_USES = 500
"""Calls in one turn of an attempt."""
USES_MAX = 4 * 2**20
"""Bytes of the calls of one turn with their results, as they are stored."""


class Busy(Refused):
    """Too many calls wait already. Nothing was done."""

    status: ClassVar[int] = 429


class Unanswered(Refused):
    """A call that was asked for has no answer yet, and nobody waits for it any longer."""

    status: ClassVar[int] = 504


class _Waiters:
    """Those who wait in this process, by attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[int] = Counter()

    @contextmanager
    def one_more(self, attempt: ProgramAttempt) -> Iterator[None]:
        """Raises Busy."""
        with self._lock:
            if self._counts[attempt.pk] >= AT_ONCE_EACH:
                raise Busy(f"{AT_ONCE_EACH} calls of this attempt wait here already; send this one again later")
            if self._counts.total() >= AT_ONCE or not slots.take():
                raise Busy("too many calls wait here already; send this one again later")
            self._counts[attempt.pk] += 1
        try:
            yield
        finally:
            slots.give_back()
            with self._lock:
                self._counts[attempt.pk] -= 1
                self._counts += Counter()  # whose count is 0 has no place there


_waiters = _Waiters()


def locked(attempt: ProgramAttempt) -> ProgramAttempt:
    """The attempt's row, in whose order calls are carried out, for one more call. Raises Refused, Stale and Over."""
    rows = ProgramAttempt.objects.select_for_update(of=["self"]).select_related("key", "task", "run__version")
    row = rows.get(pk=attempt.pk)
    if row.key_id != attempt.key_id:
        raise Stale("this attempt was given to another program")
    attempt_lifecycle.refuse_over(row)
    if len(row.uses) >= MOST_USES:
        raise Refused(f"at most {MOST_USES} calls are carried out in one turn", field="name")
    return row


def store(row: ProgramAttempt, made: ToolUse) -> None:
    """Put a call on the row, which is still to be saved. Raises Refused where too much stands there then."""
    uses = [*row.uses, made.to_json()]
    if len(canonical(uses)) > USES_MAX:
        raise Refused(f"the calls of one turn and their results may have {USES_MAX >> 20} MiB together")
    row.uses = uses


def have_carried_out(attempt: ProgramAttempt, name: str, arguments: dict[str, Any]) -> ToolUse:
    """Let a worker carry the call out, and wait for it until the attempt's time is up. Raises Refused, Stale and Over,
    Busy where too many wait, and Unanswered after a long while."""
    until = time.monotonic() + MOST_WAIT_S
    with _waiters.one_more(attempt):
        while (number := _ask(attempt, name, arguments)) is None:
            if time.monotonic() > until:
                raise Busy("the calls before this one have no answer yet; send this one again later")
            _pause()
        while (made := _look(attempt, number)) is None:
            if time.monotonic() > until:
                raise Unanswered(f"{name} has no answer after {MOST_WAIT_S:g} s and may be carried out yet")
            _pause()
    return made


def _pause() -> None:
    give_back()  # there are more threads than connections
    time.sleep(LOOK_S)


@transaction.atomic
def _ask(attempt: ProgramAttempt, name: str, arguments: dict[str, Any]) -> int | None:
    """Write the call down; its number, or None while another one waits."""
    row = locked(attempt)
    if row.open_call is not None:
        if "problem" in row.open_call:
            raise Refused(row.open_call["problem"])
        return None
    row.open_call = {"number": len(row.uses), "name": name, "arguments": arguments}
    row.save(update_fields=["open_call"])
    return len(row.uses)


def _look(attempt: ProgramAttempt, number: int) -> ToolUse | None:
    """The call with its answer; None while it waits."""
    row = ProgramAttempt.objects.select_related("key", "run__version").get(pk=attempt.pk)
    if row.key_id == attempt.key_id and len(row.uses) > number:
        return ToolUse.from_json(row.uses[number])
    if row.key_id == attempt.key_id and row.open_call is not None and "problem" in row.open_call:
        raise Refused(row.open_call["problem"])
    attempt_lifecycle.refuse_over(row)
    if row.key_id != attempt.key_id:
        raise Stale("this attempt was given to another program")
    return None


def reason(row: ProgramAttempt) -> str:
    """Why an attempt that has its answer cannot be judged; empty where its calls are settled and it has no error."""
    asked = row.open_call or {}
    under_way = f"{asked['name']} had no answer yet when the program gave its own" if "name" in asked else ""
    return asked.get("problem") or row.error or under_way


# The worker's side


def waiting(rows: QuerySet[ProgramAttempt]) -> QuerySet[ProgramAttempt]:
    """Those of these attempts in which a call waits for a worker."""
    return rows.filter(state=CLAIMED, open_call__has_key="name")


def begin(row: ProgramAttempt) -> bool:
    """Say that a worker is at the call, before it is; False where it does not wait any more."""
    waits = ProgramAttempt.objects.filter(pk=row.pk, state=CLAIMED, key=row.key_id, open_call=row.open_call)
    return waits.update(open_call={**(row.open_call or {}), "begun": True}) == 1


def end(row: ProgramAttempt, made: ToolUse) -> bool:
    """Store what came of the call; False where the attempt has moved on meanwhile, and nobody waits for it."""

    def put(held: ProgramAttempt) -> None:
        try:
            store(held, made)
            held.open_call = None
        except Refused as refused:
            held.open_call = {"problem": f"{made.name} was carried out and cannot be kept: {refused}"}

    return _settled(row, put)


def fail(row: ProgramAttempt, problem: str) -> bool:
    """Say why the call could not be carried out. The attempt is unscored by it."""
    return _settled(row, lambda held: setattr(held, "open_call", {"problem": problem}))


@transaction.atomic
def _settled(row: ProgramAttempt, settle: Callable[[ProgramAttempt], None]) -> bool:
    held = ProgramAttempt.objects.select_for_update().filter(pk=row.pk, state=CLAIMED, key=row.key_id).first()
    if held is None or held.open_call is None or held.open_call.get("number") != (row.open_call or {}).get("number"):
        return False
    settle(held)
    held.save(update_fields=["open_call", "uses"])
    return True
