"""The table of `make bench`."""

from typing import Any


def table(rows: list[dict[str, Any]]) -> str:
    width = max((len(item["what"]) for item in rows), default=0)
    lines = []
    for item in rows:
        unit = item.get("unit", "ms")
        value, reference = item.get("value", item.get("ms")), item.get("beside_value", item.get("beside_ms"))
        beside = f"{item['beside']} ({reference:.2f} {unit})"
        rounds = item.get("rounds")
        spread = f", {len(rounds)} rounds from {min(rounds):.2f} to {max(rounds):.2f}" if rounds else ""
        lines.append(f"{item['what']:<{width}}  {value:9.2f} {unit:<7}  {item['ratio']:7.2f} × {beside}{spread}")
    return "\n".join(lines)
