"""A disk without space and a database that may not write: 503 with Retry-After, nothing half written, and recovery."""

import ctypes
import os
import random
import subprocess
import time
from collections import Counter
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.chaos import check, traffic
from tests.chaos.installation import Installation
from tests.chaos.sending import Sender, Tally
from tests.waiting import PATIENCE_S, wait_for

SIZE_MB = 320
LEFT_MB = 6
REQUESTS_BESIDE = 12
"""Requests that are sent while nothing can be written."""


def make_small_disk(path: Path) -> str:
    """Mount one there, for this process and its children only. Answers why it cannot, or nothing."""
    path.mkdir()
    if ctypes.CDLL(None, use_errno=True).unshare(0x0002_0000):  # CLONE_NEWNS
        return f"a small disk cannot be mounted: {os.strerror(ctypes.get_errno())}"
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(path)]
    for command in (["mount", "--make-rprivate", "/"], mount):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"a small disk cannot be mounted: {done.stderr.strip()}"
    return ""


def read_only(installation: Installation, *, seed: int = 1) -> dict[str, Any]:
    def switch(to: str) -> None:
        installation.as_superuser(f"ALTER SYSTEM SET default_transaction_read_only = {to}")
        installation.as_superuser("SELECT pg_reload_conf()")
        wait_for(lambda: installation.sql("SHOW default_transaction_read_only") == [(to,)], f"read-only is {to}")

    return _trial(installation, f"read-only-{seed}", lambda: switch("on"), lambda: switch("off"))


def disk(installation: Installation, *, seed: int = 1) -> dict[str, Any]:
    """`installation` lives on the small disk."""
    ballast = installation.home / "postgres" / "ballast"

    def fill() -> None:
        space = os.statvfs(installation.home / "postgres")
        with ballast.open("wb") as file:
            file.write(b"\0" * (space.f_bavail * space.f_frsize - LEFT_MB * 1024 * 1024))

    return _trial(installation, f"full-{seed}", fill, ballast.unlink)


def _trial(installation: Installation, slug: str, hurt: Any, heal: Any) -> dict[str, Any]:
    key = installation.make_projects([slug])[slug]
    sender = Sender(installation.port, key, Tally(), slug)
    chance = random.Random(slug)
    spans: set[tuple[str, str]] = set()
    events: set[tuple[str, str, str]] = set()
    answers: Counter[str] = Counter()
    found: list[str] = []
    waiting: list[traffic.Request] = []

    def send(request: traffic.Request) -> bool:
        try:
            status, retry_after, _ = sender.once(request.body, request.path)
        except (OSError, HTTPException) as error:
            answers[type(error).__name__] += 1
            return False  # a client sends it again
        answers[str(status)] += 1
        if status == 200:
            spans.update(request.spans)
            events.update(request.events)
        elif status != 503 or not retry_after.isdigit():
            found.append(f"answered with {status} and Retry-After {retry_after!r}")
        return status == 200

    for request in traffic.requests(chance):
        if not send(request):
            found.append("refused while all was well")
    hurt()
    refused = 0
    deadline = time.monotonic() + PATIENCE_S
    while refused < REQUESTS_BESIDE and time.monotonic() < deadline:
        for request in traffic.requests(chance, episodes=20):
            if not send(request):
                refused += 1
                waiting.append(request)
            if refused >= REQUESTS_BESIDE:
                break
    if refused < REQUESTS_BESIDE:
        found.append(f"it took everything but {refused} requests")
    heal()
    begun = time.monotonic()
    while waiting and time.monotonic() < begun + PATIENCE_S:
        if send(waiting[-1]):
            waiting.pop()
        else:
            time.sleep(0.5)
    took = time.monotonic() - begun
    if waiting:
        found.append(f"{len(waiting)} requests were not taken within {PATIENCE_S} s of the recovery")
    found += check.missing_steps(installation, slug, spans) + check.missing_events(installation, slug, events)
    found += check.violations(installation)
    sender.close()
    return {
        "answers": dict(answers),
        "seconds to take what was refused": round(took, 1),
        "PostgreSQL was started again": installation.restarts.get("postgres", 0),
        "violations": found,
    }
