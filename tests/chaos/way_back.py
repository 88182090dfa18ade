"""The way back, measured: `python -m tests.chaos.way_back [--tries 20] [--kills] [--json]`.

Each try has an agent of its own in a real installation with three web processes, worker and beat. Sessions come all
the time; the model's server answers for both versions. Half of the sessions meet the candidate, whose sessions fail in
9 of 10 cases and live's in 1 of 10; outcomes are told some seconds after the answer. Measured is the time from the
commit of the outcome that decided to the beginning of the last call that the candidate answered. With `--kills` one of
worker, beat, a web process and the database is killed now and then.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.installation import Installation
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from flywheel.core.evidence.ramp.ramp_plan import Plan
    from flywheel.promotions.models import Ramp
    from tests.conftest import Build

CLIENTS = 6
TOLD_AFTER_S = 2.5
"""So that a session is over and read when its outcome comes: what is measured is the judge's way, not the wait."""
QUIET_S = 1.0
CALM_S = 8.0
"""Without a call to the candidate, after which there is none to come."""
FAILING = {"candidate": 0.9, "live": 0.1}
KILLED = {"worker": 1, "beat": 2, "web process": 3, "postmaster": 1}
WANTED_P95_S, WANTED_WORST_S = 4.0, 10.0
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "model": "any",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}


