"""Calls of programs' tools in worlds that only a worker plays, carried out while their eval runs.

They wait on the attempts' rows (`evals.attempts.waiting_calls`), for programs that are called and that pull alike.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from flywheel.core import envs
from flywheel.core.envs.worlds.own_world import world_of
from flywheel.core.envs.worlds.server_world import ServerWorld
from flywheel.evals.attempts import attempt_tools, waiting_calls
from flywheel.evals.models import EvalRun, ProgramAttempt
from flywheel.trajectories.formats.values.hostile_json import text

log = logging.getLogger(__name__)

AT_ONCE = 8
LOOK_S = 0.03
SHOWN = 2_000
"""Characters of a reason."""


class ToolCarrier:
    """A context manager; calls are carried out until it is left."""

    def __init__(self, run: EvalRun, env: envs.Environment) -> None:
        self._run, self._env = run, env
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        """Keys of the rows whose call is carried out here, now."""
        self._thread = threading.Thread(target=self._work, name="tools", daemon=True)

    def __enter__(self) -> "ToolCarrier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        rows = ProgramAttempt.objects.filter(run=self._run)
        try:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tool") as pool:
                while not self._stopped.is_set():
                    try:
                        for row in waiting_calls.waiting(rows):
                            if self._is_mine(row.pk):
                                pool.submit(self._carry_out, row)
                    except Exception:
                        log.exception("calls of tools of eval %s cannot be looked for", self._run.pk)
                        connections.close_all()
                        time.sleep(1)
                    self._stopped.wait(LOOK_S)
                pool.shutdown(cancel_futures=True)
        finally:
            connections.close_all()

    def _is_mine(self, key: int) -> bool:
        with self._lock:
            if key in self._begun:
                return False
            self._begun.add(key)
            return True

    def _carry_out(self, row: ProgramAttempt) -> None:
        try:
            row = waiting_calls.waiting(ProgramAttempt.objects.filter(pk=row.pk)).first() or row
            self._answer(row, row.open_call or {})
        except Exception:
            log.exception("a call of a tool of attempt %s could not be stored", row.pk)
        finally:
            connections.close_all()
            with self._lock:
                self._begun.discard(row.pk)

    def _answer(self, row: ProgramAttempt, asked: dict[str, Any]) -> None:
        if "name" not in asked or self._stopped.is_set():
            return
        world = world_of(self._env)
        if asked.get("begun") and isinstance(world, ServerWorld) and not world.server.resets:
            problem = f"{asked['name']} was perhaps carried out when a worker stopped, and is not sent again"
            waiting_calls.fail(row, problem)
            return
        if not waiting_calls.begin(row):
            return
        try:
            made = attempt_tools.carry_out(self._env, row, asked["name"], asked["arguments"])
        except Exception as error:  # whatever a world brings about
            log.warning("the tools of attempt %s raised %s", row.pk, type(error).__name__)
            waiting_calls.fail(row, f"the environment raised {type(error).__name__}: {text(str(error))}"[:SHOWN])
        else:
            waiting_calls.end(row, made)
