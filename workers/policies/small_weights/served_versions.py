"""The versions that are served from here: each in a process of its own, which takes what waits for it in one batch.

A version is loaded when somebody asks for it, or when it goes live or gets a split while another one of its agent is
loaded. It stays as long as it is live, in an open split, or was live just before, so that a way back finds it ready,
and else while it is asked for.
"""

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import Error, connection

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.weights import served_weights
from flywheel.core.digests import canonical
from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.traces import tooling
from flywheel.promotions.models import Promotion
from workers.engines.process_engine import ProcessEngine
from workers.engines.streamed_answers import Call, Heard
from workers.policies.small_weights.served_calls import Asked, Refused

log = logging.getLogger(__name__)

BATCH = 64
"""Requests of one batch."""
WAITING = 256
"""Requests that may wait for one version."""
MOST_LOADED = 8
"""Versions loaded at once; where one more is asked for, the one that was asked longest ago gives way."""
IDLE_S = 300.0
"""How long a version that is not live, nor was it just before, stays without being asked for."""
PAUSE_S = 10.0
"""Between two starts of a version that ended with a problem: one that had lived for longer is started again at once."""
RETRY_AFTER_S = 2
PARTS = ("agent", "weights", "adapter")
"""What a version's name and size are made of."""
CANNOT = (EngineError, artifacts.ArtifactError, OSError)


@dataclass(slots=True)
class Waiter:
    """Whoever waits for the answer of a call."""

    call: Call
    heard: "queue.SimpleQueue[Heard | Refused]" = field(default_factory=queue.SimpleQueue)
    is_over: bool = False

    def end(self, refused: Refused) -> None:
        if not self.is_over:
            self.is_over = True
            self.heard.put(refused)


def away(problem: str, code: str = "version_unavailable", status: int = 503) -> Refused:
    return Refused(status, problem, code=code)


