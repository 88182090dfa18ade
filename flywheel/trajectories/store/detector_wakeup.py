"""Tell the detectors that there is something to read: at once, and then at most once in `PAUSE_S` per project.

A wake-up is a message in the database; a burst of requests needs one at its beginning and one at its end. When
the process dies in between, or the broker is away, the sweeper wakes them.
"""

import logging
import threading
import time

from django.db import transaction

from flywheel.system import broker

log = logging.getLogger(__name__)

PAUSE_S = 1.0

_lock = threading.Lock()
_last: dict[int, float] = {}
_waiting: set[int] = set()


def soon(project_id: int) -> None:
    """Wake the detectors now, or when the pause since the last time is over."""
    with _lock:
        if project_id in _waiting:
            return
        wait = _last.get(project_id, -PAUSE_S) + PAUSE_S - time.monotonic()
        if wait > 0:
            _waiting.add(project_id)
            timer = threading.Timer(wait, _later, [project_id])
            timer.daemon = True
            timer.start()
            return
        _last[project_id] = time.monotonic()
    now(project_id)


def after_commit(project_id: int) -> None:
    """Wake them `soon` after what this transaction stores can be read."""
    transaction.on_commit(lambda: soon(project_id), robust=True)


def _later(project_id: int) -> None:
    with _lock:
        _waiting.discard(project_id)
        _last[project_id] = time.monotonic()
    now(project_id)


def now(project_id: int) -> None:
    try:
        broker.app().send_task("workers.detect", [project_id], retry=False)
    except Exception:
        log.warning("no wake-up for project %s: the broker does not answer", project_id, exc_info=True)
