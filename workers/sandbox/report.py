"""Layers that this machine offers: each tried for real, by a guest that has it alone and attempts what it stops."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.system import env
from workers.sandbox import layers
from workers.sandbox.host import GETTING, MISSING, run
from workers.sandbox.outcome import MIB, Limits, Outcome, Status


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer on this machine."""

    name: str
    state: str
    """`on`, `missing`, `given up` (there or not, the operator runs without it) or `not needed`."""
    stops: str
    found: str
    """What was seen when it was tried."""
    getting: str = ""
    """How to get it, when it is missing."""


@dataclass(frozen=True, slots=True)
class Report:
    layers: list[Layer]
    runs: bool
    """Whether untrusted code is run here at all."""
    machine: str
    seconds_a_call: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Probe:
    stops: str
    code: str
    holds: Callable[[Outcome], bool]
    good: str
    limits: Limits | None = None


_LOOK = "import os\ndef verify(): return [os.getuid(), os.getpid(), os.listdir('/')]"
PROBES = {
    layers.ACCOUNT: _Probe(
        "What root may do, and signals to processes of the account that runs Flywheel.",
        _LOOK,
        lambda seen: seen.status is Status.OK and seen.value[0] in layers.UIDS,
        "runs under an account number of its own",
    ),
    layers.NAMESPACES: _Probe(
        "Sight of files, networks, processes and shared memory: there are none in there.",
        _LOOK,
        lambda seen: seen.status is Status.OK and seen.value == [65534, 1, []],
        "sees an empty file system and is alone",
    ),
    layers.LIMITS: _Probe(
        "Endless loops, memory without end, files, further processes.",
        "def verify(): return len(bytearray(256 * 2**20))",
        lambda seen: seen.status is Status.MEMORY,
        "256 MB are refused where 64 MB are granted",
        Limits(memory_bytes=64 * MIB),
    ),
    layers.LANDLOCK: _Probe(
        "Opening, making, moving and running any file.",
        "import os\ndef verify(): return os.listdir('/')",
        lambda seen: seen.status is Status.RAISED and "Permission denied" in seen.reason,
        "cannot list the root directory",
    ),
    layers.SECCOMP: _Probe(
        "All system calls but those of an interpreter that computes: no file, socket, process, signal or kernel extra.",
        "import os\ndef verify(): return os.pipe()",
        lambda seen: seen.status is Status.RAISED and "not permitted" in seen.reason,
        "cannot even make a pipe",
    ),
}


def report() -> Report:
    """Try every layer by itself, then all together."""
    found = [_tried(name) for name in layers.ALL]
    times = []
    together = Outcome(Status.REFUSED)
    for _ in range(5):
        began = time.perf_counter()
        together = run("def verify(): return 1.0")
        times.append(time.perf_counter() - began)
    runs = together.status is Status.OK and all(layer.state != "missing" for layer in found)
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    machine = f"Linux {platform.release()}, {platform.machine()}, Python {platform.python_version()}, as {who}"
    return Report(found, runs, machine, round(statistics.median(times), 4) if runs else None)


def _tried(name: str) -> Layer:
    probe = PROBES[name]
    if name == layers.ACCOUNT and os.geteuid() != 0:
        return Layer(
            name, "not needed", probe.stops, "Flywheel runs as an ordinary user, who has no other account to give"
        )
    seen = run(probe.code, given=[name], limits=probe.limits)
    holds = probe.holds(seen)
    words = probe.good if holds else _why(seen, name)
    if holds and name == layers.LANDLOCK:
        words += f" (version {layers.landlock_abi()} of Landlock)"
    if name in env.sandbox_without():
        return Layer(name, "given up", probe.stops, f"FLYWHEEL_SANDBOX_WITHOUT names it; tried all the same: {words}")
    return Layer(name, "on" if holds else "missing", probe.stops, words, "" if holds else GETTING[name])


def _why(seen: Outcome, name: str) -> str:
    if seen.status is Status.REFUSED:
        return seen.reason.removeprefix(f"{MISSING}{name}: ").removesuffix(f" {GETTING[name]}")
    return f"it did not stop what it should: {seen.reason or repr(seen.value)}"[:300]
