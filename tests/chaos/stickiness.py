"""Does a session keep its arm? `python -m tests.chaos.stickiness [--sessions 10000] [--json]`.

A real installation with three web processes, worker and beat. Sessions begin in four cohorts, one at each stage of a
ramp, and make five calls each, over the stages that follow and while web processes are killed. Counted are the sessions
that two arms answered, and of each cohort those that met the candidate, beside the exact 99.9% interval of its share.
At the end the ramp is taken back, and everybody must get the live version.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from scipy.stats import binom

from tests.chaos.installation import Installation
from tests.chaos.way_back import begun, installed
from tests.waiting import PATIENCE_S

SHARES = (500, 1000, 2500, 5000)
CALLS = 5
CLIENTS = 12
KILL_EVERY_S = 6.0
LEVEL = 0.999
AFTER_S = 5.0
"""From the way back until nobody may meet the candidate."""


class Sessions:
    """What each session was answered by."""

    def __init__(self, url: str, key: str, agent: str) -> None:
        self.url, self.key, self.agent = urlsplit(url), key, agent
        self.arms: dict[str, set[str]] = defaultdict(set)
        """Arms of each session's answers; an answer to which no arm was named is of none."""
        self.errors = self.calls = 0
        self._lock = threading.Lock()

    def call_all(self, names: Sequence[str]) -> None:
        """One call of each, in any order."""
        shuffled = random.sample(names, len(names))
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self._call_some, [shuffled[place::CLIENTS] for place in range(CLIENTS)]))

    def _call_some(self, names: Iterable[str]) -> None:
        line = http.client.HTTPConnection(str(self.url.hostname), self.url.port, timeout=15)
        for name in names:
            until = time.monotonic() + PATIENCE_S
            while (arm := self._arm(line, name)) is None:
                assert time.monotonic() < until, f"no answer for {name}"
                time.sleep(0.1)
            with self._lock:
                self.calls += 1
                self.arms[name].add(arm)
        line.close()

    def _arm(self, line: http.client.HTTPConnection, name: str) -> str | None:
        body = {"model": f"{self.agent}@live", "messages": [{"role": "user", "content": "Meet Bako."}]}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        headers |= {"X-Flywheel-Session-Id": name, "X-Flywheel-Record": "no"}
        try:
            line.request("POST", "/gateway/v1/chat/completions", json.dumps(body), headers)
            answer = line.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            line.close()
            answer = None
        if answer is None or answer.status != 200:
            with self._lock:
                self.errors += 1
            return None
        return answer.headers.get("X-Flywheel-Arm", "none")


class Kills(threading.Thread):
    """Ends a web process now and then, and all of them at once."""

    def __init__(self, installation: Installation) -> None:
        super().__init__(daemon=True)
        self.installation, self.count, self.ended = installation, 0, threading.Event()

    def run(self) -> None:
        chance = random.Random(18)
        while not self.ended.wait(KILL_EVERY_S):
            kind = chance.choices(["web process", "web master"], [4, 1])[0]
            self.count += bool(self.installation.kill9(kind, chance))


def played(installation: Installation, ramp: Any, sessions: Sessions, count: int) -> dict[str, Any]:
    """Carry out the ramp with so many sessions in each cohort."""
    from flywheel.accounts.actors import Actor
    from flywheel.promotions.ramps import ramp_moves

    approver = Actor(ramp.approved_by)
    cohorts = [[f"cohort-{stage}-{number}" for number in range(count)] for stage in range(len(SHARES))]
    kills = Kills(installation)
    kills.start()
    for part in range(len(SHARES) + CALLS - 1):
        if 0 < part < len(SHARES):
            ramp.refresh_from_db()
            ramp_moves.advance(ramp=ramp, actor=approver, reason="next", generation=ramp.generation)
        begun_by_now = cohorts[max(0, part - CALLS + 1) : part + 1]
        sessions.call_all([name for cohort in begun_by_now for name in cohort])
        print(f"part {part + 1}: {sessions.calls:,} calls, {kills.count} kills", file=sys.stderr, flush=True)
    kills.ended.set()
    kills.join()
    kept = {name: set(arms) for name, arms in sessions.arms.items()}
    ramp.refresh_from_db()
    ramp_moves.take_back(ramp=ramp, actor=approver, reason="to look who is sent back", generation=ramp.generation)
    time.sleep(AFTER_S)
    sessions.arms.clear()
    sessions.call_all([name for cohort in cohorts for name in cohort[: max(1, count // 10)]])
    return _result(sessions, kept, cohorts, kills.count)


def _result(
    sessions: Sessions, kept: dict[str, set[str]], cohorts: Sequence[Sequence[str]], kills: int
) -> dict[str, Any]:
    rows = []
    for share, cohort in zip(SHARES, cohorts, strict=True):
        met = sum("candidate" in kept[name] for name in cohort)
        within = [float(end) for end in binom.interval(LEVEL, len(cohort), share / 10_000)]
        rows.append({"share": share / 10_000, "sessions": len(cohort), "candidate": met, "interval": within})
    return {
        "sessions": len(kept),
        "calls": sessions.calls,
        "errors": sessions.errors,
        "kills": kills,
        "two_arms": sum(arms >= {"live", "candidate"} for arms in kept.values()),
        "unnamed": sum("none" in arms for arms in kept.values()),
        "cohorts": rows,
        "candidate_after_way_back": sum("candidate" in arms for arms in sessions.arms.values()),
    }


def is_kept(result: dict[str, Any]) -> bool:
    """Whether all is as wanted."""
    shares = all(row["interval"][0] <= row["candidate"] <= row["interval"][1] for row in result["cohorts"])
    return shares and not (result["two_arms"] or result["unnamed"] or result["candidate_after_way_back"])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.stickiness", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with installed() as (installation, build, key, server):
        from flywheel.core.evidence.ramp.ramp_plan import Plan, Stage
        from tests.waiting import wait_for

        stages = tuple(Stage(share, 100_000, 0) for share in SHARES)
        plan = Plan(stages=stages, finish="person", quiet_s=3600, wait_s=36_000)
        ramp = begun(build, "desk", server, plan)

        def is_running() -> bool:
            ramp.refresh_from_db()
            return ramp.state == "running"

        wait_for(is_running, "the judge begins it")
        time.sleep(AFTER_S)
        result = played(installation, ramp, Sessions(installation.url, key, "desk"), given.sessions // len(SHARES))
    print(json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    sys.exit(not is_kept(result))


if __name__ == "__main__":
    main()
