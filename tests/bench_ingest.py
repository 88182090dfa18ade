"""How fast OTLP is taken, made durable and visible: Flywheel, Phoenix and MLflow on the same bodies, and the ceiling.

`make bench` runs it with the rest; alone: `python -m tests.bench_ingest [--seconds 20] [--only flywheel,copy]
[--soak 600]`. What exactly is measured stands in docs/design/ingest.md, "Speed". Client, server and database share the
machine's cores. A peer that cannot be installed is left out, and that is said.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.benching import bodies, copying, peers, processes
from tests.benching.client import Connection, Found, Order
from tests.benching.installation import ROOT, Installation
from tests.benching.report import table

SYSTEMS = ("flywheel", "phoenix", "mlflow", "copy")
CONNECTIONS = 8
CROWD = 256
"""Connections of a burst."""
WARM_S = 1.0
SETTLED_S = 10.0
"""A reader that sees nothing new for this long has seen everything."""
VISIBLE_WITHIN_S = 60.0
DETECTED_WITHIN_S = 120.0
AT_MOST = 16_000
"""Spans a second for which there are bodies."""


class System(Protocol):
    """What can be measured."""

    name: str
    path: str
    port: int

    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def roots(self) -> dict[str, int]: ...
    @property
    def served_by(self) -> int: ...
    def start(self) -> None: ...
    def visible(self) -> int: ...
    def kill(self) -> None: ...


@dataclass
class Plan:
    seconds: float = 20.0
    only: tuple[str, ...] = SYSTEMS
    soak_s: float = 0.0
    soak_rate: float = 2000.0
    burst_s: float = 5.0
    environments: Path = ROOT / "var" / "bench-peers"

    @property
    def bodies(self) -> int:
        """How many requests all of it may send."""
        fast = WARM_S + self.seconds + 3 * self.burst_s + 2 * max(self.burst_s, 1.0)
        return int((AT_MOST * fast + self.soak_rate * self.soak_s) / bodies.SPANS) + 200


@dataclass
class Load:
    """What a load at full speed has shown."""

    accepted_per_s: float
    visible_per_s: float
    visible_after_s: float
    """From the last answer until a reader saw all, or until it saw nothing new any more."""
    p50_ms: float
    p95_ms: float
    p99_ms: float
    accepted: int
    seen: int
    """Spans that the reader saw in the end."""
    codes: dict[str, int]
    rss_mb: float
    """All web processes together, at most; what they share counts for each."""
    rss_greatest_mb: float
    cpu_us: dict[str, float]
    """CPU time per accepted span, of each kind of process, until detectors have read it all."""
    lag_p50_s: float = float("nan")
    lag_p95_s: float = float("nan")
    """From the 200 to the first page of the list."""
    lags: int = 0
    undetected: int = 0
    """Trajectories that detectors had not read when the load ended; they leave the processor to it."""
    detected_after_s: float = float("nan")
    load_average: float = 0.0
    ran_out: bool = False
    version: str = ""
    after_kill: dict[str, Any] = field(default_factory=dict)


class Bench:
    """The runs of one benchmark, which share the bodies."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scratch = Path(tempfile.mkdtemp(prefix="flywheel-bench-ingest-"))
        self.scratch.chmod(0o755)
        self.found: dict[str, Any] = {"skipped": {}, "cores": os.cpu_count(), "spans_per_body": bodies.SPANS}

    def run(self) -> dict[str, Any]:
        say(f"{self.plan.bodies} bodies are made")
        self.bodies = bodies.make(self.scratch, self.plan.bodies)
        try:
            if {"flywheel", "copy"} & set(self.plan.only):
                self.flywheel()
            for name, kind in peers.PEERS.items():
                if name in self.plan.only:
                    try:
                        self.peer(kind(self.plan.environments, self.scratch))
                    except peers.Missing as missing:
                        self.found["skipped"][name] = str(missing)
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return self.found

    # Flywheel

    def flywheel(self) -> None:
        ours = Installation(self.scratch)
        self.sent: list[int] = []
        self.next = 0
        try:
            ours.start()
            if "flywheel" in self.plan.only:
                say("Flywheel")
                load = self.load(ours)
                self.found["flywheel"] = asdict(load)
                self.found["flywheel"]["listed"] = ours.listed()
                self.found["burst"] = self.burst(ours, load.accepted_per_s)
                if self.plan.soak_s:
                    say(f"soak for {self.plan.soak_s:.0f} s")
                    self.found["soak"] = self.soak(ours)
                self.found["flywheel"]["after_kill"] = self.killed(ours)
            if "copy" in self.plan.only:
                say("the ceiling of COPY")
                for count in (1, 2):
                    rate = copying.ceiling(ours.url, self.scratch, self.plan.seconds / 2, count)
                    self.found[f"copy_{count}"] = rate
        finally:
            ours.remove()

    def burst(self, ours: Installation, capacity: float) -> dict[str, Any]:
        """Three times what it can take; then half of it, which must succeed again."""
        over = self.send(ours, self.plan.burst_s, connections=CROWD, rate=3 * capacity)
        time.sleep(min(3.0, self.plan.burst_s))
        back = self.send(ours, max(1.0, self.plan.burst_s / 2), rate=capacity / 2)
        return {
            "offered_per_s": sum(over.codes.values()) * bodies.SPANS / self.plan.burst_s,
            "answered_within_s": over.ended - over.began,
            "accepted_per_s": over.rate,
            "p50_ms": over.quantile(0.5),
            "p99_ms": over.quantile(0.99),
            "codes": over.codes,
            "afterwards": back.codes,
            "afterwards_p99_ms": back.quantile(0.99),
            "missing": ours.missing(self.traces([*over.acknowledged, *back.acknowledged])),
        }

    def soak(self, ours: Installation) -> dict[str, Any]:
        with processes.Memory(ours.served_by) as memory, Lag(ours) as lag:
            found = self.send(ours, self.plan.soak_s, connections=32, rate=self.plan.soak_rate)
        undetected, detected_after_s = self.caught_up(ours)
        return {
            "rate": found.rate,
            "codes": found.codes,
            "p50_ms": found.quantile(0.5),
            "p99_ms": found.quantile(0.99),
            "worst_ms": found.quantile(1.0),
            "lag_p50_s": lag.quantile(0.5),
            "lag_p95_s": lag.quantile(0.95),
            "rss_mb": memory.together,
            "rss_greatest_mb": memory.greatest,
            "rss_mb_per_minute": memory.slope(),
            "undetected": undetected,
            "detected_after_s": detected_after_s,
            "missing": ours.missing(self.traces(found.acknowledged)),
            "load_average": os.getloadavg()[0],
        }

    def caught_up(self, ours: Installation) -> tuple[int, float]:
        """Trajectories that detectors have not read yet, and how long they take to; NaN when too long."""
        undetected, since = ours.backlog(), time.monotonic()
        while ours.backlog():
            if time.monotonic() > since + DETECTED_WITHIN_S:
                return undetected, float("nan")
            time.sleep(0.2)
        return undetected, time.monotonic() - since

    def killed(self, ours: Installation) -> dict[str, Any]:
        """kill -9 of everything in the middle of a load; then all that was ever acknowledged must be there."""
        for_s = max(1.0, self.plan.burst_s / 2)
        blow = threading.Timer(for_s, ours.kill)
        blow.start()
        self.send(ours, for_s + 0.5, patience_s=5)
        blow.join()
        ours.start()
        return {
            "acknowledged": len(self.sent) * bodies.SPANS,
            "stored": ours.stored(),
            "missing": ours.missing(self.traces(self.sent)),
            "ledger_holds": ours.ledger_holds(),
        }

    def traces(self, numbers: list[int]) -> list[str]:
        return [name for number in numbers for name in self.bodies.trace_ids(number)]

    # Peers

    def peer(self, theirs: peers.Peer) -> None:
        say(theirs.name)
        theirs.install()
        self.sent, self.next = [], 0
        try:
            theirs.start()
            load = self.load(theirs)
            theirs.kill()
            theirs.start()
            acknowledged, stored = len(self.sent) * bodies.SPANS, theirs.visible()
            load.version = theirs.version()
            load.after_kill = {
                "acknowledged": acknowledged,
                "stored": stored,
                "missing": max(0, acknowledged - stored),
            }
            self.found[theirs.name] = asdict(load)
        finally:
            theirs.kill()

    # Loads

    def load(self, system: System) -> Load:
        """As fast as the answers come, and until a reader sees all of it."""
        self.send(system, WARM_S)
        self.settle(system, len(self.sent) * bodies.SPANS)
        before, spent = system.visible(), {name: processes.cpu_s(pid) for name, pid in system.roots.items()}
        lag = Lag(system) if isinstance(system, Installation) else None
        with processes.Memory(system.served_by) as memory:
            if lag:
                with lag:
                    found = self.send(system, self.plan.seconds)
            else:
                found = self.send(system, self.plan.seconds)
            probes = bodies.PROBE_SPANS * lag.sent if lag else 0
            seen, at = self.settle(system, before + found.spans + probes)
        behind = self.caught_up(system) if isinstance(system, Installation) else (0, 0.0)
        spans = max(1, found.spans)
        cpu = {name: (processes.cpu_s(pid) - spent[name]) / spans * 1e6 for name, pid in system.roots.items()}
        load = Load(
            accepted_per_s=found.rate,
            visible_per_s=min(found.spans, seen - before - probes) / (at - found.began),
            visible_after_s=max(0.0, at - found.ended),
            p50_ms=found.quantile(0.5),
            p95_ms=found.quantile(0.95),
            p99_ms=found.quantile(0.99),
            accepted=found.spans,
            seen=seen - before - probes,
            codes=found.codes,
            rss_mb=memory.together,
            rss_greatest_mb=memory.greatest,
            cpu_us={**cpu, "client": found.cpu_s / spans * 1e6},
            load_average=os.getloadavg()[0],
            ran_out=found.ran_out,
        )
        if lag:
            load.lag_p50_s, load.lag_p95_s, load.lags = lag.quantile(0.5), lag.quantile(0.95), len(lag.seen)
            load.undetected, load.detected_after_s = behind
        return load

    def settle(self, system: System, wanted: int) -> tuple[int, float]:
        """Spans that a reader sees in the end, and since when."""
        seen, since = system.visible(), time.monotonic()
        deadline = since + VISIBLE_WITHIN_S
        while seen < wanted and time.monotonic() < min(deadline, since + SETTLED_S):
            time.sleep(0.2)
            now = system.visible()
            if now > seen:
                seen, since = now, time.monotonic()
        return seen, since

    def send(
        self,
        system: System,
        seconds: float,
        *,
        connections: int = CONNECTIONS,
        rate: float = 0.0,
        patience_s: float = 60.0,
    ) -> Found:
        """Let the client send the next bodies."""
        order = Order(
            port=system.port,
            path=system.path,
            headers=system.headers,
            bodies=str(self.scratch),
            first=self.next,
            seconds=seconds,
            connections=connections,
            rate=rate,
            patience_s=patience_s,
        )
        done = subprocess.run(
            [sys.executable, "-m", "tests.benching.client"],
            input=json.dumps(asdict(order)),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        found = Found(**json.loads(done.stdout))
        self.next = found.next
        self.sent += found.acknowledged
        return found


class Lag:
    """Twice a second, sends one new trace and asks for the first page of the list until it stands there."""

    EVERY_S = 0.5
    LOOKS_EVERY_S = 0.1
    GIVES_UP_S = 30.0

    def __init__(self, ours: Installation) -> None:
        self.ours = ours
        self.seen: list[float] = []
        self.sent = 0
        """Traces that were acknowledged."""
        order = Order(ours.port, ours.path, ours.headers, "", 0, 0)
        self.connection = Connection(order)

    def __enter__(self) -> "Lag":
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.thread.join()
        self.connection.close()

    def quantile(self, share: float) -> float:
        values = sorted(self.seen)
        return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")

    def _watch(self) -> None:
        while not self.end.wait(self.EVERY_S):
            name = uuid.uuid4()
            try:
                if self.connection.send(bodies.probe(name.bytes)) != 200:
                    continue
            except OSError:
                continue
            self.sent += 1
            since = time.monotonic()
            while time.monotonic() < since + self.GIVES_UP_S:
                with suppress(OSError, urllib.error.URLError):
                    if any(item["trace_id"] == name.hex for item in self.ours.page("?limit=50")["items"]):
                        break
                time.sleep(self.LOOKS_EVERY_S)
            self.seen.append(time.monotonic() - since)


# The report


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """As in tests/bench.py: a figure, and how it stands to a reference of the same run."""
    made: list[dict[str, Any]] = []
    ours = found.get("flywheel")
    others = {name: found[name] for name in peers.PEERS if name in found}
    if ours:
        best = max(others, key=lambda name: others[name]["visible_per_s"], default="")
        if best:
            beside = f"{best} {others[best]['version']}, the best peer"
            made.append(_row("spans durable and visible", ours, "visible_per_s", others[best], beside, "spans/s"))
        for name, other in others.items():
            made.append(_row("spans accepted", ours, "accepted_per_s", other, f"{name} {other['version']}", "spans/s"))
            made.append(_row("spans visible", ours, "visible_per_s", other, f"{name} {other['version']}", "spans/s"))
            made.append(_row("request of 128 spans, p99", ours, "p99_ms", other, f"{name} {other['version']}", "ms"))
            made.append(_row("memory of the web", ours, "rss_mb", other, f"{name} {other['version']}", "MB"))
        for count in (1, 2):
            if rate := found.get(f"copy_{count}"):
                what, beside = "spans accepted", f"COPY alone in {count} process{'es' * (count > 1)}"
                made.append(_row(what, ours, "accepted_per_s", {"accepted_per_s": rate}, beside, "spans/s"))
        if not made:
            made.append(_row("spans accepted", ours, "accepted_per_s", ours, "itself", "spans/s"))
    return made


def _row(what: str, ours: dict[str, Any], name: str, theirs: dict[str, Any], beside: str, unit: str) -> dict[str, Any]:
    value, reference = ours[name], theirs[name]
    return {
        "what": what,
        "value": value,
        "unit": unit,
        "beside": beside,
        "beside_value": reference,
        "ratio": value / reference if reference else float("inf"),
    }


def sentences(found: dict[str, Any]) -> list[str]:
    """What a ratio cannot say."""
    told = [f"{name} is left out: {why}" for name, why in found["skipped"].items()]
    for name in ("flywheel", *peers.PEERS):
        if load := found.get(name):
            told.append(_sentence(name, load))
    if load := found.get("flywheel"):
        told.append(f"list lag p50 {load['lag_p50_s']:.2f}, p95 {load['lag_p95_s']:.2f} s ({load['lags']} probes)")
        told.append(
            f"detectors: {load['undetected']} trajectories behind at the end of the load, none after"
            f" {load['detected_after_s']:.1f} s"
        )
    for name in ("burst", "soak"):
        if name in found:
            told.append(f"{name}: {json.dumps(found[name], default=str)}")
    return told


def _sentence(name: str, load: dict[str, Any]) -> str:
    parts = (
        f"{load['accepted_per_s']:.0f} spans/s accepted, {load['visible_per_s']:.0f} visible"
        f" ({load['seen']} of {load['accepted']}, the last after {load['visible_after_s']:.1f} s)",
        f"p50 {load['p50_ms']:.0f}, p95 {load['p95_ms']:.0f}, p99 {load['p99_ms']:.0f} ms",
        f"at most {load['rss_mb']:.0f} MB, {load['rss_greatest_mb']:.0f} MB in one process",
        "µs CPU a span: " + ", ".join(f"{kind} {spent:.0f}" for kind, spent in load["cpu_us"].items()),
        f"after kill -9 {load['after_kill'].get('missing')} of {load['after_kill'].get('acknowledged')} missing",
        f"answers {load['codes']}" + ("; the bodies ran out" if load["ran_out"] else ""),
    )
    return f"{name} {load['version']}".strip() + ": " + "; ".join(parts)


def measure(plan: Plan) -> dict[str, Any]:
    found = Bench(plan).run()
    found["rows"] = rows(found)
    return found


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_ingest", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of load at full speed on each system")
    parser.add_argument("--only", default=",".join(SYSTEMS), help=f"some of {', '.join(SYSTEMS)}")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS", help="a steady load afterwards")
    parser.add_argument("--rate", type=float, default=2000.0, help="spans per second of the steady load")
    parser.add_argument("--burst", type=float, default=5.0, metavar="SECONDS", help="of three times the capacity")
    parser.add_argument(
        "--peers", type=Path, default=Plan.environments, metavar="DIR", help="environments of the peers"
    )
    given = parser.parse_args()
    only = tuple(given.only.split(","))
    if unknown := set(only) - set(SYSTEMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found = measure(Plan(given.seconds, only, given.soak, given.rate, given.burst, given.peers))
    print(table(found["rows"]))
    print("\n".join(sentences(found)))
    Path("bench-ingest.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
