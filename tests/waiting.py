"""How tests wait for what happens sooner or later.

There is one deadline, so generous that only what never happens meets it: a busy machine takes its time. No test asserts
seconds; speed is measured by `make bench`.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

PATIENCE_S = 300.0
Answer = TypeVar("Answer")


def wait_for(condition: Callable[[], Answer], what: str, told: Callable[[], object] = str) -> Answer:
    """Ask until the answer is true, and return it. Fails with what was waited for, and with what is told by then."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE_S:.0f} s: {what}\n{told()}")
        time.sleep(0.02)
    return answer
