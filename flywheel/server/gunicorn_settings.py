"""Settings of gunicorn, everywhere: `gunicorn flywheel.wsgi --config python:flywheel.server.gunicorn_settings`.

A model call that passes through the gateway holds a thread for seconds, so there are more threads than requests that
a machine could work on. What must not grow with them is bounded on its own: the database's connections by a pool in
each process, and the gateway's calls by `trajectories.gateway.AT_ONCE`, so that pages and ingest always find a thread.
"""

import ctypes
import gc
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from gunicorn import util
from gunicorn.workers.gthread import _DEFER, TConn, ThreadWorker
from psycopg_pool import ConnectionPool

from flywheel.system import env
from flywheel.trajectories.ingest.admission import Patient

SWITCH_S = 0.0005
"""How long a thread that computes keeps the others waiting. A streamed answer waits once for each of its pieces, and
Python's own 5 ms would add up while the recorder or an ingest request is at work beside it."""
POOL: dict[str, Any] = {"min_size": 2, "max_size": 12, "timeout": 5, "max_idle": 300, "name": "flywheel"}
"""Connections of one process; who waits longer than the timeout gets a 503. Two processes and the workers together stay
below 60 of the 100 that PostgreSQL has."""

COLLECT_AFTER = 50_000, 20, 20
"""Objects: a request of spans makes thousands, none of them in a circle."""
LARGE = 512 * 1024
"""Bytes, from which on memory is the system's again as soon as it is free."""

HEADERS_S = 10.0
"""How long the headers of a request may take."""
HEADERS_MAX = 32 * 1024
LINGER_S, LINGER_BYTES = 2.0, 64 * 1024 * 1024
"""How long a closed connection is read on, so that its sender gets to read the answer."""


class Worker(ThreadWorker):  # type: ignore[misc]
    """Gives a thread to a request only when all its headers are here, and keeps it only while its body comes.

    gunicorn's own would wait for the next byte for ever, and linger over each closed connection in the one thread that
    serves them all: a few dozen senders that dawdle would hold everybody up.
    """

    def handle(self, conn: TConn) -> Any:
        here = self._has_headers(conn)
        if here is None:
            return _DEFER
        if here and (result := super().handle(conn)):
            return result
        if here:
            util.close_graceful(conn.sock, LINGER_S, LINGER_BYTES)
        else:
            util.close(conn.sock)
        conn.close = _is_closed
        return False

    def handle_request(self, req: Any, conn: TConn) -> Any:
        req.body.reader = Patient(req.body.reader, conn.sock)
        return super().handle_request(req, conn)

    def _has_headers(self, conn: TConn) -> bool | None:
        """None when they may still come; the poller then waits for more than is here."""
        if conn.parser is not None and (begun := conn.parser.unreader.buf.getvalue()):
            # This request began in one piece with the last one. Who sends the rest later may open a new connection.
            return b"\r\n\r\n" in begun
        waits: _Waits | None = getattr(conn, "waits", None)
        try:
            here = len(head := conn.sock.recv(HEADERS_MAX, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None  # nothing at all: gunicorn closes it after `keepalive` seconds
        except OSError:
            return False
        if b"\r\n\r\n" in head:
            if waits is not None:
                conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                conn.waits = None
            conn.data_ready = True
            return True
        now = time.monotonic()
        if waits is None:
            waits = conn.waits = _Waits(now + HEADERS_S)
        elif here <= waits.here or now > waits.until:  # no more will come, or it comes too slowly
            return False
        waits.here = here
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, here + 1)
        return None if 0 < here < HEADERS_MAX else False


def _is_closed(graceful: bool = False) -> None:
    """In place of a connection's `close`, once there is nothing left to do."""


@dataclass(slots=True)
class _Waits:
    until: float
    here: int = 0


bind = f"[{env.bind()}]:{env.port()}" if ":" in env.bind() else f"{env.bind()}:{env.port()}"
workers = env.web_processes()
worker_class = Worker
threads = 32
keepalive = 15
"""Longer than the 5 s after which exporters send again, so that they find their connection as they left it."""
limit_request_line = 8190
"""Bytes, the most that gunicorn takes: a launch form of several stages is drawn again by a GET."""
timeout = 120
graceful_timeout = 10
preload_app = True
"""The processes share the memory of what was imported before they were forked."""
control_socket_disable = True
loglevel = "warning"


def when_ready(server: Any) -> None:
    """Before the first fork: load every page and what carries messages, which takes long and much memory, and never
    collect what is there now, so that it stays shared."""
    from flywheel.server.warm_up import warm
    from flywheel.system import broker

    warm()
    assert broker.app().connection_for_write().transport_cls
    gc.collect()
    gc.freeze()


def post_fork(server: Any, worker: Any) -> None:
    """A pool has threads, so each process opens its own; commands and Celery's children go without."""
    sys.setswitchinterval(SWITCH_S)
    _give_memory_back()
    gc.set_threshold(*COLLECT_AFTER)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    setattr(ConnectionPool, "check_connection", staticmethod(check))  # noqa: B010 Django asks it before each use
    setattr(ConnectionPool, "_get_ready_connection", latest)  # noqa: B010 Django makes the pool
    from django.conf import settings

    database: dict[str, Any] = settings.DATABASES["default"]
    database["CONN_MAX_AGE"] = 0
    database["OPTIONS"] = {**database["OPTIONS"], "pool": dict(POOL)}


_ask = ConnectionPool.check_connection


def check(connection: psycopg.Connection[Any]) -> None:
    """Raise for a connection that its server has left, without a question to the server of one that it has not.

    Nothing waits to be read on a connection that nobody uses; what the server says when it leaves, and its end, do.
    """
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    if waiting.poll(0):
        _ask(connection)


_take: Callable[..., Any] = ConnectionPool._get_ready_connection


def latest(pool: ConnectionPool[Any], timeout: float | None) -> Any:
    """Take the connection that was given back last, where psycopg's pool takes the one that has rested longest: whose
    process at the server sleeps deepest, and which may not have planned yet what is asked. The others close in time."""
    pool._pool.rotate(1)
    return _take(pool, timeout)


def _give_memory_back() -> None:
    """Let a large body's memory go back to the system with it, whichever thread had read it."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc has it
        libc.mallopt(-3, LARGE)  # M_MMAP_THRESHOLD; unset, it grows with what was freed
        libc.mallopt(-8, 4)  # M_ARENA_MAX; unset, 8 a core
