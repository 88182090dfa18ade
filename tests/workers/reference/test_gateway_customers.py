"""The story's application in front of a gateway that answers what it is told to."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from flywheel.core.traces import tooling
from workers.reference import gateway_customers, story
from workers.reference.gateway_customers import Application, Unanswered, come


class Reply:
    def __init__(self, status: int, body: Any) -> None:
        self.status, self.body = status, body
        self.data = json.dumps(body).encode()

    def json(self) -> Any:
        return self.body


class Gateway:
    """Gives these answers in turn, after so many refusals."""

    def __init__(self, answers: Sequence[dict[str, Any]], busy: int = 0, status: int = 503) -> None:
        self.answers, self.busy, self.status = iter(answers), busy, status
        self.calls: list[tuple[str, Any, dict[str, str]]] = []

    def request(self, method: str, url: str, *, body: bytes, headers: dict[str, str]) -> Reply:
        if self.busy:
            self.busy -= 1
            return Reply(self.status, {"error": "not now"})
        self.calls.append((url.removeprefix("http://here"), json.loads(body), headers))
        if url.endswith("/feedback"):
            return Reply(200, {})
        return Reply(200, {"choices": [{"message": {"role": "assistant", **next(self.answers)}}]})


def application(gateway: Any, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Application:
    monkeypatch.setattr(gateway_customers, "PAUSE_S", 0.0)
    made = Application("http://here", "fw_key", **fields)
    monkeypatch.setattr(made, "_http", gateway)
    return made


def called(request: story.Request) -> dict[str, Any]:
    """The right call as a client gets it."""
    function = {"name": request.target["tool"], "arguments": json.dumps(request.target["arguments"])}
    return {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def test_a_session_calls_what_is_live_and_says_how_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = story.sessions(1, seed=3)[:2]
    gateway = Gateway([called(requests[0]), {"content": "Sorry?"}], busy=2)
    application(gateway, monkeypatch).serve(requests)
    (path, asked, headers), second, (to, feedback, _) = gateway.calls
    assert (path, to) == ("/gateway/v1/chat/completions", "/api/v1/feedback")
    assert asked["model"] == "workplace-assistant@live"
    assert asked["messages"] == [{"role": "user", "content": requests[0].prompt}]
    assert asked["metadata"]["state"] == requests[0].state
    assert "tools" not in asked, "the version brings its own"
    assert {headers["X-Flywheel-Session-Id"], second[2]["X-Flywheel-Session-Id"]} == {requests[0].session_id}
    assert [row["trace_id"] for row in feedback] == [headers["X-Flywheel-Trace-Id"], second[2]["X-Flywheel-Trace-Id"]]
    assert [(row["key"], row["value"], row["source"]) for row in feedback] == [
        ("outcome", "success", "end_user"),
        ("outcome", "failed", "end_user"),
    ]


def test_what_is_refused_for_good_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = story.sessions(1, seed=3)
    for status, busy in ((401, 1), (503, 99)):
        with pytest.raises(Unanswered, match=f"{status}.*not now"):
            application(Gateway([], busy, status), monkeypatch).serve(requests)


def test_customers_come_until_it_is_over_and_wait_while_they_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_customers, "LOOK_S", 0.002)
    served: list[int] = []

    class Counting:
        def serve(self, number: int) -> None:
            served.append(number)

    looks = itertools.count()
    numbers: Any = itertools.count()
    some: Any = Counting()
    come(some, numbers, is_over=lambda: next(looks) > 20, is_ahead=lambda: True, at_once=2)
    assert served == []
    come(some, iter(range(5)), is_over=lambda: False, at_once=2)  # type: ignore[arg-type]
    assert sorted(served) == [0, 1, 2, 3, 4]
    come(some, numbers, is_over=lambda: len(served) > 50, at_once=2, pause_s=0.001)
    assert len(served) > 50


def test_the_first_customer_without_an_answer_ends_it() -> None:
    class Away:
        def serve(self, number: int) -> None:
            raise Unanswered("away")

    away: Any = Away()
    with pytest.raises(Unanswered):
        come(away, itertools.repeat([]), is_over=lambda: False, at_once=2)


def test_a_renamed_argument_breaks_the_calls_of_who_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = story.tools_renamed()
    assert tooling.check_definitions(tools) == []
    requests = [row for row in story.sessions(30, seed=3) if "person" in row.target["arguments"]][:1]
    wanted = story.renamed(requests)
    assert wanted[0].target["arguments"].keys() == {
        "employee" if k == "person" else k for k in requests[0].target["arguments"]
    }
    gateway = Gateway([called(requests[0]), called(wanted[0])])
    changed = application(gateway, monkeypatch, tools=tools)
    for _ in range(2):
        changed.serve(wanted)
    assert [call[1][0]["value"] for call in gateway.calls if call[0].endswith("feedback")] == ["failed", "success"]
    assert gateway.calls[0][1]["tools"][0]["function"]["name"] == "calendar.create_event"
