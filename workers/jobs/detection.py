"""Detectors read trajectories that are new or have grown.

While more arrives than they could read, and the processor is wanted for storing it, they wait between two batches.
Niceness alone would not do: PostgreSQL works for everybody alike, and a thread that runs in each short pause of the
others keeps them from going on at once.
"""

import time

from django.db import connection
from django.db.models import Sum

from flywheel.failures.detectors import detector_settings
from flywheel.failures.detectors.proposals import detect, make_searchable, unread
from flywheel.failures.similar_failures import sketches
from flywheel.trajectories.models import Batch
from workers.processes.niceness import Crowd

DETECTING = 0x464C59
"""Advisory lock: two workers would only do the same reading twice."""
CROWDED = 0.25
"""Share of the time in which others had the processor, from which on detectors give way."""
AT_ONCE = 100
"""Trajectories that are read between two looks at what arrives."""
FLOOD = 3000
"""Spans a second: about what detectors read with a processor of their own. Of less than that they keep abreast."""
GIVE_WAY_S, LOOK_S = 10.0, 0.5
"""How long they wait after a batch at most, so that they come to an end in the longest flood too."""


def detect_waiting(project_id: int | None = None) -> int:
    """Read every unread trajectory (of one project); returns how many, rollouts aside. Does nothing while another
    worker reads."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [DETECTING])
        if not cursor.fetchone()[0]:
            return 0
        try:
            return _read_all(project_id)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [DETECTING])


def _read_all(project_id: int | None) -> int:
    """One pass. Rollouts come last, since nobody waits to be told what is wrong with them: between a hundred and the
    next, what arrived meanwhile is read. Of any project, since its wake-up found us at it.
    """
    crowd = Crowd()
    count = _read_traffic(project_id, crowd)
    last = 0
    while rollouts := unread(project_id, AT_ONCE, last, are_rollouts=True):
        make_searchable(rollouts)
        last = rollouts[-1].pk
        if crowd.share() > CROWDED:
            _give_way()
        count += _read_traffic(None, crowd)
    return count


def _read_traffic(project_id: int | None, crowd: Crowd) -> int:
    """By primary key: what grows again while we read waits for the next time, so that this always ends."""
    detector_settings.catch_up(project_id)
    count = last = 0
    while rows := unread(project_id, AT_ONCE, last):
        detect(rows)
        sketches.keep([row.pk for row in rows])
        count += len(rows)
        last = rows[-1].pk
        if crowd.share() > CROWDED:
            _give_way()
    return count


def _give_way() -> None:
    """Wait until the flood is over, or for as long as anybody may be made to wait."""
    until = time.monotonic() + GIVE_WAY_S
    newest = _newest()
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        seen, newest = newest, _newest()
        arrived = Batch.objects.filter(pk__gt=seen, pk__lte=newest).aggregate(spans=Sum("received"))["spans"] or 0
        if arrived < FLOOD * LOOK_S:
            return


def _newest() -> int:
    """The last row of the ledger."""
    return Batch.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
