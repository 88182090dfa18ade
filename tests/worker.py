"""A real Celery worker and beat on the test database, for tests marked `worker` and `django_db(transaction=True)`.

    @pytest.mark.worker
    @pytest.mark.django_db(transaction=True)
    def test_a_run_is_carried_out(worker: Worker, build: Build) -> None:
        run = …submit(…)
        worker.finish(run)            # waits, refreshes, and shows the worker's log when it takes too long

`worker` is ready when the test begins and is gone when it ends. `start_worker()` gives further ones; `beat` runs beside
the first. Their handlers are the real ones, and those of `tests/plays.py`.

They are forked from a process that has imported everything, as importing takes longer than many a test; where a test
has changed the environment, which settings are read from, they are started anew.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from kombu import pools
from psycopg.conninfo import conninfo_to_dict

from flywheel.accounts.models import Pulse
from flywheel.edge import jobs
from flywheel.system import broker
from tests.waiting import PATIENCE_S, wait_for
from tests.worker_process import run_celery
from workers.celery import GIVE_BACK_S

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """One process of Celery with its pool, in a process group of its own; what it printed is in `log`."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.is_starting = True
        self.beat: Worker | None = None
        self.path = settings.HOME / f"celery-{time.monotonic_ns()}.log"
        self.path.touch()
        self.process = _start_celery(str(self.path), name, *arguments)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return self.path.read_text(errors="replace")

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the worker and its pool."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill9(self) -> None:
        """As when the machine's memory runs out: the worker and its pool are gone at once."""
        self.signal_all(signal.SIGKILL)
        self.process.kill()  # should it not have a group of its own yet
        self.process.join()

    def exit_code(self) -> int | None:
        """Wait for its end as long as it may take to give everything back."""
        self.process.join(GIVE_BACK_S + PATIENCE_S)
        return self.process.exitcode

    def stop(self) -> None:
        """As a supervisor stops it: SIGTERM, and time to give back what it holds."""
        self.process.terminate()
        stopped = self.exit_code() is not None
        self.kill9()
        assert stopped, f"did not stop:\n{self.log}"

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for something. Fails with the log."""

        def happened_or_ended() -> bool:
            if self.process.exitcode is not None and self.is_starting:
                pytest.fail(f"ended with {self.process.exitcode}:\n{self.log[-6000:]}")
            return happened()

        wait_for(happened_or_ended, what, lambda: self.log[-6000:])

    def wait_until_started(self) -> None:
        self.wait_until(lambda: Pulse.objects.filter(name=self.name).exists(), f"{self.name} reports")
        self.is_starting = False

    def finish(self, job: jobs.Job) -> None:
        """Wait until the job is over, and refresh it. However long it takes: what must not happen is that it stands."""
        seen: tuple[object, ...] = ()

        def over_or_moved() -> bool:
            job.refresh_from_db()
            return job.is_finished or (job.state, job.attempt, job.done, job.message) != seen

        job.refresh_from_db()  # it may have been over before and be queued again
        while not job.is_finished:
            seen = (job.state, job.attempt, job.done, job.message)
            self.wait_until(over_or_moved, f"{job.label} {job.pk} goes on (now {job.state}, {job.message!r})")


@contextlib.contextmanager
def _environment() -> Iterator[dict[str, str]]:
    """What the processes find in it: that of the test, with its database."""
    before = os.environ.copy()
    os.environ |= {"FLYWHEEL_HOME": str(settings.HOME), "DATABASE_URL": database_url()}
    try:
        yield {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    finally:
        os.environ.clear()
        os.environ |= before


@cache
def _forks() -> tuple[BaseContext, dict[str, str]]:
    """Start what forks processes, and return it with the environment that it has read its settings from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.worker_app", "celery.__main__", "celery.apps.worker", "celery.apps.beat"])
    with _environment() as environment:
        forkserver.ensure_running()
    return context, environment


def _start_celery(*arguments: str) -> BaseProcess:
    forks, known = _forks()
    with _environment() as environment:
        context = forks if environment == known else multiprocessing.get_context("spawn")
        process: BaseProcess = context.Process(target=run_celery, args=arguments)  # type: ignore[attr-defined]
        process.start()
    return process


@pytest.fixture
def broker_installed(transactional_db: None) -> Iterator[None]:
    """The message tables in the test database, with nothing in them. Nothing of it holds a connection afterwards."""
    broker.app.cache_clear()  # a test without the database may have had it read the address of another
    broker.install()
    empty_broker()
    yield
    broker.app().close()
    pools.reset()  # type: ignore[no-untyped-call]
    broker.app.cache_clear()


@pytest.fixture
def start_worker(broker_installed: None) -> Iterator[Callable[..., Worker]]:
    """`start_worker("-c", "1")` starts a worker and returns when it takes work; each of them ends with the test."""
    started: list[Worker] = []

    def start(*options: str) -> Worker:
        Pulse.objects.filter(name="worker").delete()
        one = Worker("worker", "--pool", "prefork", *(options or ("-c", "2")), "-n", f"test{len(started)}@%h")
        if not started:
            one.beat = Worker("beat")
        fresh = [one, one.beat] if one.beat else [one]
        started.extend(fresh)
        for each in fresh:
            each.wait_until_started()
        return one

    yield start
    for one in started:
        one.kill9()
    _end_other_sessions()


@pytest.fixture
def worker(start_worker: Callable[..., Worker]) -> Worker:
    """A worker with two processes, and beat."""
    return start_worker()


def empty_broker() -> None:
    """Lose every message, as a broker without its disk does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('pgmq.meta')")
        if cursor.fetchone() == (None,):
            return
        cursor.execute("SELECT queue_name FROM pgmq.meta")
        for (name,) in cursor.fetchall():
            cursor.execute("SELECT pgmq.purge_queue(%s)", [name])


def database_url() -> str:
    """The test database as the child processes are to find it."""
    from urllib.parse import quote

    parts: dict[str, Any] = conninfo_to_dict(broker.conninfo())
    login = quote(parts.get("user", ""), safe="")
    if "password" in parts:
        login += ":" + quote(parts["password"], safe="")
    host = quote(parts.get("host", ""), safe="")
    return f"postgresql://{login}@{host}:{parts.get('port', 5432)}/{quote(parts['dbname'], safe='')}"


def _end_other_sessions() -> None:
    """The killed processes' sessions linger for a moment; none may hold a lock when the tables are emptied."""
    with psycopg.connect(broker.conninfo(), autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid NOT IN (pg_backend_pid(), %s)"
            " AND backend_type = 'client backend'",  # only the superuser may end an autovacuum that is at work
            [connection.connection.info.backend_pid if connection.connection else 0],
        )
