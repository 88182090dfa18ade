"""Every request delivered one to five times, shuffled, by several senders at once: the same as once, in order."""

import random
import threading
from typing import Any

from tests.chaos import check, traffic
from tests.chaos.installation import Installation
from tests.chaos.sending import Sender, Tally

SENDERS = 4


def trial(installation: Installation, *, seeds: list[int], episodes: int = 6) -> dict[str, Any]:
    names = [f"{kind}-{seed}" for seed in seeds for kind in ("once", "often")]
    keys = installation.make_projects(names)
    tally, found, deliveries = Tally(), list[str](), 0
    for seed in seeds:
        chance = random.Random(seed)
        once = traffic.requests(chance, episodes)
        often = [request for request in once for _ in range(chance.randrange(1, 6))]
        chance.shuffle(often)
        deliveries += len(often)
        _deliver(installation, keys[f"once-{seed}"], [once], tally, found)
        _deliver(installation, keys[f"often-{seed}"], [often[n::SENDERS] for n in range(SENDERS)], tally, found)
        expected, got = (check.content(installation, f"{kind}-{seed}") for kind in ("once", "often"))
        found += [f"seed {seed}: {difference}" for difference in _differences(expected, got)]
    found += check.violations(installation)
    return {"seeds": len(seeds), "deliveries": deliveries, "answers": dict(tally.codes), "violations": found}


def _deliver(
    installation: Installation, key: str, shares: list[list[traffic.Request]], tally: Tally, found: list[str]
) -> None:
    def send(number: int) -> None:
        sender = Sender(installation.port, key, tally, f"{number}")
        for request in shares[number]:
            if (status := sender.deliver(request.body, request.path)) != 200:
                found.append(f"a good request to {request.path} was answered with {status}")
        sender.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(shares))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _differences(expected: dict[str, list[str]], got: dict[str, list[str]]) -> list[str]:
    found = []
    for table, rows in expected.items():
        if rows != got[table]:
            only, more = set(rows) - set(got[table]), set(got[table]) - set(rows)
            found.append(f"{table} differ: {sorted(only)[:1]} against {sorted(more)[:1]}")
    return found
