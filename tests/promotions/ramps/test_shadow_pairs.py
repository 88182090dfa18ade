"""Two answers to one call: tools, arguments, and faults of the answer alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.core.traces import Message, Step, ToolCall
from flywheel.promotions.ramps.shadow_pairs import pair_of

TOOLS: list[dict[str, Any]] = [
    {
        "name": "find",
        "description": "Find an order",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    },
    {"name": "delete_all", "description": "Delete every order", "parameters": {"type": "object"}, "x-unsafe": True},
]
AT = datetime(2026, 11, 28, tzinfo=UTC)


def answer(*calls: tuple[str, Any], text: str = "", **fields: Any) -> Step:
    made = tuple(ToolCall(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(calls))
    asked = [
        Message("user", "Where is order 17?"),
        Message("assistant", "", (ToolCall("b", "delete_all", {}),)),
        Message("tool", "done", tool_call_id="b"),
        Message("user", "Go on"),
    ]
    said = [Message("assistant", text, made)] if made or text else []
    times: dict[str, Any] = {"started_at": AT, "ended_at": AT + timedelta(seconds=1)}
    return Step("s", "assistant", input=asked, output=said, tokens_out=5, **times, **fields)


def test_the_same_call_agrees_and_faults_before_it_are_not_its_own() -> None:
    found = pair_of(answer(("find", {"id": "17"})), answer(("find", {"id": "17"})), (TOOLS, TOOLS))
    assert (found.same_tools, found.same_arguments, found.differs) == (True, True, False)
    assert (found.live.unsafe, found.live.invalid, found.live.tokens, found.live.ms) == (False, False, 5, 1000.0)


def test_other_tools_other_arguments_and_faults_differ() -> None:
    live = answer(("find", {"id": "17"}))
    other = pair_of(live, answer(("find", {"id": "18"})), (TOOLS, TOOLS))
    assert (other.same_arguments, other.differs) == (False, True)
    invalid = pair_of(live, answer(("find", {"order": 3})), (TOOLS, TOOLS))
    assert (invalid.candidate.invalid, invalid.live.invalid) == (True, False)
    unknown = pair_of(live, answer(("look_up", {"id": "17"})), (TOOLS, TOOLS))
    assert (unknown.same_tools, unknown.same_arguments, unknown.candidate.invalid) == (False, None, True)
    unsafe = pair_of(
        live,
        answer(
            ("drop", {}),
        ),
        (TOOLS, [{**TOOLS[1], "name": "drop"}]),
    )
    assert (unsafe.candidate.unsafe, unsafe.differs) == (True, True)
    assert pair_of(live, answer(("drop", {})), (TOOLS, TOOLS), without=["unknown_tool"]).candidate.invalid is False


def test_two_texts_agree_and_only_a_servers_errors_count() -> None:
    assert not pair_of(answer(text="Hello"), answer(text="Good day"), (TOOLS, TOOLS)).differs
    away = pair_of(answer(text="Hello"), answer(status="error", error="503: busy"), (TOOLS, TOOLS))
    assert (away.candidate.error, away.differs) == (True, True)
    assert not pair_of(answer(text="Hi"), answer(status="error", error="400: no"), (TOOLS, TOOLS)).candidate.error
