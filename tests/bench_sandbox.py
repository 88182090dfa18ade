"""Calls of the sandbox a second, on one core, beside starting a bare interpreter: `python -m tests.bench_sandbox`.

The processes of one call take turns, so calls one after the other use about one core. Both are measured in turns too,
so that what else goes on hits them alike.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.benching.report import table
from workers.sandbox import host
from workers.sandbox.outcome import Status

CALLS = 100
CODE = "import json\ndef verify(trace, target): return float(json.dumps(trace) == target)"
TRACE = {"steps": [{"role": "assistant", "content": "word " * 200}] * 5}  # 5 kB


def rows() -> list[dict[str, Any]]:
    """One call, beside `python -c pass` in the same run; none where the sandbox refuses to run anything."""

    def call() -> None:
        outcome = host.run(CODE, arguments=[TRACE, ""])
        assert outcome.status is Status.OK, outcome

    if host.run("def verify(): return 1.0").status is Status.REFUSED:
        return []
    pairs = [(timed(call), timed(bare)) for _ in range(CALLS)]
    host.close()
    ours, reference = (statistics.median(column) for column in zip(*pairs, strict=True))
    what = f"verifier in the sandbox ({1 / ours:.0f} calls a second)"
    beside = "python -c pass"
    return [
        {"what": what, "ms": ours * 1000, "beside": beside, "beside_ms": reference * 1000, "ratio": ours / reference}
    ]


def bare() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(table(rows()) or "the sandbox refuses to run anything on this machine")
