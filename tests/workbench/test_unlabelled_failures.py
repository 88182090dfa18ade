"""Failing runs that nobody labelled become proved tasks, too; here a part of them, for all take half a minute."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.core.traces import Message, ToolCall, Trace
from tests.workbench import outcomes, report
from tests.workbench.unlabelled_failures import NOTHING, Tried, correction, departure, marked, table, tried

PAGE = Path(__file__).parents[2] / "docs/design/replay.md"
EVERY = 6
DELETE: dict[str, Any] = {"tool": "calendar.delete_event", "arguments": {"event_id": "1"}}
SEND: dict[str, Any] = {
    "tool": "email.send_email",
    "arguments": {"recipient": "a@b.c", "subject": "Hello", "body": "Hi"},
}
LOOK: dict[str, Any] = {"tool": "calendar.search_events", "arguments": {"query": "Hello"}}


def trace(*calls: dict[str, Any]) -> Trace:
    said = [Message("assistant", "", (ToolCall("", c["tool"], c["arguments"]),)) for c in calls]
    return Trace.from_messages("", [Message("user", "Do it"), *said, Message("assistant", "Done.")])


def test_a_run_departs_where_it_first_changes_what_is_not_wanted_else_at_its_end() -> None:
    assert departure(trace(LOOK, DELETE, SEND), [SEND]) == ("m2", [SEND])
    assert departure(trace(LOOK, SEND, SEND), [SEND]) == ("m3", [])
    assert departure(trace(LOOK, DELETE), [SEND, DELETE]) == ("m3", [SEND])
    assert correction([]) == NOTHING
    assert correction([SEND]) == SEND
    assert correction([SEND, DELETE]) == {"calls": [SEND, DELETE], "order": "any"}


@pytest.mark.skipif(not outcomes.RUNS.exists(), reason="the recorded runs are not here")
def test_nearly_every_failure_that_nobody_labelled_becomes_a_proved_task() -> None:
    failures = list(marked())
    assert not {each.run for each in failures} & {label.run for label in report.labels()}
    assert table([Tried(each, "") for each in failures]) in PAGE.read_text()
    sample = tried(failures[::EVERY])
    unproved = [(each.marked.run, each.problem) for each in sample if each.problem]
    assert len(unproved) <= 0.05 * len(sample), unproved
