"""Calls of the gateway, as a client makes them."""

import json
from typing import Any

from django.test import Client

from flywheel.core.traces import Step as CoreStep
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store import stored_traces

URL = "/gateway/v1/chat/completions"

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}

Headers = dict[str, str]


def begin(client: Client, headers: Headers, **body: Any) -> Any:
    """The answer, whose body has not been read."""
    return client.post(URL, {**ASK, **body}, content_type="application/json", headers=headers)


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
