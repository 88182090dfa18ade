"""Journals into the store, on one thread of each process, after the last byte was sent.

A journal whose recording fails stays where it is and is tried again: by this thread, by that of another process, or by
the sweeper in beat (`sweep`), whoever has it locked. A step's id is the call's, so that no call is recorded twice.
"""

import hashlib
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence

from django.db import Error, InterfaceError, OperationalError, connection

from flywheel.accounts.models import ApiKey, Project
from flywheel.core.traces import Trace
from flywheel.trajectories.ingest.gateway import attempt_calls
from flywheel.trajectories.ingest.gateway.journals import journal_traces
from flywheel.trajectories.ingest.gateway.journals.journal import Journal, left_lying, second_chance
from flywheel.trajectories.ingest.gateway.journals.journal_contents import Seen, read
from flywheel.trajectories.models import Source
from flywheel.trajectories.store.batch_ledger import Origin
from flywheel.trajectories.store.merge import store

log = logging.getLogger(__name__)

FORMAT = "gateway"
WAITING_MAX = 200
"""Journals that wait for the thread, each an open file; more of them wait on the disk."""
AT_ONCE, BYTES_AT_ONCE = 32, 16 * 2**20
GATHER_S = 0.7
"""How long the thread waits for more before it stores: calls stored together cost a third, and nobody waits."""
AWAITED_S = 0.2
"""The same where the first is a call of an attempt, which is judged as soon as it is recorded."""
SWEEP_EVERY_S = 10.0
PAUSE_S, PAUSE_MAX_S = 0.5, 15.0


