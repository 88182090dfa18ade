"""Calls of an attempt's tools that only a worker can carry out: in a world of Python, at a team's tool server.

The web process writes the call down on the attempt's row and looks until its answer stands there; the worker that has
the eval carries it out (`workers.policies.tool_carriers`). One call of an attempt waits at a time. A call whose worker
was killed is carried out by the next one, unless it was perhaps done at a server that cannot begin anew: then the
attempt is unscored, and says so.
"""

import time
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from flywheel.core.digests import canonical
from flywheel.edge.refusals import Refused, Stale
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.attempts.attempt_lifecycle import CLAIMED
from flywheel.evals.attempts.program_rollouts import ToolUse
from flywheel.evals.models import ProgramAttempt

LOOK_S = 0.03
MOST_USES = 500
"""Calls in one turn of an attempt."""
USES_MAX = 4 * 2**20
"""Bytes of the calls of one turn with their results, as they are stored."""


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
    """Let a worker carry the call out, and wait for it until the attempt's time is up. Raises Refused, Stale, Over."""
    while (number := _ask(attempt, name, arguments)) is None:
        time.sleep(LOOK_S)
    while (made := _look(attempt, number)) is None:
        time.sleep(LOOK_S)
    return made


@transaction.atomic
def _ask(attempt: ProgramAttempt, name: str, arguments: dict[str, Any]) -> int | None:
    """Write the call down; its number, or None while another one waits."""
    row = locked(attempt)
    if row.open_call is not None:
        if row.open_call.get("is_fault"):
            raise Refused(row.open_call["problem"])
        if "problem" not in row.open_call:
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


# The worker's side


def waiting(rows: QuerySet[ProgramAttempt]) -> QuerySet[ProgramAttempt]:
    """Those of these attempts in which a call waits for a worker."""
    return rows.filter(state=CLAIMED, open_call__has_key="name").select_related("task", "run")


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
            held.open_call = {"problem": str(refused), "is_fault": False}

    return _settled(row, put)


def fail(row: ProgramAttempt, problem: str) -> bool:
    """Say why the call could not be carried out. The attempt is unscored by it."""
    return _settled(row, lambda held: setattr(held, "open_call", {"problem": problem, "is_fault": True}))


@transaction.atomic
def _settled(row: ProgramAttempt, settle: Callable[[ProgramAttempt], None]) -> bool:
    held = ProgramAttempt.objects.select_for_update().filter(pk=row.pk, state=CLAIMED, key=row.key_id).first()
    if held is None or held.open_call is None or held.open_call.get("number") != (row.open_call or {}).get("number"):
        return False
    settle(held)
    held.save(update_fields=["open_call", "uses"])
    return True
