"""`manage.py send_test_trace`: through the real endpoint and back. By gRPC: `test_otlp_grpc.py`."""

import io
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import ApiKey, AuditEntry
from flywheel.trajectories.ingest.onboarding.sample_trace import SPANS, episode, to_json
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store import stored_traces
from tests.conftest import Cast

COMMAND = "flywheel.trajectories.management.commands.send_test_trace"


def send(**options: Any) -> str:
    out = io.StringIO()
    call_command("send_test_trace", stdout=out, **options)
    return out.getvalue()


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
@pytest.mark.django_db(transaction=True)
def test_it_is_sent_and_read_back(protocol: str, cast: Cast, live_server: LiveServer) -> None:
    said = send(project="acme", endpoint=live_server.url, protocol=protocol)
    row = Trajectory.objects.get()
    assert "answered: 200" in said
    assert f"{live_server.url}/p/acme/trajectories/{row.trace_id}/" in said
    assert "it is revoked when this ends" in said
    key = ApiKey.objects.get()
    assert key.revoked_at is not None
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {"accounts.make_key", "accounts.revoke_key"}
    assert (row.step_count, row.agent_name, row.outcome, row.tokens) == (SPANS, "test-agent", "success", 186)
    trace = stored_traces.trace_of(row)
    assert [step.kind for step in trace.steps] == ["agent", "assistant", "tool", "assistant"]
    assert json.loads(trace.steps[2].result) == {"status": "shipped", "arrives": "Friday"}
    assert [message.role for message in trace.conversation()] == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.django_db(transaction=True)
def test_a_refusal_fails_with_the_servers_words(cast: Cast, live_server: LiveServer) -> None:
    with pytest.raises(CommandError, match=r"answered 401 .*no valid API key"):
        send(project="acme", endpoint=live_server.url, protocol="http/json", key="fw_0123456789ab_x")


def test_a_server_that_is_not_there_fails_and_leaves_no_key(cast: Cast) -> None:
    with pytest.raises(CommandError, match="cannot be reached"):
        send(project="acme", endpoint="http://127.0.0.1:9")
    assert ApiKey.objects.get().revoked_at is not None


def test_another_installations_endpoint_is_told(cast: Cast) -> None:
    with (
        mock.patch(f"{COMMAND}._by_http", return_value="200"),
        mock.patch(f"{COMMAND}.READABLE_WITHIN_S", 0.05),
        pytest.raises(CommandError, match="another installation's"),
    ):
        send(project="acme", endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--project is one of acme, elsewhere"),
        ({"project": "nothing"}, "there is no project 'nothing'; there is acme, elsewhere"),
        ({"key": "fw_0123456789ab_x"}, "does not know the key"),
    ],
)
def test_which_project(options: dict[str, str], words: str, cast: Cast) -> None:
    with pytest.raises(CommandError, match=words):
        send(**options)


def test_a_key_of_another_project(cast: Cast, key: Callable[..., dict[str, str]]) -> None:
    text = key("ingest")["authorization"].removeprefix("Bearer ")
    with pytest.raises(CommandError, match="of project acme, not of elsewhere"):
        send(project="elsewhere", key=text)


def test_json_is_otlps_own() -> None:
    request, trace_id = episode()
    [span, *_] = to_json(request)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["traceId"] == trace_id
    assert len(span["spanId"]) == 16
