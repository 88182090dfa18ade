"""The story that every fixture tells: an agent is asked twice, calls a tool each time, and the second tool fails."""

import json
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

AGENT = "mail-assistant"
SESSION = "session-42"
USER = "ann"
SYSTEM = "You help with mail."
QUESTIONS = ("What is Bako's address?", "Mail him that the picnic is off.")
HERE = os.environ["HERE"]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find_contact",
            "description": "Find a person's address",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "send_mail",
            "description": "Send a mail",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string"}, "body": {"type": "string"}},
                "required": ["to", "body"],
            },
        },
    },
]


def find_contact(name: str) -> str:
    return f"{name.lower()}@example.org"


def send_mail(to: str, body: str) -> str:
    raise RuntimeError("mailbox is full")


FUNCTIONS: dict[str, Callable[..., str]] = {"find_contact": find_contact, "send_mail": send_mail}

Tool = Callable[[str, dict[str, Any], str], str]
"""Name, arguments and call id to what the model is told."""


def call_tool(name: str, arguments: dict[str, Any], call_id: str) -> str:
    try:
        return FUNCTIONS[name](**arguments)
    except RuntimeError as error:
        return f"Error: {error}"


def tell(client: Any, tool: Tool = call_tool, stream_last: bool = False) -> None:
    """Both turns by chat completions."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        while True:
            streamed = stream_last and number == 1
            message = complete(client, messages, streamed)
            messages.append(message)
            if "tool_calls" not in message:
                break
            for call in message["tool_calls"]:
                function = call["function"]
                result = tool(function["name"], json.loads(function["arguments"]), call["id"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def complete(client: Any, messages: list[dict[str, Any]], streamed: bool) -> dict[str, Any]:
    asked = {"model": "tiny-1", "messages": messages, "tools": TOOLS, "temperature": 0.5}
    if not streamed:
        answer = client.chat.completions.create(**asked)
        message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
        return message
    message = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or []:
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
                calls[-1]["function"]["name"] += part.function.name or ""
                calls[-1]["function"]["arguments"] += part.function.arguments or ""
    return message | {"tool_calls": calls} if calls else message


def respond(client: Any, tool: Tool = call_tool) -> None:
    """The first turn by the Responses API."""
    given: list[dict[str, Any]] = [{"role": "user", "content": QUESTIONS[0]}]
    tools = [{"type": "function", **entry["function"]} for entry in TOOLS]
    while True:
        answer = client.responses.create(model="tiny-1", instructions=SYSTEM, input=given, tools=tools)
        calls = [item for item in answer.output if item.type == "function_call"]
        given += [item.model_dump(exclude_none=True) for item in answer.output]
        if not calls:
            return
        for call in calls:
            result = tool(call.name, json.loads(call.arguments), call.call_id)
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def made_by(*packages: str) -> None:
    """Says what made the fixture, as the recorder wants it."""
    print("; ".join(f"{name} {version(name)}" for name in packages), flush=True)
