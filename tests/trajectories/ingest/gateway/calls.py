"""Calls of the gateway, as a client makes them."""

import json
from typing import Any

from django.test import Client

from flywheel.core.traces import Step as CoreStep
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store import stored_traces

URL = "/gateway/v1/chat/completions"

RESPONSES = "/gateway/v1/responses"

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}

Headers = dict[str, str]


def begin(client: Client, headers: Headers, **body: Any) -> Any:
    """The answer, whose body has not been read."""
    return client.post(URL, {**ASK, **body}, content_type="application/json", headers=headers)


def respond(client: Client, headers: Headers, **body: Any) -> tuple[Any, bytes]:
    """The same of the Responses API."""
    asked = {"model": "tiny", "input": "Hi", **body}
    answer: Any = client.post(RESPONSES, asked, content_type="application/json", headers=headers)
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    leave(answer)
    return answer, content


def response(items: list[dict[str, Any]] | str = "Hello.", **changes: Any) -> dict[str, Any]:
    """A response with these items, or with one message."""
    if isinstance(items, str):
        part = {"type": "output_text", "text": items, "annotations": []}
        whole = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
        items = [whole]
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 4}}
    value = {"id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": "tiny-1", "error": None}
    return {**value, "status": "completed", "output": items, "usage": usage, **changes}


def told_in_events(whole: dict[str, Any]) -> list[bytes]:
    """The events by which a server streams this response."""
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item.get("id")}
        emptied = {**item, **{key: [] for key in ("content", "summary") if key in item}}
        events.append({"type": "response.output_item.added", "item": {**emptied, "arguments": ""}, **at})
        for part in [*item.get("content", ()), *item.get("summary", ())]:
            kind = "reasoning_summary_text" if part["type"] == "summary_text" else "output_text"
            for piece in (part["text"][:3], part["text"][3:]):
                events.append({"type": f"response.{kind}.delta", "content_index": 0, "delta": piece, **at})
        if "arguments" in item:
            events.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **at})
        events.append({"type": "response.output_item.done", "item": item, **at})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()
        for number, event in enumerate(events)
    ]


def ask(client: Client, headers: Headers, **body: Any) -> tuple[Any, bytes]:
    answer = begin(client, headers, **body)
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    leave(answer)
    return answer, content


def leave(answer: Any) -> None:
    """What a server does when the answer is over or the caller gone, but for ending the test's transaction."""
    for close in answer._resource_closers:
        close()


def refusal(content: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def only_step() -> CoreStep:
    return stored_traces.trace_of(Trajectory.objects.get()).steps[0]
