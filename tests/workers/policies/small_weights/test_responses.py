"""A call of the Responses API is asked as its chat completion is, and its answer is as OpenAI's types have it."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from flywheel.core.envs.policy_rollouts import ChatResponse, Sampling
from flywheel.core.traces import Message, ToolCall, openai_messages
from workers.policies.small_weights import chat_completions
from workers.policies.small_weights.responses import read
from workers.policies.small_weights.served_calls import Pieces, Refused

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASK: dict[str, Any] = {"model": "m", "input": "Hi"}
HI = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"day": "friday"}'}
LOOK = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}, "strict": True}

TEXT = st.text(max_size=12)
CALLS = st.lists(
    st.builds(
        ToolCall,
        st.uuids().map(str),
        st.sampled_from(["look", "wait"]),
        st.dictionaries(st.text(max_size=3), st.integers() | TEXT, max_size=2),
    ),
    max_size=2,
)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A user's words, an answer, and what its calls gave."""
    calls = draw(CALLS)
    results = [Message("tool", draw(TEXT), tool_call_id=call.id) for call in calls]
    return [Message("user", draw(TEXT)), Message("assistant", draw(TEXT), tuple(calls)), *results]


@given(st.lists(turns(), min_size=1, max_size=3), st.none() | st.text(min_size=1, max_size=9), st.booleans())
def test_a_conversation_is_asked_as_its_chat_completion_is(
    rounds: list[list[Message]], prompt: str | None, has_tools: bool
) -> None:
    messages = [message for one in rounds for message in one]
    settings = {"model": "m", "temperature": 0.3, "top_p": 0.9, "seed": 7, "stream": True}
    function = {name: LOOK[name] for name in ("name", "description", "parameters")}
    system = [{"role": "system", "content": prompt}] if prompt else []
    chat = chat_completions.read({
        **settings,
        "messages": [*system, *(message.to_openai() for message in messages)],
        "max_tokens": 9,
        "tools": [{"type": "function", "function": function}] if has_tools else None,
    })  # fmt: skip
    items = openai_messages.opening(messages)
    tools = {"tools": [LOOK]} if has_tools else {}
    asked = read({**settings, "input": items, "instructions": prompt, "max_output_tokens": 9, **tools})
    assert asked.request == chat.request
    assert (asked.model, asked.is_streamed, asked.stop, asked.template) == ("m", True, (), None)


def test_all_shapes_of_items_are_read() -> None:
    items = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "On "},
                                                        {"type": "input_text", "text": "friday?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {**CALL, "id": "fc_1", "status": "completed"},
        {**CALL, "call_id": "c2", "arguments": "{odd"},
        {"type": "function_call_output", "call_id": "c1", "output": "Nothing."},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "No."}]},
        CALL,
    ]  # fmt: skip
    friday = ToolCall("c1", "look", {"day": "friday"})
    assert read(ASK | {"input": items}).request.messages == (
        Message("system", "Be short."),
        Message("user", "On friday?"),
        Message("assistant", "I look.", (friday, ToolCall("c2", "look", "{odd"))),
        Message("tool", "Nothing.", tool_call_id="c1"),
        Message("tool", "No.", tool_call_id="c2"),
        Message("assistant", "", (friday,)),
    )


