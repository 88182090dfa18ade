"""Which server answers a call, and for how long what was found is trusted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.agents.models import Artifact
from flywheel.agents.weights import chosen_bases, served_weights
from flywheel.agents.weights.served_weights import Address
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.models import Step, Trajectory
from tests.conftest import Build, Cast
from tests.trajectories.ingest.gateway.calls import Headers, ask, only_step, refusal
from tests.trajectories.ingest.upstream import Answer, Upstream

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def live(build: Build, upstream: Upstream) -> Any:
    endpoint = {"kind": "openai", "base_url": upstream.url, "model": "tiny-lora", "price_in": 1.0, "price_out": 2.0}
    version = build.version(endpoint=endpoint)
    version.agent.live = version
    version.agent.save()
    return version


@pytest.mark.parametrize("model", ["assistant@live", "assistant"])
def test_a_live_version_answers_with_what_it_says(
    model: str, client: Client, gate: Headers, upstream: Upstream, live: Any
) -> None:
    answer, _ = ask(client, gate, model=model, temperature=0.5)
    assert answer.status_code == 200
    sent = upstream.seen[0].body
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == ("tiny-lora", 0.5, 1.0, 64)
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["tools"][0]["function"]["name"] == "calendar.create_event"
    assert not [name for tool in sent["tools"] for name in tool["function"] if name.startswith("x-")]
    assert "authorization" not in upstream.seen[0].headers, "the project's key is not for the version's server"
    row = Trajectory.objects.get()
    assert (row.agent, row.version) == (live.agent, live)
    assert row.cost_usd == pytest.approx((9 * 1.0 + 3 * 2.0) / 1e6)
    assert only_step().raw["gateway"]["asked_for"] == model


def test_settings_of_the_chat_template_go_with_a_live_versions_calls(
    client: Client, gate: Headers, upstream: Upstream, build: Build
) -> None:
    settings = {"enable_thinking": False}
    endpoint = {"kind": "openai", "base_url": upstream.url, "model": "m", "chat_template_kwargs": settings}
    version = build.version(endpoint=endpoint)
    version.agent.live = version
    version.agent.save()
    ask(client, gate, model="assistant@live")
    ask(client, gate, model="assistant@live", chat_template_kwargs={"enable_thinking": True})
    assert [one.body["chat_template_kwargs"] for one in upstream.seen] == [settings, {"enable_thinking": True}]


def test_what_the_caller_says_comes_before_what_the_version_says(
    client: Client, gate: Headers, upstream: Upstream, live: Any
) -> None:
    messages = [{"role": "developer", "content": "Mine."}, {"role": "user", "content": "Hi"}]
    ask(client, gate, model="assistant@live", messages=messages, tools=[], max_completion_tokens=5)
    sent = upstream.seen[0].body
    assert (sent["messages"], sent["tools"], "max_tokens" in sent) == (messages, [], False)


def test_a_live_version_that_no_server_answers_for_says_how_to_serve_it(
    client: Client, gate: Headers, build: Build
) -> None:
    version = build.version()
    version.agent.live = version
    version.agent.save()
    answer, content = ask(client, gate, model="assistant@live")
    assert (answer.status_code, refusal(content)["code"]) == (400, "version_not_served")
    assert "vLLM" in refusal(content)["message"]
    assert ask(client, gate, model="assistant")[0].status_code == 200, "which is the upstream's then"


@pytest.mark.parametrize(
    ("has_weights", "is_chosen", "said"),
    [
        (True, False, "Have an admin choose assistant@1 under Evals › vLLM server"),
        (True, True, "choosing its base there again starts it anew"),
        (False, False, "no weights of it are stored here. A version with the endpoint"),
    ],
)
def test_where_flywheel_keeps_vllm_itself_a_version_without_a_server_is_sent_to_the_page_of_it(
    client: Client,
    gate: Headers,
    build: Build,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    has_weights: bool,
    is_chosen: bool,
    said: str,
) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVE", "vllm")
    monkeypatch.setenv("FLYWHEEL_SERVED_MB", "0")
    weights = Artifact.objects.create(digest="0" * 64, manifest={}, kind="model", size=2_000_000)
    version = build.version(weights=weights if has_weights else None)
    version.agent.live = version
    version.agent.save()
    if is_chosen:
        chosen_bases.choose(version=version, actor=Actor(cast.admin))
    answer, content = ask(client, gate, model="assistant@live")
    assert (answer.status_code, refusal(content)["code"]) == (400, "version_not_served")
    message = refusal(content)["message"]
    assert said in message
    assert ("make serve" in message, "vLLM" in message) == (False, has_weights)


def test_small_weights_that_are_live_are_asked_in_the_process_that_serves_them(
    client: Client,
    gate: Headers,
    upstream: Upstream,
    build: Build,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.HOME = tmp_path
    weights = Artifact.objects.create(digest="0" * 64, manifest={}, kind="model", size=2_000_000)
    version = build.version(weights=weights)
    version.agent.live = version
    version.agent.save()
    answer, content = ask(client, gate, model="assistant@live")
    assert (answer.status_code, refusal(content)["code"]) == (503, "version_loading"), "it was never started"
    served_weights.announce(Address(upstream.url.removesuffix("/v1"), "sesame"))
    assert (tmp_path / "weights_server.json").stat().st_mode & 0o777 == 0o600
    for model in ("assistant@live", "assistant"):
        assert ask(client, gate, model=model)[0].status_code == 200
        seen = upstream.seen[-1]
        assert (seen.body["model"], seen.headers["authorization"]) == (
            f"assistant-v1-{version.digest[:16]}",
            "Bearer sesame",
        )
    assert client.get("/gateway/v1/models", headers=gate).json()["data"][0]["id"] == "assistant@live"
    monkeypatch.setenv("FLYWHEEL_SERVED_MB", "1")
    answer, content = ask(client, gate, model="assistant@live")
    assert (answer.status_code, refusal(content)["code"]) == (400, "version_not_served")
    assert "2,000,000 bytes of weights, and FLYWHEEL_SERVED_MB has Flywheel answer with 1,000,000" in str(content)


@pytest.mark.parametrize("model", ["nobody@live", "assistant@live", "@live"])
def test_an_agent_without_a_live_version_is_no_model(model: str, client: Client, gate: Headers, build: Build) -> None:
    build.agent()
    answer, content = ask(client, gate, model=model)
    assert (answer.status_code, refusal(content)["code"]) == (404, "model_not_found")


def test_models_are_the_live_versions_and_the_upstreams(
    client: Client, gate: Headers, upstream: Upstream, live: Any
) -> None:
    upstream.say(b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}')
    listed = client.get("/gateway/v1/models", headers=gate).json()
    assert [row["id"] for row in listed["data"]] == ["assistant@live", "tiny"]
    upstream.say(Answer(b"no", status=500))
    assert [row["id"] for row in client.get("/gateway/v1/models", headers=gate).json()["data"]] == ["assistant@live"]
    assert Trajectory.objects.count() == 0


def test_a_key_outlives_the_database_for_a_while(
    client: Client, gate: Headers, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, key: Callable[..., Headers]
) -> None:
    ask(client, gate)
    other = key("gateway")
    held: list[Journal] = []
    monkeypatch.setattr(recording.recorder, "put", held.append)

    def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    with monkeypatch.context() as outage:
        outage.setattr(routing, "admit", away)
        assert ask(client, gate)[0].status_code == 200
        answer, content = ask(client, other)
        assert (answer.status_code, refusal(content)["code"]) == (503, "database_away")
        assert ask(client, gate, model="another")[0].status_code == 503
        outage.setattr(routing, "REMEMBERED_S", 0.0)
        assert ask(client, gate)[0].status_code == 503
    recording.recorder.record(held)
    assert Step.objects.count() == 2


def test_calls_in_a_row_ask_the_database_once(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any, cast: Cast
) -> None:
    monkeypatch.setattr(routing, "TRUSTED_S", 60.0)
    monkeypatch.setattr(recording.recorder, "put", lambda journal: journal.done())
    ask(client, gate)
    with django_assert_num_queries(0):
        assert ask(client, gate)[0].status_code == 200
    assert ask(client, {"authorization": "Bearer fw_0_0"})[0].status_code == 401


def test_what_is_trusted_is_looked_up_again_meanwhile(
    client: Client, gate: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "TRUSTED_S", 60.0)
    monkeypatch.setattr(routing, "FRESH_S", 0.0)
    later: list[tuple[str, str, str]] = []
    monkeypatch.setattr(routing, "_look_up_soon", lambda *what: later.append(what))
    ask(client, gate)
    ApiKey.objects.update(revoked_at="2026-01-01T00:00Z")
    assert ask(client, gate)[0].status_code == 200, "within the time that the guide names"
    routing._look_again(*later.pop())
    assert ask(client, gate)[0].status_code == 401


def test_a_revoked_key_is_not_remembered(client: Client, gate: Headers) -> None:
    ask(client, gate)
    ApiKey.objects.update(revoked_at="2026-01-01T00:00Z")
    assert ask(client, gate)[0].status_code == 401
    assert routing._known == {}
