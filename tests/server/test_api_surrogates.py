r"""A lone surrogate, `"\ud800"`, is good JSON that no UTF-8 can say: it is refused at the door, not in the database."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client

from tests.conftest import Build, Cast

ODD = r'"\ud800<b>"'
SAID = {
    "trajectories/{trace}/comments": '{"text": %s}',
    "trajectories/{trace}/failures": '{"bucket": "wrong_tool", "note": %s}',
    "views": '{"name": %s}',
    "queues": '{"name": %s, "instructions": %s}',
    "feedback": '{"trace_id": "{trace}", "key": "k", "comment": %s}',
    "agents": '{"name": "a", "description": %s}',
    "trajectories/{trace}/tasks": '{"environment": %s}',
    "bulk/tag": '{"q": "has:error", "tags": [%s]}',
}


@pytest.mark.parametrize("path", SAID)
def test_a_call_that_says_one_is_refused(
    path: str, cast: Cast, build: Build, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    trace = build.trajectory().trace_id
    body = SAID[path].replace("%s", ODD).replace("{trace}", trace)
    headers = key("review", "build", "ingest")
    answer = client.post(f"/api/v1/{path}".replace("{trace}", trace), body, "application/json", headers=headers)
    assert 400 <= answer.status_code < 500, answer.content


def test_a_span_that_says_one_is_kept_or_refused(
    cast: Cast, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    name = f'"name": {ODD}, "traceId": "{uuid.uuid4().hex}", "spanId": "{1:016x}", "startTimeUnixNano": "1"'
    body = f'{{"resourceSpans": [{{"scopeSpans": [{{"spans": [{{{name}}}]}}]}}]}}'
    answer = client.post("/v1/traces", body, "application/json", headers=key("ingest"))
    assert answer.status_code < 500, answer.content
