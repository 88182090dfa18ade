"""`kill -9` at random moments under load: what was acknowledged is stored, once, and the books are right."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import check, traffic
from tests.chaos.installation import KINDS, Installation
from tests.chaos.sending import Sender, Tally
from tests.waiting import PATIENCE_S

CLIENTS = 8
WEIGHTS = {"web process": 5, "postmaster": 4, "web master": 2, "worker": 2}


@dataclass
class Acknowledged:
    spans: set[tuple[str, str]] = field(default_factory=set)
    events: set[tuple[str, str, str]] = field(default_factory=set)
    requests: int = 0
    refused: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def trial(installation: Installation, *, kills: int, seed: int, every_s: float = 2.0) -> dict[str, Any]:
    """Hurt it that often; the findings hold `violations`, which must be empty."""
    slug = f"kills-{seed}"
    key = installation.make_projects([slug])[slug]
    tally, acknowledged, stop = Tally(), Acknowledged(), threading.Event()
    clients = [
        threading.Thread(
            target=_client, args=(installation, key, f"{seed}-{number}", tally, acknowledged, stop), daemon=True
        )
        for number in range(CLIENTS)
    ]
    began = time.monotonic()
    for client in clients:
        client.start()
    chance, killed = random.Random(seed), Counter[str]()
    while killed.total() < kills:
        time.sleep(chance.uniform(0.05, 2 * every_s))
        kind = chance.choices(KINDS, [WEIGHTS[kind] for kind in KINDS])[0]
        if installation.kill9(kind, chance):
            killed[kind] += 1
    stop.set()
    for client in clients:
        client.join(PATIENCE_S)
    took = time.monotonic() - began
    found = ["a client never got a final answer"] if any(client.is_alive() for client in clients) else []
    installation.wait_until_ready()
    if "worker" in installation.commands:
        installation.submit_reread(slug)
        found += check.unfinished(installation, PATIENCE_S)
    found += acknowledged.refused[:5]
    found += check.missing_steps(installation, slug, acknowledged.spans)
    found += check.missing_events(installation, slug, acknowledged.events)
    found += check.violations(installation)
    if tally.codes["500"] or any("without" in code for code in tally.codes):
        found.append(f"answers that lose or do not say when: {dict(tally.codes)}")
    return {
        "seed": seed,
        "kills": dict(killed),
        "seconds": round(took, 1),
        "acknowledged requests": acknowledged.requests,
        "acknowledged spans": len(acknowledged.spans),
        "acknowledged events": len(acknowledged.events),
        "answers": dict(tally.codes.most_common()),
        "violations": found,
    }


def _client(
    installation: Installation, key: str, seed: str, tally: Tally, acknowledged: Acknowledged, stop: threading.Event
) -> None:
    chance = random.Random(seed)
    sender = Sender(installation.port, key, tally, seed)
    while not stop.is_set():
        for request in traffic.requests(chance):
            status = sender.deliver(request.body, request.path)
            with acknowledged.lock:
                if status == 200:
                    acknowledged.requests += 1
                    acknowledged.spans.update(request.spans)
                    acknowledged.events.update(request.events)
                else:
                    acknowledged.refused.append(f"a good request to {request.path} was answered with {status}")
            if stop.is_set():
                break
    sender.close()
