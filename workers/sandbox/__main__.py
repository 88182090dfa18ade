"""`python -m workers.sandbox --report [--json]`: what this machine offers. `python -m workers.sandbox score`: a request
`{"code", "trace", "target", "low", "high", "limits"}` on stdin, the verdict as one JSON line on stdout."""

import argparse
import json
import sys
from typing import Any

from workers.sandbox import host
from workers.sandbox.outcome import Limits
from workers.sandbox.report import Report, report
from workers.sandbox.verdict import score


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.sandbox", description=__doc__)
    parser.add_argument("verb", nargs="?", choices=["score"])
    parser.add_argument("--report", action="store_true", help="try each layer for real")
    parser.add_argument("--json", action="store_true", help="the report as one JSON line")
    asked = parser.parse_args()
    try:
        if asked.verb == "score":
            print(json.dumps(_score(json.load(sys.stdin))))
            return 0
        if not asked.report:
            parser.error("say `score` or --report")
        found = report()
        print(json.dumps(found.to_json()) if asked.json else _table(found))
        return 0 if found.runs else 1
    finally:
        host.close()


def _score(request: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**request.pop("limits", {}))
    return score(limits=limits, **request).to_json()


def _table(found: Report) -> str:
    lines = [found.machine, ""]
    for layer in found.layers:
        lines.append(f"{layer.name:11} {layer.state:10} {layer.found}")
        lines.append(f"{'':22} stops: {layer.stops}")
        lines += [f"{'':22} {layer.getting}"] if layer.getting else []
    speed = f"; a call takes {found.seconds_a_call * 1000:.0f} ms" if found.seconds_a_call else ""
    return "\n".join([*lines, "", f"untrusted code {'runs' if found.runs else 'is REFUSED'} here{speed}"])


if __name__ == "__main__":
    sys.exit(main())
