"""`python -m tests.chaos --kills 200`: the long form of the trials. Ends with 1 when something is wrong."""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos import full, kills, malformed, repeats
from tests.chaos.installation import Installation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="`kill -9` that often at random moments under load")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between kills, on average (default: 2)")
    parser.add_argument("--repeats", type=int, default=0, help="so many seeds of repeated and shuffled deliveries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--malformed", action="store_true", help="malformed bodies and slow senders")
    parser.add_argument("--read-only", action="store_true", help="a database that may not write")
    parser.add_argument(
        "--full", action="store_true", help="a disk without space (wants to be root; nothing else then)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and not without stopping what was started
    findings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="flywheel-chaos-") as directory:
        home = Path(directory)
        if options.full and (reason := full.make_small_disk(home / "postgres")):
            print(reason, file=sys.stderr)
            return 77
        with Installation(home, with_worker=bool(options.kills)) as installation:
            if options.full:
                findings["full"] = full.disk(installation, seed=options.seed)
            if options.read_only:
                findings["read-only"] = full.read_only(installation, seed=options.seed)
            if options.repeats:
                seeds = list(range(options.seed, options.seed + options.repeats))
                findings["repeats"] = repeats.trial(installation, seeds=seeds)
            if options.malformed:
                findings["malformed"] = malformed.trial(installation, seed=options.seed)
                findings["slow"] = malformed.slow(installation)
            if options.kills:
                trial = kills.trial(installation, kills=options.kills, seed=options.seed, every_s=options.every)
                findings["kills"] = trial
            log = installation.log()
        if options.full:
            subprocess.run(["umount", str(home / "postgres")], check=True)
    print(json.dumps(findings, indent=2))
    bad = [violation for finding in findings.values() for violation in finding["violations"]]
    if bad:
        print(log[-10_000:], file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
