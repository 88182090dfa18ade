"""Whether a split holds at the moment, as this process can know.

The judge of a ramp writes into the split until when it holds, by the clock of the database, and does so again every
second. The time that is left is measured by that same clock and then counted down here, on one that nobody sets. A
lease counts from when this process first saw it: one that is not renewed runs out, whatever any clock says then.
"""

import functools
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Func, OuterRef, Subquery

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.agents.models import Agent, Split, Version
from flywheel.core.redaction import Redactor

LEASE_S = 10.0
"""How long a split holds without its judge."""
IS_OPEN = {"closed_at": None, "share__gt": 0}
OPEN = Subquery(Split.objects.filter(agent=OuterRef("pk"), closed_at=None).values("pk")[:1])
"""Of an agent the split that is open, whether its candidate gets anything or not."""
_LEFT = ExpressionWrapper(
    F("lease_until") - Func(function="clock_timestamp", output_field=DateTimeField()), output_field=DurationField()
)


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """A split that holds until some moment."""

    row: Split
    served: str
    """As `Agent.served`."""
    project_id: int
    until: float
    """By `time.monotonic`."""
    redactor: Redactor
    """The project's, as it was when the split was found: so a call that meets its arm asks the database once."""

    @property
    def is_held(self) -> bool:
        return time.monotonic() < self.until


_leases: dict[int, tuple[datetime, float]] = {}
"""Of each split the lease that was seen last, and until when it holds by `time.monotonic`."""
_lock = threading.Lock()


def find(agent: Agent) -> OpenSplit | None:
    """The agent's split with both versions, where it holds beside the live version that it was made for."""
    return _held(Split.objects.filter(agent=agent, **IS_OPEN))


def find_shadow(agent: Agent) -> OpenSplit | None:
    """The same of a split whose candidate gets only copies of calls."""
    return _held(Split.objects.filter(agent=agent, closed_at=None, share=0, shadow__is_on=True))


def taken_back(agent: Agent) -> Split | None:
    """The split whose holdback has shown harm, while the agent's live version is still the harmful one: the version
    before, its `live`, answers everybody."""
    rows = Split.objects.filter(agent=agent, closed_at=None, share=0, is_holdback=True, candidate=agent.live_id)
    row = rows.first()
    if row is not None:
        row.live = _version(row.live_id)
    return row


def _held(rows: Any) -> OpenSplit | None:
    began = time.monotonic()
    row = rows.annotate(
        left=_LEFT, live_now=F("agent__live"), served_now=F("agent__served"), project_now=F("agent__project_id")
    ).first()
    if row is None or row.live_now != (row.candidate_id if row.is_holdback else row.live_id):
        return None
    until = _until(row.pk, row.lease_until, row.left, began)
    redactor = redactor_of(Project(pk=row.project_now))
    found = OpenSplit(row, row.served_now, row.project_now, until, redactor)
    if not found.is_held:
        return None
    row.live, row.candidate = _version(row.live_id), _version(row.candidate_id)
    return found


@functools.lru_cache(256)
def _version(pk: int) -> Version:
    """A version never changes, and no query for a call should join all that it is made of, twice."""
    return Version.objects.select_related("agent", "weights", "adapter").get(pk=pk)


def _until(split: int, lease: datetime, left: timedelta, began: float) -> float:
    with _lock:
        known = _leases.get(split)
        if known is None or known[0] != lease:
            known = _leases[split] = lease, began + min(left.total_seconds(), LEASE_S)
        return known[1]
