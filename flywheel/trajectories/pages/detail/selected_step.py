"""The chosen step: what it did, how it arrived, and beside what was expected."""

import json
from dataclasses import dataclass
from typing import Any

from flywheel.accounts.project_settings.model_prices import words_of
from flywheel.trajectories.detail import anomalies, expected_action, transcript
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store import log_events
from flywheel.trajectories.store.rows.blobs import Spilled, preview

RAW_SHOWN = 200_000
"""Characters."""
SIDES = ("preview", "raw", "expected")


@dataclass(frozen=True, slots=True)
class Raw:
    """A step as it arrived, as text."""

    text: str
    is_cut: bool
    values: list[Spilled]
    """Large values of which the text shows the beginning."""


def chosen_of(trajectory: Trajectory, row: Step | None, side: str, failure: Any) -> dict[str, Any]:
    """Return the context of `_step.html` for a step, from one of its sides."""
    if row is None:
        return {"step": None}
    expected = expected_action.expected_of(trajectory, failure)
    side = side if side in SIDES and (side != "expected" or expected) else SIDES[0]
    found: dict[str, Any] = {
        "step": row,
        "side": side,
        "expected": expected,
        "priced": words_of(trajectory.project_id, row.priced_by) if row.priced_by else "",
        "odd": anomalies.of_steps(trajectory, [row]).get(row.span_id, []),
    }
    if side == "raw":
        found |= {"raw": raw_of(row), "told": told_of(trajectory, row)}
    elif side == "expected" and expected:
        actual = expected_action.done_in(trajectory, [row])
        found |= {"actual": actual, "wanted": expected_action.aligned(actual, expected.action)}
    else:
        found["own"] = transcript.own_turns(trajectory, row)
    return found


def raw_of(row: Step) -> Raw:
    """The step as it arrived, without its large values."""
    body, values = preview(row.raw, row.blobs or ())
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return Raw(text[:RAW_SHOWN], len(text) > RAW_SHOWN, values)


def told_of(trajectory: Trajectory, row: Step) -> Raw | None:
    """Return the log records that came for the step; None when there are none."""
    log_events.put_back([row], [trajectory])
    if not row.log_events:
        return None
    told = [
        {"name": event.name, "time_ns": str(event.time_ns), "attributes": event.attributes, "body": event.body}
        for event in row.log_events
    ]
    text = json.dumps(told, indent=2, ensure_ascii=False)
    return Raw(text[:RAW_SHOWN], len(text) > RAW_SHOWN, [])