def test_what_is_not_said_is_as_in_an_eval_and_what_changes_nothing_is_ignored() -> None:
    more = {"store": True, "user": "u", "include": ["reasoning.encrypted_content"], "max_tool_calls": 3,
            "prompt_cache_key": "k", "stream_options": {"include_obfuscation": False}, "background": False,
            "reasoning": {}, "text": {"format": {"type": "text"}}, "conversation": None}  # fmt: skip
    asked = read(ASK | more)
    assert (asked.request.sampling, asked.request.messages) == (Sampling(), (Message("user", "Hi"),))
    assert asked.whole(ChatResponse("Ho"))["store"] is False, "nothing is stored, whatever was asked"
    assert read(ASK | {"chat_template_kwargs": {"a": 1}}).template == {"a": 1}
    none = read(ASK | {"tools": [LOOK], "tool_choice": "none"})
    assert none.request.tools == ()
    assert none.whole(ChatResponse("Ho"))["tools"] == [LOOK | {"strict": False}], "no schema is enforced"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": {"role": "user"}}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [HI, {"role": "tool", "content": "x"}]}, "input[1].role"),
        ({"input": [{"role": [], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "assistant"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
         "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{"type": [], "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{**CALL, "name": ""}]}, "input[0].name"),
        ({"input": [{**CALL, "name": 5}]}, "input[0].name"),
        ({"input": [{**CALL, "call_id": 5}]}, "input[0].call_id"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c1"}]}, "input[0].output"),
        ({"input": [{"type": "function_call_output", "call_id": 5, "output": "x"}]}, "input[0].call_id"),
        ({"instructions": [HI]}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [LOOK, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {"name": "look"}}]}, "tools[0].name"),
        ({"tools": [{**LOOK, "parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [{**LOOK, "parameters": {"items": json.loads("[" * 60 + "]" * 60)}}]}, "tools[0]"),
        ({"tools": [{**LOOK, "description": 5}]}, "tools[0].description"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"include": "x"}, "include"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [HI]}, "messages"),
        ({"temperature": True}, "temperature"),
        ({"seed": "1"}, "seed"),
        ({"stream": 1}, "stream"),
        ({"model": None}, "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_names_its_field(more: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        read(ASK | more)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert str(refused.value).startswith(param)


WORDS = [*ASK, *HI, *CALL, *LOOK, "output", "tools", "text", "metadata", "include", "tool_choice", "stream"]
KINDS = ["message", "function", "function_call", "function_call_output", "input_text", "assistant", "reasoning"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=14,
)


@given(JSON, st.dictionaries(st.sampled_from(WORDS), JSON, max_size=3))
def test_whatever_is_sent_is_understood_or_refused(body: Any, more: dict[str, Any]) -> None:
    for sent in (body, ASK | more, ASK | {"input": body}):
        with contextlib.suppress(Refused):
            OpenAIResponse.model_validate(read(sent).whole(ChatResponse("Ho", finish_reason="stop")))


def pieces(texts: list[str], answer: ChatResponse) -> Pieces:
    yield from ((text, None) for text in texts[:-1])
    yield texts[-1], answer


def unnamed(value: Any) -> Any:
    """Without what differs from one answer to the next."""
    if isinstance(value, list):
        return [unnamed(item) for item in value]
    if isinstance(value, dict):
        return {key: unnamed(item) for key, item in value.items() if key not in ("id", "call_id", "completed_at")}
    return value


def events_of(stream: Iterator[bytes]) -> list[dict[str, Any]]:
    """The events, each of which OpenAI's types know, under its name, in their order."""
    found = []
    for piece in stream:
        name, data, *rest = piece.decode().split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert (name, rest) == (f"event: {value['type']}", ["", ""])
        assert EVENT.validate_python(value).type == value["type"]
        found.append(value)
    assert [value["sequence_number"] for value in found] == list(range(len(found)))
    return found


@given(st.lists(TEXT, min_size=1, max_size=5), CALLS, st.sampled_from(["stop", "length"]))
def test_a_stream_adds_up_to_the_answer_in_one_piece(texts: list[str], calls: list[ToolCall], reason: str) -> None:
    asked = read(ASK | {"tools": [LOOK], "instructions": "Be short.", "metadata": {"a": "b"}})
    answer = ChatResponse("".join(texts), tuple(calls), reason, tokens_in=4, tokens_out=3)
    whole = asked.whole(answer)
    parsed = OpenAIResponse.model_validate(whole)
    assert (parsed.output_text, parsed.status) == (answer.text, "completed" if reason == "stop" else "incomplete")
    events = events_of(asked.events(pieces(texts, answer)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert (last["type"], unnamed(last["response"])) == (f"response.{parsed.status}", unnamed(whole))
    output = last["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [text for text in texts if text]
    written = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [json.loads(one) for one in written] == [call.arguments for call in calls]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
    assert len({item["id"] for item in output}) == len(output)


def test_an_answer_says_what_it_was_asked_and_what_it_took() -> None:
    asked = read(ASK | {"tools": [LOOK], "instructions": "Be short.", "metadata": {"tier": "gold"}, "temperature": 0})
    cut = OpenAIResponse.model_validate(
        asked.whole(ChatResponse("Ho", finish_reason="length", tokens_in=4, tokens_out=3))
    )
    assert (cut.id[:5], cut.object, cut.model, cut.error) == ("resp_", "response", "m", None)
    assert (cut.instructions, cut.metadata, cut.temperature, cut.top_p) == ("Be short.", {"tier": "gold"}, 0.0, 1.0)
    assert cut.max_output_tokens == Sampling().max_tokens
    assert (cut.status, cut.completed_at, cut.output[0].status) == ("incomplete", None, "incomplete")  # type: ignore[union-attr]
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None
    assert (cut.usage.input_tokens, cut.usage.output_tokens, cut.usage.total_tokens) == (4, 3, 7)
    calls = (ToolCall("call-0", "look", {"day": "friday"}),)
    called = OpenAIResponse.model_validate(asked.whole(ChatResponse("", calls, "stop")))
    assert [item.type for item in called.output] == ["function_call"], "no empty message before a call"
    assert (called.status, called.output_text, called.incomplete_details) == ("completed", "", None)
    empty = OpenAIResponse.model_validate(asked.whole(ChatResponse("", (), "stop")))
    assert [item.type for item in empty.output] == ["message"]


@pytest.mark.parametrize("texts", [["He"], [""]])
def test_what_goes_wrong_in_a_stream_fails_the_response_and_is_an_error(texts: list[str]) -> None:
    def broken() -> Pieces:
        yield from ((text, None) for text in texts)
        raise Refused(503, "the process ended", code="version_unavailable")

    told: list[bytes] = []
    with pytest.raises(Refused, match="the process ended"):
        told.extend(read(ASK).events(broken()))
    *_, failed, error = events_of(iter(told))
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "the process ended"}
    assert OpenAIResponse.model_validate(failed["response"]).output_text == texts[0], "as far as it came"
    assert (error["type"], error["message"], error["code"]) == ("error", "the process ended", "version_unavailable")
    assert error["error"]["message"] == "the process ended", "for which clients look"


def test_what_does_not_fit_is_refused_by_the_name_of_the_input() -> None:
    refused = read(ASK).refusal_of(ChatResponse(error="it does not fit", is_too_long=True))
    assert refused is not None
    assert (refused.param, refused.code) == ("input", "context_length_exceeded")
