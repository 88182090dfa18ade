"""Which arm of a split answers a call: the one that its unit has met, at a unit's first call the one its coin says.

That a unit meets its arm is written down before the caller hears anything, which takes the database a millisecond. A
call that begins a conversation goes its coin's way at once, and the row is written while the server thinks: nobody can
have met its unit. Where the row says otherwise all the same (the session is older, the share went up or the split ended
a moment ago), the answer is dropped unread, and the call's way is looked up once more.

A call that names no session but the answer which it goes on from stays with the arm that gave it: no other server knows
it. Where none of this split did, the live version answers, which had the conversation before the ramp.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import Error

from flywheel.agents.models import SplitUnit
from flywheel.agents.splits import named_answers
from flywheel.agents.splits.assignment import coin
from flywheel.agents.splits.met_units import kept, met_units
from flywheel.trajectories.ingest.gateway.arms.shadow_copies import changes_nothing
from flywheel.trajectories.ingest.gateway.call_names import CallNames
from flywheel.trajectories.ingest.gateway.routing import (
    AWAY,
    Fork,
    Route,
    give_back_connection,
    is_database_away,
    lose_database,
)

AT_ONCE = 24
"""Units of one process that meet their arm beside a call: as many as it has calls under way."""
ASKING = ("system", "developer", "user")
"""Roles of what is said before the first answer."""

_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gateway-arms")
submit: Callable[[Callable[[], Route]], Future[Route]] = _pool.submit


class Misguessed(Exception):
    """The coin did not decide: the unit had met the other arm, the split is over, or that could not be found out."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where a call goes."""

    route: Route
    meet: Callable[[], Route] | None = None
    """Where the route is what the coin says, has the unit meet its arm; in any thread."""
    keep_name: Callable[[str], None] | None = None
    """Where a further call may name the answer instead of its unit, keeps its name."""

    @property
    def is_guess(self) -> bool:
        return self.meet is not None

    @contextmanager
    def confirmed(self) -> Iterator[None]:
        """Have the unit meet its arm while the server is asked. In the end raises Misguessed."""
        if self.meet is None:
            yield
            return
        met = submit(self.meet)
        try:
            yield
        finally:
            try:
                is_right = met.result() is self.route
            except Error as error:
                raise Misguessed from error
            if not is_right:
                raise Misguessed


def way_of(fork: Fork, names: CallNames, asked: dict[str, Any], *, may_guess: bool) -> Way:
    """The way of this call's unit; that of the live version where the split does not hold any more. Raises
    django.db.Error for what is wrong with the call."""
    split, unit = fork.split, names.unit
    if not split.is_held:
        return Way(fork.otherwise)
    if split.row.share == 0:  # nobody meets an arm
        return Way(fork.live)
    is_chained = names.is_response and unit.kind != SplitUnit.Kind.SESSION
    after = names.follows if is_chained else ""
    keep_name = partial(named_answers.keep, split, unit=unit, after=after) if is_chained else None
    if after:
        return Way(_route_by(fork, lambda: named_answers.arm_after(split, after, unit)), keep_name=keep_name)
    is_candidate = met_units.recall(split, unit)
    if is_candidate is not None:
        return Way(_arm(fork, is_candidate), keep_name=keep_name)

    def meet() -> Route:
        return _route_by(fork, lambda: met_units.meet(split, unit, trace_id=names.trace))

    if not (may_guess and _begins(asked) and _leaves_nothing(asked, names)):
        return Way(meet(), keep_name=keep_name)
    thrown = coin(split.row.salt, split.project_id, split.row.agent_id, kept(split, unit))
    return Way(_arm(fork, thrown < split.row.share), meet, keep_name)


def _arm(fork: Fork, is_candidate: bool) -> Route:
    return fork.candidate if is_candidate else fork.live


def _route_by(fork: Fork, ask: Callable[[], bool | None]) -> Route:
    """The way that the database says: whether the candidate's, or None for the live version's."""
    if is_database_away():
        return fork.otherwise
    try:
        is_candidate = ask()
    except AWAY:
        lose_database()
        return fork.otherwise
    finally:
        give_back_connection()
    return fork.otherwise if is_candidate is None else _arm(fork, is_candidate)


def _begins(asked: dict[str, Any]) -> bool:
    """Whether the request repeats no answer, so that it is the first call of its conversation."""
    said = asked.get("messages", asked.get("input"))
    rows = said if isinstance(said, list) else []
    return all(isinstance(row, dict) and row.get("role") in ASKING for row in rows)


def _leaves_nothing(asked: dict[str, Any], names: CallNames) -> bool:
    """Whether nothing of the call stays at the server that is asked: responses are stored unless that is refused."""
    return changes_nothing(asked) and not asked.get("store", names.is_response)
