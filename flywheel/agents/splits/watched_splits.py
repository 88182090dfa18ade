"""Splits that calls went by lately, looked at twice a second, so that none of their calls has to.

A process trusts what it knows of a split for a second. Where calls are further apart, each would ask the database again
how it stands; instead a thread asks, for all such splits at once, whether they are what they were.
"""

import contextlib
import logging
import threading
import time

from django.db import Error, connection

from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.system.sql import planned

log = logging.getLogger(__name__)

EVERY_S = 0.5


class WatchedSplits:
    """For several threads; its own runs only while there is something to watch."""

    def __init__(self, for_s: float) -> None:
        """A split is watched for that long after the last `watch`."""
        self._for_s = for_s
        self._until: dict[int, tuple[OpenSplit, float]] = {}
        self._seen: dict[int, tuple[int, float]] = {}
        """Of each split the generation in which it was seen last, and when."""
        self._lock = threading.Lock()
        self._is_running = False

    def watch(self, split: OpenSplit) -> None:
        with self._lock:
            self._until[split.row.pk] = split, time.monotonic() + self._for_s
            if not self._is_running:
                thread = threading.Thread(target=self._run, name="watched-splits", daemon=True)
                thread.start()
                self._is_running = True

    def seen_at(self, split: OpenSplit) -> float:
        """When the database said last, by `time.monotonic`, that the split and its agent are as they are known; 0 where
        it was never asked."""
        with self._lock:
            generation, at = self._seen.get(split.row.pk, (0, 0.0))
        return at if generation == split.row.generation else 0.0

    def look(self) -> bool:
        """Ask once; False where nothing is watched any more. Raises django.db.Error."""
        now = time.monotonic()
        with self._lock:
            self._until = {pk: known for pk, known in self._until.items() if known[1] > now}
            splits = [split for split, _ in self._until.values()]
            self._seen = {pk: seen for pk, seen in self._seen.items() if pk in self._until}
            self._is_running = bool(splits)
        if not splits:
            return False
        rows = [split.row for split in splits]
        found = planned(
            _AS_KNOWN,
            [
                [row.pk for row in rows],
                [row.generation for row in rows],
                [row.candidate_id if row.is_holdback else row.live_id for row in rows],
                [split.served for split in splits],
            ],
        )
        with self._lock:
            self._seen |= {pk: (generation, now) for pk, generation in found}
        return True

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            try:
                if not self.look():
                    return
            except Error as error:  # then calls ask themselves, and say what is wrong
                log.info("the splits that are watched could not be looked at: %s", str(error).strip())
            except Exception:
                log.exception("the splits that are watched could not be looked at")
            finally:
                with contextlib.suppress(Error):
                    connection.close()


_AS_KNOWN = """
SELECT split.id, split.generation
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[]) AS known (id, generation, live, served)
JOIN agents_split AS split ON split.id = known.id AND split.generation = known.generation AND split.closed_at IS NULL
JOIN agents_agent AS agent ON agent.id = split.agent_id AND agent.live_id = known.live AND agent.served = known.served
"""
"""Every move of a split gives it another generation."""
