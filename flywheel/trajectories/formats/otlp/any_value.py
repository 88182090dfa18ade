"""Plain JSON as OTLP's attribute lists: `[{"key", "value": {"stringValue" | "intValue" | …}}]`."""

import math
from collections.abc import Mapping
from typing import Any


def attributes(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": any_value(value)} for key, value in row.items()]


def any_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        # 64-bit integers are strings in protobuf's JSON; a longer one fits no integer of OTLP.
        return {"intValue": str(value)} if -(2**63) <= value < 2**63 else {"stringValue": str(value)}
    if isinstance(value, float):
        return {
            "doubleValue": value
            if math.isfinite(value)
            else {"inf": "Infinity", "nan": "NaN"}.get(str(value), "-Infinity")
        }
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": attributes({str(key): item for key, item in value.items()})}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    return {"stringValue": str(value)}
