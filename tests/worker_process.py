"""What a test's worker or beat runs in a process of its own. Imports nothing of Django's, which is set up there."""

import os
import sys
from typing import TextIO, cast


def run_celery(path: str, *arguments: str) -> None:
    """`celery -A tests.worker_app ARGUMENT …`, in a group of processes of its own; what it prints is in a file."""
    os.setsid()
    with open(path, "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    cast("TextIO", sys.stdout).reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    sys.argv = ["celery", "-A", "tests.worker_app", *arguments]
    from celery.__main__ import main

    main()
