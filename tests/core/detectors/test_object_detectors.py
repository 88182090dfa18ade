"""Right form, wrong object: a real id of another thing than the one that the request means."""

import json
from typing import Any

import pytest

from flywheel.core.detectors.standard_buckets import Proposal, detect
from flywheel.core.traces import Message, ToolCall, Trace

TOLD = "Today's date is Thursday, 2023-11-30 and the current time is 10:00:00."
PAST = {"event_id": "00000001", "event_name": "sync", "with": "kofi@x.org", "event_start": "2023-11-02 09:00:00"}
SOON = {"event_id": "00000002", "event_name": "sync", "with": "kofi@x.org", "event_start": "2023-12-04 09:00:00"}
LATE = {"event_id": "00000003", "event_name": "debrief", "with": "kofi@x.org", "event_start": "2023-12-04 15:00:00"}
OTHER = {"event_id": "00000004", "event_name": "review", "with": "nadia@x.org", "event_start": "2023-12-01 11:00:00"}


def run(request: str, shown: list[dict[str, str]], *acted: str, closing: str = "It is done.") -> list[Proposal]:
    """What is proposed for a run that is shown these rows, cancels the events of these ids, and closes so."""
    messages = [Message("system", TOLD), Message("user", request)]
    calls = [("calendar.search_events", {"query": "x"}, json.dumps(shown))]
    calls += [("calendar.delete_event", {"event_id": each}, "Event deleted successfully.") for each in acted]
    for number, (name, arguments, result) in enumerate(calls):
        messages.append(Message("assistant", "", (ToolCall(f"c{number}", name, arguments),)))
        messages.append(Message("tool", result, (), f"c{number}", name))
    return detect(Trace.from_messages("a" * 32, [*messages, Message("assistant", closing)]))


@pytest.mark.parametrize(
    ("request_", "shown", "acted", "why"),
    [
        ("Cancel my next meeting with kofi", [PAST, SOON, LATE], ["00000001"], "past"),
        ("Cancel my next meeting with kofi", [PAST, SOON, LATE], ["00000003"], "not the next one"),
        ("Cancel my last meeting with kofi on December 4", [SOON, LATE], ["00000002"], "not the last one"),
        ("Cancel my first meeting on December 4", [LATE, SOON], ["00000003"], "not the first one"),
        ("Cancel my first meeting on December 4", [OTHER, SOON], ["00000004"], "another day than"),
        ("Cancel my meetings on Friday", [SOON, OTHER], ["00000002"], "another day of the week"),
        ("Cancel my meetings on Monday after 11", [SOON, LATE], ["00000002"], "another time of the day"),
        ("Cancel my meeting with kofi", [OTHER, SOON], ["00000004"], "fits “kofi”"),
        ("Cancel the next sync with kofi", [SOON, LATE], ["00000002", "00000003"], "one was meant"),
    ],
)
def test_what_is_not_meant_is_another_object(
    request_: str, shown: list[dict[str, str]], acted: list[str], why: str
) -> None:
    proposals = [each for each in run(request_, shown, *acted) if each.detector == "wrong_object"]
    assert proposals
    assert proposals[0].bucket == "wrong_arguments"
    assert why in proposals[0].evidence


@pytest.mark.parametrize(
    ("request_", "shown", "acted"),
    [
        ("Cancel my next meeting with kofi", [PAST, SOON, LATE], ["00000002"]),
        ("Cancel my last meeting with kofi on December 4", [SOON, LATE], ["00000003"]),
        ("Cancel my first meeting on December 4", [LATE, SOON, OTHER], ["00000002"]),
        ("Cancel my meetings on Friday", [SOON, OTHER], ["00000004"]),
        ("Cancel my meetings on Monday after 11", [SOON, LATE], ["00000003"]),
        ("Cancel all my future meetings with kofi", [PAST, SOON, LATE], ["00000002", "00000003"]),
        ("Cancel what I did in the last 30 days", [PAST, SOON], ["00000001"]),
        ("Cancel 00000001", [PAST, SOON], ["00000001"]),
        ("Sag mein nächstes Treffen mit kofi ab", [PAST, SOON], ["00000001"]),
    ],
)
def test_what_may_be_meant_is_left_alone(request_: str, shown: list[dict[str, str]], acted: list[str]) -> None:
    assert run(request_, shown, *acted) == []


def test_an_id_that_several_things_have_is_that_of_something_else() -> None:
    owned = [{**each, "event_id": f"{number}", "owner_id": "00000009"} for number, each in enumerate((PAST, SOON))]
    messages = [
        Message("system", TOLD),
        Message("user", "Rename the owner of my next meeting with kofi"),
        Message("assistant", "", (ToolCall("1", "search", {"q": "kofi"}),)),
        Message("tool", json.dumps(owned), (), "1", "search"),
        Message("assistant", "", (ToolCall("2", "rename", {"owner_id": "00000009"}),)),
        Message("tool", "ok", (), "2", "rename"),
    ]
    assert "wrong_object" not in {each.detector for each in detect(Trace.from_messages("a" * 32, messages))}


def test_what_was_found_and_left_as_it_is() -> None:
    closing = "I need the id of the event."
    (proposal,) = run("Cancel my next meeting with kofi", [PAST, SOON], closing=closing)
    assert (proposal.detector, proposal.bucket) == ("nothing_done", "incomplete_execution")
    assert "2023-12-04" in proposal.evidence
    assert run("Cancel my next meeting with kofi", [PAST], closing="There is none.") == []
    assert run("Cancel my next meeting with kofi", [PAST, SOON], closing="The one of December 4?") == []
    assert run("If I meet kofi next, cancel it", [PAST, SOON], closing=closing) == []
    assert run("When is my next meeting with kofi", [PAST, SOON], closing="On December 4.") == []


def test_one_that_is_spoken_of_and_not_found_is_a_retrieval_failure() -> None:
    closing = "There is no such meeting."
    (proposal,) = run("Cancel my last meeting with kofi", [], closing=closing)
    assert (proposal.detector, proposal.bucket) == ("empty_retrieval", "retrieval_failure")
    assert run("Cancel all meetings with kofi", [], closing=closing) == []
    assert run("Cancel my next meeting with kofi", [], closing=closing) == []


@pytest.mark.parametrize("rows", ['[1, {"id": []}, null]', '{"id": {"a": 1}}', "[" * 2000, '{"event_id": "00000001"}'])
def test_rows_of_any_form_are_read(rows: str) -> None:
    made: list[Any] = [
        Message("user", "Cancel my next meeting"),
        Message("assistant", "", (ToolCall("1", "search", {"q": "00000001"}),)),
        Message("tool", rows, (), "1", "search"),
        Message("assistant", "", (ToolCall("2", "delete", {"event_id": "00000001"}),)),
        Message("tool", "ok", (), "2", "delete"),
    ]
    assert "wrong_object" not in {each.detector for each in detect(Trace.from_messages("a" * 32, made))}
