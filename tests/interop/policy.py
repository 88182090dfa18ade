"""A model that is asked over HTTP, chat completions and Responses: `solver` does everything right, `fool` chats."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flywheel.core.envs import Environment, Task
from flywheel.core.traces import Message
from flywheel.core.traces.openai_messages import chat_said, items, outside, policy_messages, text

FOOLISH = "Lovely weather, is it not?"


@dataclass
class Policy:
    env: Environment
    tasks: Sequence[Task]
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, model: str, opening: str, turns: list[Message]) -> Message:
        if model != "solver":
            return Message("assistant", FOOLISH)
        task = next(task for task in self.tasks if opening.strip() == self.opening(task).strip())
        if len(turns) >= self.env.max_turns:
            return Message("assistant", "Done.")
        messages = self.env.reset(task, 0)
        for turn in turns:
            messages.append(turn)
            messages += self.env.respond(task, messages, 0)
        return self.env.solve(task, messages)

    def opening(self, task: Task) -> str:
        return next(m.content for m in self.env.reset(task, 0) if m.role == "user")


def chat(policy: Policy, body: dict[str, Any]) -> dict[str, Any]:
    opening = next(text(m["content"]) for m in body["messages"] if m["role"] == "user")
    message = policy.answer(body["model"], opening, chat_said(body["messages"], policy.env.tools))
    row: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if calls := _native(policy, message):
        row = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": row, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    about = {"id": "chat-1", "object": "chat.completion", "created": 1_790_000_000, "model": body["model"]}
    return about | {"choices": [choice], "usage": usage}


def streamed(answer: dict[str, Any]) -> bytes:
    """A chat completion as the events of a stream."""
    choice = answer["choices"][0]
    calls = [call | {"index": number} for number, call in enumerate(choice["message"].get("tool_calls", ()))]
    delta = choice["message"] | ({"tool_calls": calls} if calls else {})
    about = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    events = [
        about | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        about | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
        about | {"choices": [], "usage": answer["usage"]},
    ]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _native(policy: Policy, message: Message) -> list[dict[str, Any]]:
    """Native calls, also of a call that our solver writes as text."""
    message = as_called(policy.env, message)
    return [
        {
            "id": call.id or "call-x",
            "type": "function",
            "function": {"name": outside(call.name), "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls
    ]


def as_called(env: Environment, message: Message) -> Message:
    from flywheel.core.traces.tooling import parse_call

    if message.tool_calls or not env.tools:
        return message
    call = parse_call(message).call
    return Message("assistant", "", (call,)) if call else message


def responses(policy: Policy, body: dict[str, Any]) -> dict[str, Any]:
    given = body["input"]
    opening = next(text(item["content"]) for item in given if item.get("role") == "user")
    message = as_called(
        policy.env, policy.answer(body.get("model", "solver"), opening, policy_messages(given, policy.env.tools))
    )
    output = items([message])
    for number, item in enumerate(output):
        item["id"] = f"item-{number}"
        if item["type"] == "function_call":
            item["call_id"] = item["call_id"] or f"call-{len(given)}-{number}"
            item["status"] = "completed"
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "completed",
        "model": body.get("model", "solver"),
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


@contextmanager
def served(policy: Policy) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            policy.asked.append(body)
            answer = (chat if self.path.endswith("/chat/completions") else responses)(policy, body)
            content = streamed(answer) if body.get("stream") else json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