class Recorder:
    """The thread and its queue. `put` never blocks and never raises."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Journal] = queue.Queue(WAITING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = 0
        self._is_away = False
        """The database refused the last calls: the next ones go to the disk at once."""
        self.recorded = 0
        """Calls that this process recorded."""
        self.put_off = 0
        """How often a call had to wait for another attempt."""
        self.put_aside = 0
        """Calls that could not be recorded for a reason of their own."""

    def put(self, journal: Journal) -> None:
        if journal.is_off:
            return
        try:
            self._ensure_thread()
            if self._is_away and journal.memory is None:
                self.put_off += 1
                journal.keep()
            else:
                self._waiting.put_nowait(journal)
        except queue.Full:
            self.put_off += 1
            log.warning("%s gateway calls wait to be recorded; the next wait on the disk", WAITING_MAX)
            journal.keep()
            if journal.memory is not None:
                journal.lose("too many wait, and it is on no disk")
        except Exception:
            log.exception("a gateway call waits to be recorded")
            journal.keep()
            if journal.memory is not None:
                journal.lose("no thread takes it, and it is on no disk")

    def settle(self, within_s: float = 10.0) -> bool:
        """Wait until everything that was put is recorded or put off; for tests and benchmarks."""
        deadline = time.monotonic() + within_s
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self._waiting.unfinished_tasks

    def _ensure_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive() and self._process == os.getpid():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive() or self._process != os.getpid():
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="gateway-recorder", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        second_chance()
        pause_s = PAUSE_S
        swept = 0.0
        held: list[Journal] = []
        """In memory, and refused by the database so far."""
        while True:
            batch = held + self._next()
            held = []
            try:
                if batch:
                    held = self._record(batch)
                if held or (batch and self._is_away):
                    time.sleep(pause_s)
                    pause_s = min(pause_s * 2, PAUSE_MAX_S)
                elif time.monotonic() - swept > SWEEP_EVERY_S:
                    pause_s, swept = PAUSE_S, time.monotonic()
                    self.sweep()
            except Exception:
                log.exception("the gateway's recorder goes on")
                time.sleep(pause_s)
            finally:
                connection.close()

    def _next(self) -> list[Journal]:
        """Take the waiting journals, after a moment for more; empty now and then, so that the disk is looked at."""
        try:
            batch = [self._waiting.get(timeout=SWEEP_EVERY_S)]
        except queue.Empty:
            return []
        time.sleep(AWAITED_S if batch[0].is_awaited else GATHER_S)
        while len(batch) < AT_ONCE:
            try:
                batch.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return batch

    def _record(self, batch: list[Journal]) -> list[Journal]:
        """Record what waited. Returns what is in memory and has to be tried again."""
        try:
            self._is_away = False
            self.record(batch)
            return []
        except (OperationalError, InterfaceError) as error:
            self._is_away = True
            self.put_off += len(batch)
            log.warning("%s gateway calls wait, the database is away: %s", len(batch), str(error).strip())
            for journal in batch:
                journal.keep()
            return [journal for journal in batch if journal.memory]
        finally:
            for _ in range(min(len(batch), self._waiting.unfinished_tasks)):
                self._waiting.task_done()

    def record(self, journals: Sequence[Journal]) -> None:
        """Store these calls: together, or one by one where one is in the way. Raises when the database is away."""
        batch: list[Journal] = []
        size = 0
        for journal in journals:
            if batch and size + len(journal) > BYTES_AT_ONCE:
                self._record_together(batch)
                batch, size = [], 0
            batch.append(journal)
            size += len(journal)
        self._record_together(batch)

    def _record_together(self, batch: Sequence[Journal]) -> None:
        every = [(journal, seen) for journal in batch if (seen := self._read(journal)) is not None]
        readable = [each for each in every if not is_for_nobody(each[1])]
        for journal, _ in (each for each in every if is_for_nobody(each[1])):
            journal.done()
        groups: dict[tuple[int, int | None, Source], list[tuple[Journal, Seen]]] = {}
        attempts = [(journal, seen) for journal, seen in readable if seen.head.get("attempt")]
        if attempts:
            self._keep(attempts)
        for journal, seen in readable:
            if seen.head.get("attempt"):
                continue
            source = Source.SHADOW if seen.head.get("shadow") else Source.PRODUCTION
            groups.setdefault((seen.head["project"], seen.head.get("key"), source), []).append((journal, seen))
        for (project_id, key_id, source), group in groups.items():
            project = Project.objects.filter(pk=project_id).first()
            key = ApiKey.objects.filter(pk=key_id).first() if key_id else None
            if project is None:
                for journal, _ in group:
                    log.warning("a gateway call of a project that is gone is not recorded")
                    journal.done()
                continue
            try:
                self._store(project, key, source, group)
            except (OperationalError, InterfaceError):
                raise
            except Exception:
                for one in group:
                    self._store_alone(project, key, source, one)

    def _keep(self, group: list[tuple[Journal, Seen]]) -> None:
        """Keep calls of attempts for whoever judges these."""
        try:
            attempt_calls.keep([seen for _, seen in group])
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            if len(group) > 1:
                for one in group:
                    self._keep([one])
                return
            log.exception("a model call of an attempt cannot be recorded")
            self.put_aside += 1
            group[0][0].put_aside()
            return
        for journal, _ in group:
            journal.done()
        self.recorded += len(group)

    def _store_alone(self, project: Project, key: ApiKey | None, source: Source, one: tuple[Journal, Seen]) -> None:
        try:
            self._store(project, key, source, [one])
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            log.exception("a gateway call cannot be recorded; if it is in bad/, it is tried again at the next start")
            self.put_aside += 1
            one[0].put_aside()

    def _store(self, project: Project, key: ApiKey | None, source: Source, group: list[tuple[Journal, Seen]]) -> None:
        parts: list[Trace] = [journal_traces.trace_of(seen) for _, seen in group]
        content = hashlib.sha256(b"".join(seen.head["id"].encode() for _, seen in group)).hexdigest()
        store(project, parts, source=source, format=FORMAT, origin=Origin(key=key, sha256=content))
        for journal, _ in group:
            journal.done()
        self.recorded += len(group)

    def _read(self, journal: Journal) -> Seen | None:
        if journal.is_lost:
            return None
        try:
            seen = read(journal.content())
            assert isinstance(seen.head["project"], int)
            return seen
        except Exception:
            log.exception("a journal of a gateway call cannot be read")
            self.put_aside += 1
            journal.put_aside()
            return None

    def sweep(self, limit: int = 500) -> int:
        """Record what lies there and nobody is at: calls of a process that was killed, or that the database refused."""
        done = 0
        try:
            while found := sum(self._sweep(batch) for batch in _batches(left_lying(limit))):
                done += found
            self._is_away = False
        except Error as error:
            self._is_away = True
            log.warning("gateway calls still wait for the database: %s", str(error).strip())
        return done

    def _sweep(self, batch: list[Journal]) -> int:
        try:
            self.record(batch)
        finally:
            for journal in batch:
                journal.close()
        return len(batch)


def is_for_nobody(seen: Seen) -> bool:
    """Whether it is a call whose process ended and of which nobody has heard: a shadow's whose answer was not over, or
    one that was sent to an arm before that was known to be its own."""
    is_unheard = bool(seen.head.get("is_guess")) and not seen.pieces
    return seen.end is None and (bool(seen.head.get("shadow")) or is_unheard)


def _batches(journals: Iterator[Journal]) -> Iterator[list[Journal]]:
    while batch := list(itertools.islice(journals, AT_ONCE)):
        yield batch


recorder = Recorder()
sweep = recorder.sweep