class Traffic:
    """Sessions of one agent, each a call and, some seconds later, its outcome."""

    def __init__(self, installation: Installation, key: str, agent: str, seed: int) -> None:
        self.url, self.key, self.agent, self.seed = installation.url, key, agent, seed
        self.begun: list[tuple[float, str]] = []
        """When each answered call began, and its arm."""
        self.told: dict[str, float] = {}
        """When the outcome of each session was acknowledged."""
        self.errors = 0
        self.stop = threading.Event()
        self._due: list[tuple[float, str, str]] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(CLIENTS)]
        self._threads.append(threading.Thread(target=self._tell, daemon=True))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def last_of_candidate(self) -> float:
        with self._lock:
            return max((at for at, arm in self.begun if arm == "candidate"), default=0.0)

    def _ask(self, number: int) -> None:
        chance, count = random.Random(f"{self.seed} {number}"), 0
        while not self.stop.is_set():
            count += 1
            session = f"{self.agent}-{number}-{count}"
            trace = f"{chance.getrandbits(128):032x}"
            body = {"model": f"{self.agent}@live", "messages": [{"role": "user", "content": f"Task {session}"}]}
            began = time.time()
            answer = self._post(
                "/gateway/v1/chat/completions",
                body,
                {"X-Flywheel-Session-Id": session, "X-Flywheel-Trace-Id": trace},
            )
            if answer is None:
                continue
            arm = answer.get("X-Flywheel-Arm", "live")
            outcome = "failed" if chance.random() < FAILING[arm] else "success"
            with self._lock:
                self.begun.append((began, arm))
                self._due.append((time.time() + TOLD_AFTER_S, session, json.dumps([trace, outcome])))
            self.stop.wait(0.05)

    def _tell(self) -> None:
        while not self.stop.wait(0.1):
            with self._lock:
                now = time.time()
                due = [row for row in self._due if row[0] <= now]
                self._due = [row for row in self._due if row[0] > now]
            if not due:
                continue
            rows = [(session, *json.loads(said)) for _, session, said in due]
            told = [{"trace_id": trace, "key": "outcome", "value": outcome} for _, trace, outcome in rows]
            if self._post("/api/v1/feedback", told, {}) is None:
                with self._lock:
                    self._due += due
                continue
            at = time.time()
            for session, *_ in rows:
                self.told[session] = at

    def _post(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                answer.read()
                return answer.headers
        except (http.client.HTTPException, OSError):  # of which urllib's are kinds
            self.errors += 1
            self.stop.wait(0.2)
            return None


class Model(BaseHTTPRequestHandler):
    """A server that answers for every model."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def begun(build: "Build", agent_name: str, server: str, plan: "Plan") -> "Ramp":
    """An agent of two versions and a ramp by this plan."""
    from flywheel.accounts.actors import Actor
    from flywheel.promotions.candidacy import propose
    from flywheel.promotions.live_version import make_first
    from flywheel.promotions.ramps import ramp_moves
    from tests.promotions.conftest import evaluated_with, pair_of

    def endpoint(model: str) -> dict[str, str]:
        return {"kind": "openai", "base_url": server, "model": model}

    cast, agent = build.cast, build.agent(agent_name)
    first = build.version(agent, endpoint=endpoint("good"))
    make_first(agent=agent, version=first, actor=Actor(cast.approver), reason="first")
    agent.refresh_from_db()
    arms = pair_of(build, agent, evaluated_with(build), endpoint=endpoint("bad"))
    return ramp_moves.begin(
        candidate=propose(**arms, actor=Actor(cast.trainer)),
        plan=plan,
        actor=Actor(cast.approver),
        reason="to be taken back",
        generation=agent.generation,
    )


def tried(installation: Installation, ramp: "Ramp", key: str, seed: int, kills: bool) -> dict[str, Any]:
    """Carry out one try: `{"seconds", "sessions", "unit", "errors", "killed"}`, of its way back, its calls, the session
    that decided, calls that failed, and what was killed."""
    from django.db import Error, connection

    from flywheel.agents.models import SplitUnit

    traffic, chance, killed = Traffic(installation, key, ramp.agent.name, seed), random.Random(seed), []
    next_kill = time.time() + chance.uniform(3, 9)
    deadline = time.time() + PATIENCE_S
    while time.time() < deadline:
        time.sleep(0.25)
        with contextlib.suppress(Error):  # the database may be the one that was killed
            connection.close()
            ramp.refresh_from_db()
        if ramp.state == "taken_back" and time.time() - traffic.last_of_candidate() > CALM_S:
            break
        if kills and time.time() > next_kill:
            kind = chance.choices(list(KILLED), list(KILLED.values()))[0]
            if installation.kill9(kind, chance):
                killed.append(kind)
            next_kill = time.time() + chance.uniform(4, 12)
    traffic.end()
    if ramp.state != "taken_back":
        units = installation.sql(
            "SELECT is_candidate, frozen_at IS NULL, mixed, count(*), max(met_at) FROM agents_splitunit "
            "WHERE split_id = %s GROUP BY 1, 2, 3",
            ramp.split_id,
        )
        sessions = installation.sql(
            "SELECT pid, state, wait_event_type, now() - xact_start, left(query, 200) FROM pg_stat_activity "
            "WHERE state <> 'idle' AND datname IS NOT NULL"
        )
        raise SystemExit(
            f"not taken back: {ramp.state} {ramp.finding}, {len(traffic.told)} outcomes told, {traffic.errors} errors, "
            f"killed {killed}\nunits {units}\nstatements {sessions}\n{installation.log()[-20000:]}"
        )
    unit = SplitUnit.objects.get(split=ramp.split_id, number=ramp.finding["unit"])
    seconds = traffic.last_of_candidate() - traffic.told[unit.name]
    return {
        "seconds": round(seconds, 2),
        "sessions": len(traffic.begun),
        "unit": ramp.finding["unit"],
        "errors": traffic.errors,
        "killed": killed,
    }


@contextlib.contextmanager
def installed() -> Iterator[tuple[Installation, "Build", str, str]]:
    """Three web processes with worker and beat, this process as one of them, a key for gateway and ingest, and the
    address of a model's server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with (
        tempfile.TemporaryDirectory(prefix="ramped-") as home,
        Installation(Path(home), processes=3) as installation,
    ):
        os.environ |= {"DATABASE_URL": installation.database, "FLYWHEEL_HOME": home}
        os.environ["DJANGO_SETTINGS_MODULE"] = "flywheel.settings"
        import django

        django.setup()
        from flywheel.accounts.models import ApiKey
        from tests.conftest import Build, cast_of_two_projects

        cast = cast_of_two_projects("ramped-")
        _, key = ApiKey.make(cast.project, "ramped", ["gateway", "ingest"], cast.admin)
        yield installation, Build(cast), key, f"http://127.0.0.1:{server.server_address[1]}/v1"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.way_back", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with installed() as (installation, build, key, server):
        from flywheel.core.evidence.ramp.ramp_plan import Plan, Stage

        half = Plan(stages=(Stage(5000, 100_000, 0),), finish="person", quiet_s=QUIET_S, wait_s=3600)
        found = []
        for number in range(given.tries):
            ramp = begun(build, f"desk-{number}", server, half)
            found.append(tried(installation, ramp, key, number, given.kills))
            print(f"try {number + 1}: {found[-1]}", file=sys.stderr, flush=True)
    seconds = sorted(row["seconds"] for row in found)
    result = {
        "tries": len(found),
        "median_s": round(statistics.median(seconds), 2),
        "p95_s": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        "worst_s": seconds[-1],
        "wanted": {"p95_s": WANTED_P95_S, "worst_s": WANTED_WORST_S},
        "killed": sum(len(row["killed"]) for row in found),
        "calls": sum(row["sessions"] for row in found),
    }
    print(json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