class ServedVersion:
    """One version, and the requests that wait for it. Its thread ends when it is closed or its process does."""

    def __init__(self, name: str, version: Version, ended: Callable[["ServedVersion"], None]) -> None:
        self.name, self.version = name, version
        self.begun = self.used = time.monotonic()
        self.problem = ""
        """Why it does not answer any more."""
        self.is_loaded = False
        self._ended = ended
        self._own_tools: dict[bytes, dict[str, Any]] = {canonical(tooling.plain(tool)): tool for tool in version.tools}
        self._waiting: queue.SimpleQueue[Waiter | None] = queue.SimpleQueue()
        self._open: dict[int, Waiter] = {}
        """Waiters that were not told the end, by their calls."""
        self._engine: ProcessEngine | None = None
        threading.Thread(target=self._run, name=f"serving {name}", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def ask(self, key: int, asked: Asked) -> Waiter:
        """Raises Refused."""
        settings = self.version.endpoint.get("chat_template_kwargs")
        if asked.template is not None and asked.template != (settings or {}):
            raise Refused(
                400,
                f"chat_template_kwargs are the version's own here: {settings or {}}",
                param="chat_template_kwargs",
            )
        if len(self._open) >= WAITING:
            raise away(f"{WAITING} requests wait for {self.name} already; try again", "overloaded")
        self.used = time.monotonic()
        request = replace(asked.request, tools=tuple(self._as_in_evals(tool) for tool in asked.request.tools))
        waiter = Waiter(Call(key, request, asked.stop, asked.is_streamed))
        self._open[key] = waiter
        self._waiting.put(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Nobody waits any more."""
        waiter.is_over = True
        if self._open.pop(waiter.call.key, None) and self._engine is not None:
            self._engine.leave(waiter.call.key)

    def close(self) -> None:
        """Answer what waits, then end."""
        self._waiting.put(None)

    def _as_in_evals(self, tool: dict[str, Any]) -> dict[str, Any]:
        """A tool of the version as its chat template is shown it in evals, with what a definition says beside."""
        return dict(self._own_tools.get(canonical(tool["function"]), tool))

    def _run(self) -> None:
        try:
            self._engine = ProcessEngine(self.version.endpoint | artifacts.places(self.version))
            self.is_loaded = True
            while (batch := self._batch()) is not None:
                answers = self._engine.speak([waiter.call for waiter in batch], self._hear)
                for waiter, answer in zip(batch, answers, strict=False):  # which there are where nobody was asked
                    self._hear(Heard(waiter.call.key, answer=answer))
        except CANNOT as error:
            self.problem = f"{self.version} does not answer: {error}"
            log.warning("%s", self.problem)
        except Exception as error:
            self.problem = f"{self.version} does not answer: {type(error).__name__}"
            log.exception("%s cannot be served", self.version)
        finally:
            self._ended(self)
            if self._engine is not None:
                self._engine.close()
            why = away(self.problem or f"{self.name} was let go; ask again")
            for waiter in list(self._open.values()):
                waiter.end(why)
            self._open.clear()

    def _batch(self) -> list[Waiter] | None:
        """All that wait, when somebody does; None when it is to end."""
        batch: list[Waiter] = []
        while not batch:
            first = self._waiting.get()
            if first is None:
                return None
            batch = [first]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH:
                    waiter = self._waiting.get_nowait()
                    if waiter is None:
                        self._waiting.put(None)  # after this batch
                        break
                    batch.append(waiter)
            batch = [waiter for waiter in batch if not waiter.is_over]
        return batch

    def _hear(self, heard: Heard) -> None:
        waiter = self._open.get(heard.key)
        if waiter is None:
            return
        if heard.answer is not None:
            waiter.is_over = True
            self._open.pop(heard.key, None)
        waiter.heard.put(heard)


class ServedVersions:
    """All that are served, by their names. For several threads."""

    def __init__(self) -> None:
        self._served: dict[str, ServedVersion] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._keys = itertools.count(1)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._served)

    def ask(self, asked: Asked) -> tuple[ServedVersion, Waiter]:
        """Have the version's next batch hold the request. Raises Refused."""
        with self._lock:
            known = self._served.get(asked.model)
            if known is not None:
                return known, known.ask(next(self._keys), asked)
        version = self._find(asked.model)
        with self._lock:
            served = self._served.get(asked.model) or self._begin(asked.model, version)
            return served, served.ask(next(self._keys), asked)

    def tend(self) -> None:
        """Load what went live, and let go what nobody needs."""
        needed = self._needed()
        with self._lock:
            for name, version in needed.items():
                # Nothing gives way for it: what does might be wanted as much, and come back in its turn.
                has_room = len(self._served) < MOST_LOADED
                if name not in self._served and version is not None and has_room:
                    with contextlib.suppress(Refused):
                        self._begin(name, version)
            for served in list(self._served.values()):
                if served.name not in needed and not served.is_busy and time.monotonic() - served.used > IDLE_S:
                    self._let_go(served)

    def close(self) -> None:
        with self._lock:
            for served in list(self._served.values()):
                self._let_go(served)

    def _find(self, name: str) -> Version:
        try:
            version = served_weights.find(name)
        except Error as error:
            raise away("Flywheel's database is away; try again", "database_away") from error
        finally:
            _give_back_connection()
        if version is None or served_weights.name_of(version) != name:
            raise Refused(404, f"there is no version {name!r}", param="model", code="model_not_found")
        if not served_weights.is_served(version):
            raise Refused(
                400,
                f"{version} is not served here: it has {served_weights.size_of(version):,} bytes of weights, and "
                f"FLYWHEEL_SERVED_MB allows {served_weights.limit():,}",
                param="model",
                code="version_not_served",
            )
        return version

    def _begin(self, name: str, version: Version) -> ServedVersion:
        """Raises Refused."""
        begun, problem = self._failed.get(name, (0.0, ""))
        if problem and time.monotonic() - begun < PAUSE_S:
            raise away(problem)
        if len(self._served) >= MOST_LOADED:
            idle = [served for served in self._served.values() if not served.is_busy]
            if not idle:
                raise away(f"{len(self._served)} versions are answering, and no more are loaded at once", "overloaded")
            self._let_go(min(idle, key=lambda served: served.used))
        made = self._served[name] = ServedVersion(name, version, self._forget)
        return made

    def _let_go(self, served: ServedVersion) -> None:
        if self._served.get(served.name) is served:
            del self._served[served.name]
        served.close()

    def _forget(self, served: ServedVersion) -> None:
        """It has ended, with a problem or because it was let go."""
        with self._lock:
            if self._served.get(served.name) is served:
                del self._served[served.name]
            if served.problem:
                self._failed[served.name] = served.begun, served.problem

    def _needed(self) -> dict[str, Version | None]:
        """Return what stays, by name: of each agent that something is loaded of its live version and both of an open
        split, which are loaded where they are not, and the one before. Raises django.db.Error."""
        with self._lock:
            agents = {served.version.agent_id for served in self._served.values()}
        if not agents:
            return {}
        try:
            live = (f"live__{part}" for part in PARTS)
            rows = Agent.objects.filter(pk__in=agents).exclude(live=None).select_related(*live)
            needed: dict[str, Version | None] = dict(_named(agent.live for agent in rows if agent.live))
            last = Promotion.objects.filter(agent__in=agents).exclude(before=None).select_related("before__agent")
            before = last.order_by("agent", "-generation").distinct("agent")
            arms = ("live", "candidate")
            splits = Split.objects.filter(agent__in=agents, closed_at=None)
            for split in splits.select_related(*(f"{arm}__{part}" for arm in arms for part in PARTS)):
                needed |= dict(_named([split.live, split.candidate]))
            return {served_weights.name_of(row.before): None for row in before if row.before} | needed
        finally:
            _give_back_connection()


def _named(versions: Iterable[Version]) -> Iterable[tuple[str, Version]]:
    return ((served_weights.name_of(version), version) for version in versions if served_weights.is_served(version))


def _give_back_connection() -> None:
    """Threads come and go, and need it once."""
    if not connection.in_atomic_block:
        connection.close()
