"""Calls of programs' tools in worlds that only a worker plays, carried out while their eval runs.

They wait on the attempts' rows (`evals.attempts.waiting_calls`), for programs that are called and that pull alike.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from flywheel.core import envs
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
                        for key in self._take(rows):
                            pool.submit(self._carry_out, key)
                    except Exception:
                        log.exception("calls of tools of eval %s cannot be looked for", self._run.pk)
                        connections.close_all()
                        time.sleep(1)
                    self._stopped.wait(LOOK_S)
                pool.shutdown(cancel_futures=True)
        finally:
            connections.close_all()

    def _take(self, rows: QuerySet[ProgramAttempt]) -> list[int]:
        """Keys of the rows whose call waits and is in nobody's hand here; from now on it is."""
        with self._lock:
            waiting = waiting_calls.waiting(rows.exclude(pk__in=self._begun))
            keys = list(waiting.order_by("pk").values_list("pk", flat=True))
            self._begun.update(keys)
        return keys

    def _carry_out(self, key: int) -> None:
        try:
            rows = ProgramAttempt.objects.filter(pk=key).select_related("task", "run")
            if (row := waiting_calls.waiting(rows).first()) is not None:
                self._answer(row, row.open_call or {})
        except Exception:
            log.exception("a call of a tool of attempt %s could not be stored", key)
        finally:
            connections.close_all()
            with self._lock:
                self._begun.discard(key)

    def _answer(self, row: ProgramAttempt, asked: dict[str, Any]) -> None:
        if self._stopped.is_set():
            return
        if asked.get("begun") and not attempt_tools.is_repeatable(self._env):
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
