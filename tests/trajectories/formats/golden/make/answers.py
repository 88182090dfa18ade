"""The pretended model: what it answers depends only on the last message. Chat completions and the Responses API."""

import json
from typing import Any

MODEL = "tiny-1"
CONTACT = "Bako's address is bako@example.org."
SORRY = "I could not send it: the mailbox is full."
CALLS = {
    "find": ("call_find", "find_contact", {"name": "Bako"}),
    "send": ("call_send", "send_mail", {"to": "bako@example.org", "body": "The picnic is off."}),
}
USAGE = {"find": (50, 10), "found": (70, 12), "send": (95, 20), "sent": (125, 14)}
"""Tokens in and out of the four model calls: 340 and 56 in all."""


def chat(request: dict[str, Any]) -> tuple[str, bytes]:
    last = request["messages"][-1]
    moment = _moment(last["role"], _text(last.get("content")))
    message: dict[str, Any] = {"role": "assistant", "content": _said(moment)}
    if moment in CALLS:
        id, name, arguments = CALLS[moment]
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
    taken, given = USAGE[moment]
    usage = {
        "prompt_tokens": taken,
        "completion_tokens": given,
        "total_tokens": taken + given,
        "prompt_tokens_details": {"cached_tokens": 32 if moment != "find" else 0},
    }
    reason = "tool_calls" if moment in CALLS else "stop"
    base = {"id": f"chatcmpl-{moment}", "created": 1767225600, "model": MODEL}
    if not request.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        return "application/json", json.dumps(
            base | {"object": "chat.completion", "choices": [choice], "usage": usage}
        ).encode()
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if moment in CALLS:
        call = message["tool_calls"][0]
        half = len(call["function"]["arguments"]) // 2
        first, rest = call["function"]["arguments"][:half], call["function"]["arguments"][half:]
        deltas.append({"tool_calls": [{"index": 0, **call, "function": {**call["function"], "arguments": first}}]})
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": rest}}]})
    else:
        deltas += [{"content": word + " "} for word in message["content"].split()[:-1]]
        deltas.append({"content": message["content"].split()[-1]})
    chunks: list[dict[str, Any]] = [
        base | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    end = {"index": 0, "delta": {}, "finish_reason": reason}
    chunks.append(base | {"object": "chat.completion.chunk", "choices": [end]})
    chunks.append(base | {"object": "chat.completion.chunk", "choices": [], "usage": usage})
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return "text/event-stream", f"{lines}data: [DONE]\n\n".encode()


def responses(request: dict[str, Any]) -> tuple[str, bytes]:
    given = request["input"]
    last = given[-1] if isinstance(given, list) else {"role": "user", "content": given}
    answered = last.get("type") == "function_call_output"
    moment = _moment("tool" if answered else "user", _text(last.get("output" if answered else "content")))
    if moment in CALLS:
        id, name, arguments = CALLS[moment]
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{moment}",
            "call_id": id,
            "name": name,
            "arguments": json.dumps(arguments),
            "status": "completed",
        }
    else:
        part = {"type": "output_text", "text": _said(moment), "annotations": []}
        item = {
            "type": "message",
            "id": f"msg_{moment}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    taken, made = USAGE[moment]
    answer = {
        "id": f"resp_{moment}",
        "object": "response",
        "created_at": 1767225600,
        "status": "completed",
        "model": MODEL,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": request.get("tools", []),
        "instructions": request.get("instructions"),
        "temperature": 1.0,
        "top_p": 1.0,
        "metadata": {},
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": taken,
            "output_tokens": made,
            "total_tokens": taken + made,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return "application/json", json.dumps(answer).encode()


def _moment(role: str, text: str) -> str:
    if role == "user":
        return "find" if "address" in text else "send"
    return "found" if "@example.org" in text and "full" not in text else "sent"


def _said(moment: str) -> str | None:
    return {"found": CONTACT, "sent": SORRY}.get(moment)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)
