"""Every answer says which version gave it, and nobody but the gateway can say it."""

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.agents.models import AttemptKey, Version
from flywheel.trajectories.ingest.gateway import openai_endpoints
from flywheel.trajectories.ingest.gateway.relay import Slots
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import Build, Cast
from tests.trajectories.ingest.gateway.calls import URL, Headers, ask, begin, leave, only_step, refusal
from tests.trajectories.ingest.upstream import Answer, Upstream, completion, delta, hello, sse

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]
NAMES = ("X-Flywheel-Version", "X-Flywheel-Digest")
FORGED = {"X-Flywheel-Version": "other@9", "x-flywheel-digest": "f" * 64, "X-Flywheel-Trace-Id": "0" * 32}


@pytest.fixture
def live(build: Build, upstream: Upstream) -> Version:
    return made_live(build, {"kind": "openai", "base_url": upstream.url, "model": "tiny-lora"})


def made_live(build: Build, endpoint: dict[str, Any]) -> Version:
    version = build.version(endpoint=endpoint)
    version.agent.live = version
    version.agent.save()
    return version


def told(answer: Any) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(name) for name in NAMES)


def of(version: Version) -> tuple[str, str]:
    return str(version), version.digest


@pytest.mark.parametrize(
    "said",
    [
        Answer(completion("Hello."), headers=FORGED),
        hello(headers=FORGED),
        Answer(b'{"error": {"message": "slow down"}}', status=429, headers=FORGED),
        Answer(b"", status=307, headers={"Location": "http://elsewhere.example/", **FORGED}),
    ],
    ids=["whole", "streamed", "error", "redirect"],
)
def test_what_a_version_answers_bears_its_name_and_digest_whatever_its_server_says(
    said: Answer, client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    upstream.say(said)
    answer, _ = ask(client, gate, model="assistant@live")
    assert told(answer) == of(live)
    assert answer.headers.get("X-Flywheel-Trace-Id") != "0" * 32


@pytest.mark.parametrize("model", ["tiny", "assistant@nine"])
def test_what_the_upstream_answers_bears_no_version(
    model: str, client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    upstream.say(Answer(completion("Hello."), headers=FORGED))
    answer, _ = ask(client, {**gate, "x-flywheel-agent": f"assistant@{live.number}"}, model=model)
    assert told(answer) == (None, None)
    row = Trajectory.objects.get()
    assert (row.version, row.answered_by, Step.objects.get().answered_by) == (live, [], None), "reported, and no more"
    assert only_step().raw["gateway"]["claimed"] == f"assistant@{live.number}"


def test_a_stream_that_breaks_off_has_said_whose_it_is(
    client: Client, gate: Headers, upstream: Upstream, live: Version
) -> None:
    upstream.say(Answer([delta(content="He")], kind="text/event-stream", breaks=True))
    answer = begin(client, gate, model="assistant@live", stream=True)
    with pytest.raises(ConnectionResetError):
        list(answer.streaming_content)
    leave(answer)
    assert told(answer) == of(live)
    assert Step.objects.get().answered_by == f"{live}:{live.digest}"


def test_refusals_of_the_gateway_itself_name_the_version(
    client: Client, gate: Headers, build: Build, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code_of(version: Version) -> str:
        answer, content = ask(client, gate, model="assistant@live")
        assert told(answer) == of(version)
        return str(refusal(content)["code"])

    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    here = {"kind": "openai", "base_url": upstream.url, "model": "m"}
    assert code_of(made_live(build, {**here, "base_url": nobody})) == "upstream_unreachable"
    assert code_of(made_live(build, {**here, "api_key_env": "NOBODY_API_KEY"})) == "upstream_key_missing"
    assert code_of(made_live(build, {"kind": "transformers"})) == "version_not_served"
    busy = made_live(build, here)
    monkeypatch.setattr(openai_endpoints, "slots", Slots(0))
    assert code_of(busy) == "gateway_busy"
    answer, _ = ask(client, gate, model="nobody@live")
    assert (answer.status_code, told(answer)) == (404, (None, None))


def test_an_attempt_is_told_its_version(client: Client, build: Build, upstream: Upstream) -> None:
    version = build.version(endpoint={"kind": "openai", "base_url": upstream.url, "model": "m"})
    key, secret = AttemptKey.make(version, {}, timezone.now() + timedelta(minutes=5))
    headers = {"authorization": f"Bearer {secret}"}
    assert told(ask(client, headers)[0]) == of(version)
    AttemptKey.objects.update(deadline=timezone.now() - timedelta(hours=1))
    answer, _ = ask(client, headers)
    assert (answer.status_code, told(answer)) == (401, of(version)), "it is over, and known whose it was"
    assert key.spans.count() == 1


def test_page_and_api_tell_what_the_gateway_knows_from_what_a_caller_claims(
    client: Client,
    gate: Headers,
    live: Version,
    cast: Cast,
    sign_in: Callable[..., Client],
    key: Callable[..., Headers],
) -> None:
    answer, _ = ask(client, {**gate, "x-flywheel-agent": "other@9"}, model="assistant@live")
    trace_id = answer["X-Flywheel-Trace-Id"]
    row = Trajectory.objects.get()
    assert (row.agent, row.version) == (live.agent, live)
    found = client.get(f"/api/v1/trajectories/{trace_id}", headers=key("read")).json()
    known = {"version": str(live), "digest": live.digest}
    assert (found["answered_by"], found["steps"][0]["answered_by"]) == ([known], known)
    gateway = found["steps"][0]["raw"]["gateway"]
    assert (gateway["version"], gateway["digest"], gateway["claimed"]) == (str(live), live.digest, "other@9")
    page = sign_in(cast.viewer).get(f"/p/acme/trajectories/{trace_id}/")
    assert live.digest in page.content.decode()
    assert "as reported" not in page.content.decode()


def test_nobody_who_sends_trajectories_can_say_who_answered(
    client: Client, cast: Cast, live: Version, sign_in: Callable[..., Client], key: Callable[..., Headers]
) -> None:
    forged = f"{live}:{live.digest}"
    step = {"set": {"span_id": "a", "kind": "assistant", "answered_by": forged, "output": []}}
    line = {
        "id": "ab" * 16,
        "messages": [{"role": "user", "content": "Hi"}],
        "metadata": {"agent": "assistant", "version": str(live.number), "answered_by": forged},
        "flywheel": {"trace": {"answered_by": [forged], "claims": {"answered_by": [forged]}}, "steps": [step]},
    }
    headers = key("ingest")
    sent = client.post("/api/v1/trajectories", json.dumps(line), content_type="application/json", headers=headers)
    assert sent.status_code == 200
    found = client.get(f"/api/v1/trajectories/{'ab' * 16}", headers=key("read")).json()
    assert (found["version"], found["answered_by"]) == (live.number, [])
    assert found["steps"][0]["answered_by"] is None
    page = sign_in(cast.viewer).get(f"/p/acme/trajectories/{'ab' * 16}/")
    assert "as reported" in page.content.decode()


@pytest.mark.parametrize("name", ["other@9\r\nX-Flywheel-Version: x@1", "ü@1", "x" * 5000, "@", "a@b@c"])
def test_a_hostile_claim_stays_one(name: str, client: Client, gate: Headers, live: Version) -> None:
    answer, _ = ask(client, {**gate, "x-flywheel-agent": name}, model="assistant@live")
    assert told(answer) == of(live)
    assert [found.version for found in Trajectory.objects.get().answered_by] == [str(live)]


def test_a_trajectory_that_two_versions_answered_names_both(
    client: Client, gate: Headers, upstream: Upstream, build: Build, live: Version
) -> None:
    same = {**gate, "x-flywheel-session-id": "s"}
    ask(client, same, model="assistant@live")
    later = made_live(build, {"kind": "openai", "base_url": upstream.url, "model": "next"})
    answer, _ = ask(client, same, model="assistant@live")
    assert told(answer) == of(later)
    assert [found.version for found in Trajectory.objects.get().answered_by] == [str(live), str(later)]


def test_events_of_a_stream_are_not_touched(client: Client, gate: Headers, upstream: Upstream, live: Version) -> None:
    event = b'data: {"x-flywheel-version": "other@9"}\n\n'
    upstream.say(sse(event, delta(finish_reason="stop")))
    _, content = ask(client, gate, model="assistant@live", stream=True)
    assert event in content


def test_a_method_that_is_refused_names_nobody(client: Client, gate: Headers, live: Version) -> None:
    assert told(client.get(URL, headers=gate)) == (None, None)
