"""What is asked is understood as an eval would ask it, or refused by the name of its field."""

from typing import Any

import pytest

from flywheel.core.envs.policy_rollouts import Sampling
from flywheel.core.traces import Message, ToolCall
from workers.policies.small_weights.chat_completions import read
from workers.policies.small_weights.served_calls import Refused

HI = {"role": "user", "content": "Hi"}
ASK: dict[str, Any] = {"model": "m", "messages": [HI]}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"day": "friday"}'}}


def test_messages_become_those_of_an_episode() -> None:
    rows = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is on "}, {"type": "text", "text": "friday?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "content": "Nothing."},
    ]
    assert read(ASK | {"messages": rows}).request.messages == (
        Message("system", "Be short."),
        Message("user", "What is on friday?"),
        Message("assistant", "", (ToolCall("c1", "look", {"day": "friday"}),)),
        Message("tool", "Nothing.", tool_call_id="c1"),
    )


def test_what_is_not_said_is_as_in_an_eval() -> None:
    asked = read(ASK | {"user": "somebody", "n": 1, "logprobs": None, "response_format": {"type": "text"}})
    assert asked.request.sampling == Sampling()
    assert (asked.stop, asked.is_streamed, asked.has_usage) == ((), False, False)
    more = read(ASK | {"temperature": 0, "max_tokens": 9, "max_completion_tokens": 7, "seed": -5, "stop": "x"})
    assert (more.request.sampling, more.request.seed, more.stop) == (Sampling(0.0, 1.0, 7), -5, ("x",))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    assert read(ASK | {"tools": tools}).request.tools == tuple(tools)
    assert read(ASK | {"tools": tools, "tool_choice": "none"}).request.tools == ()


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{**HI, "tool_calls": [CALLED]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{**HI, "name": 3}]}, "messages[0].name"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_k": 5}, "top_k"),
        ({"model": 5}, "model"),
    ],
)
def test_what_cannot_be_done_names_its_field(more: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        read(ASK | more)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert str(refused.value).startswith(param)
