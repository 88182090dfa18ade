"""Detectors read trajectories that are new or have grown."""

from django.db import connection

from flywheel.failures.detect import detect, unread

DETECTING = 0x464C59
"""Advisory lock: two workers would only do the same reading twice."""


def detect_waiting(project_id: int | None = None) -> int:
    """Read every unread trajectory (of one project); returns how many. Does nothing while another worker reads."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [DETECTING])
        if not cursor.fetchone()[0]:
            return 0
        try:
            return _read_all(project_id)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [DETECTING])


def _read_all(project_id: int | None) -> int:
    """One pass, by primary key: what grows again while we read waits for the next pass, so that a pass always ends."""
    count = last = 0
    while rows := unread(project_id, after=last):
        detect(rows)
        count += len(rows)
        last = rows[-1].pk
    return count
