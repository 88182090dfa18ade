"""The web's way to the sandbox, which lives with the workers: its command, and what their machines said of it."""

import json
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.utils import timezone

from flywheel.environments.models import SandboxReport

PATIENCE_S = 600.0
"""For one verdict: at most three calls of two minutes each, on a machine that is busy."""


class SandboxError(Exception):
    """The sandbox's command did not answer as it does."""


def score(code: str, trace: Any, target: Any, *, low: float = 0.0, high: float = 1.0) -> dict[str, Any]:
    """The verdict of a Python verifier: `{"status", "score", "reason", "parts", "printed", "seconds", "peak_bytes"}`.

    The verifier runs on this machine, in a process of its own behind all layers. Takes a second or more.
    """
    request = json.dumps({"code": code, "trace": trace, "target": target, "low": low, "high": high})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "workers.sandbox", "score"],
            cwd=settings.BASE_DIR,
            input=request.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"the sandbox's command did not answer: {error}") from error
    return found


def keep(host: str, report: dict[str, Any]) -> None:
    """Store what a worker's machine offers; the newest word of each machine counts."""
    SandboxReport.objects.update_or_create(host=host[:200], defaults={"at": timezone.now(), "report": report})
