"""What the gateway adds to a model call: the same calls straight to a local model's server, and through Flywheel.

`rows()` is for `tests/bench.py`; `python -m tests.bench_gateway` runs it alone, on an embedded PostgreSQL of its own.
Flywheel is served as the supervisor serves it, in two processes; client, gateway, database and the model's server share
the machine. Calls go in turns, one straight, one through, and one to an empty page of Flywheel's, so that all see the
same noise: what the machine and the web server cost anyway is what the empty page takes.
"""

import asyncio
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CALLS = {1: 100, 8: 320}
ANSWER_S = 0.1
"""How long the model thinks. A real one takes longer, and leaves the machine more time between the calls."""
BODY = {"messages": [{"role": "user", "content": "x" * 2000}], "temperature": 0.7, "max_tokens": 64}
COMPLETION = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "y" * 1000}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 500, "completion_tokens": 250},
    }
).encode()


def rows() -> list[dict[str, Any]]:
    """Median and 95th percentile of what is added at 1 and 8 calls at once, in milliseconds. Needs DATABASE_URL set."""
    upstream = subprocess.Popen(
        [sys.executable, "-m", "tests.bench_gateway", "upstream"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert upstream.stdout is not None
    port = int(upstream.stdout.readline())
    gateway, served, key = _served(port)
    try:
        straight = Caller(port, "/v1/chat/completions", "")
        through = Caller(served, "/gateway/v1/chat/completions", key)
        return [_measured(straight, through, at_once) for at_once in (1, 8)]
    finally:
        gateway.terminate()
        upstream.terminate()
        gateway.wait(20)
        upstream.wait(20)


class Caller:
    """Keeps a connection for each thread, as clients do."""

    def __init__(self, port: int, path: str, key: str, model: str = "tiny") -> None:
        self.port, self.path, self.body = port, path, json.dumps(BODY | {"model": model})
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self.local = threading.local()

    def call(self, page: str = "", headers: Mapping[str, str] | None = None) -> float:
        """Milliseconds until the last byte."""
        connection: http.client.HTTPConnection | None = getattr(self.local, "connection", None)
        if connection is None:
            connection = self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        if page:
            connection.request("GET", page)
        else:
            connection.request("POST", self.path, self.body, {**self.headers, **(headers or {})})
        answer = connection.getresponse()
        body = answer.read()
        took = (time.perf_counter() - began) * 1000
        assert answer.status == 200, (answer.status, body[:200])
        assert page or body == COMPLETION
        return took


def _measured(straight: Caller, through: Caller, at_once: int) -> dict[str, Any]:
    def work(_: int) -> list[tuple[float, float, float]]:
        for _ in range(10):
            straight.call(), through.call()
        return [(straight.call(), through.call(), through.call("/healthz")) for _ in range(CALLS[at_once] // at_once)]

    with ThreadPoolExecutor(at_once) as pool:
        found = [call for calls in pool.map(work, range(at_once)) for call in calls]
    direct, passed, empty = (sorted(call[index] for call in found) for index in range(3))
    return {
        "what": f"model call through the gateway, {at_once} at once, 95th percentile",
        "ms": at_share(passed, 0.95),
        "beside": "straight to the model",
        "beside_ms": at_share(direct, 0.95),
        "ratio": at_share(passed, 0.95) / at_share(direct, 0.95),
        "added_p50_ms": statistics.median(passed) - statistics.median(direct),
        "added_p95_ms": at_share(passed, 0.95) - at_share(direct, 0.95),
        "empty_page_p50_ms": statistics.median(empty),
        "empty_page_p95_ms": at_share(empty, 0.95),
    }


def at_share(values: list[float], share: float) -> float:
    """Return the value below which this share of the sorted ones lies."""
    return values[min(len(values) - 1, int(len(values) * share))]


def _served(port: int) -> tuple["subprocess.Popen[bytes]", int, str]:
    from flywheel.accounts.actors import Actor
    from flywheel.accounts.models import ApiKey, Project, User
    from flywheel.accounts.project_settings.gateway_upstream import set_upstream

    project, admin = Project.objects.get(slug="default"), User.objects.get(username="admin")
    set_upstream(project=project, actor=Actor(admin), base_url=f"http://127.0.0.1:{port}/v1")
    _, key = ApiKey.make(project, "bench gateway", ["gateway"], admin)
    with socket.create_server(("127.0.0.1", 0)) as free:
        served = int(free.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "flywheel.wsgi", "--config", "python:flywheel.server.gunicorn_settings"],
        cwd=ROOT,
        env={**os.environ, "FLYWHEEL_PORT": str(served)},
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", served), 1):
                return process, served, key
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the web did not start")


async def _upstream() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(COMPLETION)
        while True:
            try:
                asked = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            length = next(
                int(line.split(b":")[1]) for line in asked.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            await asyncio.sleep(ANSWER_S)
            writer.write(head + COMPLETION)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    if sys.argv[1:] == ["upstream"]:
        asyncio.run(_upstream())
        return
    home = Path(tempfile.mkdtemp(prefix="flywheel-bench-"))
    os.environ |= {"FLYWHEEL_HOME": str(home), "DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    os.environ.pop("DATABASE_URL", None)
    from flywheel.system import postgres

    try:
        os.environ["DATABASE_URL"] = postgres.start(home / "postgres").url
        import django
        from django.core.management import call_command

        django.setup()
        call_command("prepare", verbosity=0)
        for row in rows():
            print(
                json.dumps(
                    {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
                )
            )
        from flywheel.trajectories.models import Step

        print(f"{Step.objects.count()} recorded")
    finally:
        postgres.stop(home / "postgres")
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
