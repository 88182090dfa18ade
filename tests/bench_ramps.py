"""What a ramp and a shadow add to a model call through the gateway: `python -m tests.bench_ramps`, about ten minutes.

Three agents of one installation (three web processes, worker and beat, which judge meanwhile) are asked as
`agent@live`: one that is live and no more, one in a ramp with half of the sessions, and one whose calls are copied to a
shadow. Each is asked for a few sessions, then the next, in another order each time: so all see the same noise, and what
a copy still does when its call is over slows calls of its own agent. A session has five calls; the first one meets its
arm, which is written down. The model's server is in a process of its own and thinks for 100 ms.

What is added has a 95% interval, by a bootstrap over the rounds.
"""

import json
import random
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.bench_gateway import ROOT, Caller
from tests.benching.report import table
from tests.chaos.way_back import begun, installed
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from flywheel.promotions.models import Ramp

ROUNDS = {1: 45, 4: 12}
"""By how many are asked at once."""
SESSIONS, CALLS = 4, 5
"""Sessions of one caller in a round, and calls of a session."""
WAYS = ("live", "ramped", "shadowed")
PAUSE_S = 1.2
"""Between two agents, until the calls of one and their copies are stored."""
RESAMPLES = 2_000


def main() -> None:
    upstream = subprocess.Popen(
        [sys.executable, "-m", "tests.bench_gateway", "upstream"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert upstream.stdout is not None
    server = f"http://127.0.0.1:{int(upstream.stdout.readline())}/v1"
    try:
        with installed() as (installation, build, key, _):
            from flywheel.core.evidence.ramp.ramp_plan import Plan, Shadow, Stage

            half = (Stage(5000, 100_000, 0),)
            ramps = {
                "ramped": begun(build, "ramped", server, Plan(stages=half)),
                "shadowed": begun(build, "shadowed", server, Plan(stages=half, shadow=Shadow(100_000, calls=100_000))),
            }
            live = begun(build, "live", server, Plan(stages=half))
            for ramp in (live, ramps["ramped"]):
                _wait(ramp, "running")
            _stop(live)
            _wait(ramps["shadowed"], "shadow")
            port = int(installation.url.rpartition(":")[2])
            asked = {name: Caller(port, "/gateway/v1/chat/completions", key, f"{name}@live") for name in WAYS}
            rows = [row for at_once in ROUNDS for row in _measured(asked, at_once)]
            copies = _copies(ramps["shadowed"])
    finally:
        upstream.terminate()
        upstream.wait(20)
    print(table(rows))
    for row in rows:
        print(json.dumps({name: round(said, 2) if isinstance(said, float) else said for name, said in row.items()}))
    print(copies)


def _measured(asked: dict[str, Caller], at_once: int) -> list[dict[str, Any]]:
    def work(caller: Caller) -> list[tuple[str, float]]:
        sessions = [{"X-Flywheel-Session-Id": uuid.uuid4().hex} for _ in range(SESSIONS)]
        which = ["first", *["further"] * (CALLS - 1)]
        return [(one, caller.call(headers=headers)) for headers in sessions for one in which]

    took: dict[tuple[str, str], list[list[float]]] = {(one, name): [] for one in ("first", "further") for name in WAYS}
    order = random.Random(at_once)
    with ThreadPoolExecutor(at_once) as pool:
        for number in range(ROUNDS[at_once] + 1):
            for name, caller in order.sample(list(asked.items()), len(asked)):
                calls = [each for found in pool.map(work, [caller] * at_once) for each in found]
                if number:  # connections are made in the first round
                    for one in ("first", "further"):
                        took[one, name].append([ms for which, ms in calls if which == one])
                time.sleep(PAUSE_S)
    rounds = {which: np.array(found) for which, found in took.items()}
    rounds |= {("any", name): np.hstack([rounds["first", name], rounds["further", name]]) for name in WAYS}
    return [
        _row(f"{one} call of a session, {name}, {at_once} at once", found, rounds[one, "live"])
        for (one, name), found in rounds.items()
        if name != "live"
    ]


def _row(what: str, found: Any, plain: Any) -> dict[str, Any]:
    """Of milliseconds by round and call."""
    p95, plain_p95 = float(np.quantile(found, 0.95)), float(np.quantile(plain, 0.95))
    return {
        "what": f"{what}, 95th percentile",
        "ms": p95,
        "beside": "neither",
        "beside_ms": plain_p95,
        "ratio": p95 / plain_p95,
        "added_p50_ms": _added(found, plain, 0.5),
        "added_p95_ms": _added(found, plain, 0.95),
        "n": found.size,
    }


def _added(found: Any, plain: Any, share: float) -> list[float]:
    """The difference of two quantiles, and its interval."""
    drawn = np.random.default_rng(0).integers(len(found), size=(RESAMPLES, len(found)))
    apart = [np.quantile(found[rows], share) - np.quantile(plain[rows], share) for rows in drawn]
    said = np.quantile(found, share) - np.quantile(plain, share)
    return [round(float(each), 2) for each in (said, *np.quantile(apart, [0.025, 0.975]))]


def _stop(ramp: "Ramp") -> None:
    from flywheel.accounts.actors import Actor
    from flywheel.promotions.ramps import ramp_moves

    ramp.refresh_from_db()
    ramp_moves.stop(ramp=ramp, actor=Actor(ramp.approved_by), reason="for comparison", generation=ramp.generation)


def _wait(ramp: "Ramp", state: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while ramp.state != state:
        if time.monotonic() > until:
            raise SystemExit(f"{ramp} is {ramp.state} and not {state}")
        time.sleep(0.2)
        ramp.refresh_from_db()


def _copies(ramp: "Ramp") -> str:
    from flywheel.agents.models import Shadow

    shadow = Shadow.objects.get(split=ramp.split_id)
    return f"{shadow.copies:,} calls copied, {shadow.skipped:,} not, since there was no room"


if __name__ == "__main__":
    main()
