"""Small weights behind OpenAI's protocol: with the client that people have, and the tokens of an eval."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from django.test import Client

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.agents.weights import served_weights
from flywheel.agents.weights.served_weights import Address
from flywheel.core.envs.policy_rollouts import ChatRequest, EngineError, Sampling
from flywheel.core.traces import Message, ToolCall
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store import stored_traces
from tests.trajectories.ingest.gateway import calls as gateway
from tests.trajectories.ingest.gateway.conftest import gate, recorded, upstream
from tests.waiting import PATIENCE_S, wait_for
from tests.worker import ROOT, database_url
from tests.workers.policies.small_weights.conftest import TOKEN, Ask, Engine, Hear, answer_each, done
from workers.engines.engine_endpoints import open_engine
from workers.engines.streamed_answers import Call, Heard
from workers.policies.small_weights import served_versions, weights_server
from workers.policies.small_weights.weights_server import WeightsServer
from workers.reference.build import POLICY

__all__ = ["gate", "recorded", "upstream"]
pytestmark = pytest.mark.django_db(transaction=True)
PROMPTS = ("Meet Bako on friday.", "Tell Aiko: the plan is ready.", "Delete everything, please!", "Hi")


def text_of(stream: Any) -> str:
    return "".join(choice.delta.content or "" for event in stream for choice in event.choices)


def test_an_answer_is_what_an_eval_gets_alone_in_a_batch_whole_and_streamed(ask: Ask) -> None:
    engine = open_engine({"kind": "transformers", "path": str(POLICY), "device": "cpu"})
    asked = [(prompt, seed) for prompt in PROMPTS for seed in (0, 7, 123456)]
    sampling = Sampling(0.8, 0.9, 48)
    wanted = [engine.chat([ChatRequest((Message("user", prompt),), sampling, seed)])[0] for prompt, seed in asked]
    engine.close()
    settings = {"temperature": 0.8, "top_p": 0.9, "max_tokens": 48}
    first = ask(asked[0][0], seed=asked[0][1], **settings)
    usage = (first.usage.prompt_tokens, first.usage.completion_tokens)
    assert (first.choices[0].message.content, *usage) == (wanted[0].text, wanted[0].tokens_in, wanted[0].tokens_out)
    assert {choice.finish_reason for choice in first.choices} == {wanted[0].finish_reason}
    with ThreadPoolExecutor(len(asked)) as pool:  # those that wait while the first is answered are one batch
        found = list(pool.map(lambda one: text_of(ask(one[0], seed=one[1], stream=True, **settings)), asked))
    assert found == [answer.text for answer in wanted]
    assert len({*found}) > len(PROMPTS), "seeds change answers, else this shows nothing"


def test_a_stream_has_openais_pieces_in_their_order(ask: Ask) -> None:
    events = list(ask(stream=True, seed=1, max_tokens=200, stream_options={"include_usage": True}))
    assert len({event.id for event in events}) == 1
    deltas = [event.choices[0].delta for event in events if event.choices]
    assert [delta.role for delta in deltas if delta.role] == [deltas[0].role] == ["assistant"]
    assert sum(bool(delta.content) for delta in deltas) > 5, "it comes in pieces"
    assert [event.choices[0].finish_reason for event in events if event.choices][-2:] == [None, "stop"]
    assert events[-1].usage.completion_tokens > 5
    assert not events[-1].choices


def test_without_a_seed_every_answer_is_drawn_anew(ask: Ask) -> None:
    assert len({ask("Hi", temperature=5.0, max_tokens=16).choices[0].message.content for _ in range(3)}) == 3


def test_a_stop_text_ends_the_answer_before_it(ask: Ask) -> None:
    whole = ask(seed=1, max_tokens=200).choices[0].message.content
    stop = whole[10:14]
    cut = ask(seed=1, max_tokens=200, stop=[stop, "never"])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert text_of(ask(seed=1, max_tokens=200, stop=stop, stream=True)) == whole[: whole.index(stop)]
    short = ask(seed=1, max_tokens=3)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 3)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_conversation_that_does_not_fit_is_refused_as_openai_does(ask: Ask, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=r"asks for 500 more; the model takes 512 in all") as refused:
        ask("word " * 100, max_tokens=500, stream=is_streamed)
    assert refused.value.code == "context_length_exceeded"
    assert ask("Hi", max_tokens=4).choices, "which harms nobody else"


def test_what_cannot_be_done_is_refused_with_its_field(ask: Ask, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="n can only be 1") as refused:
        ask(n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.NotFoundError, match="there is no version") as missing:
        ask(model="assistant-v9-0000000000000000")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="chat_template_kwargs are the version's own"):
        ask(extra_body={"chat_template_kwargs": {"enable_thinking": False}})


def test_nobody_is_answered_without_the_token(ask: Ask, client: openai.OpenAI, server: WeightsServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="other").models.list()
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    line.request("POST", "/v1/chat/completions", b"{}")
    assert line.getresponse().status == 401
    line.close()
    line.request("GET", "/health")
    assert json.loads(line.getresponse().read()) == {"status": "ok"}
    line.close()
    line.request("POST", "/v1/chat/completions", b"{nonsense", {"Authorization": f"Bearer {TOKEN}"})
    answer = line.getresponse()
    assert (answer.status, "not JSON" in json.loads(answer.read())["error"]["message"]) == (400, True)
    line.close()


def test_a_version_over_the_limit_is_not_served(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_SERVED_MB", "1")
    with pytest.raises(openai.BadRequestError, match=r"bytes of weights, and FLYWHEEL_SERVED_MB allows 1,000,000"):
        ask()


def test_the_first_words_arrive_before_the_last_are_drawn(ask: Ask, engine: type[Engine]) -> None:
    is_read = threading.Event()

    def answer(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        assert is_read.wait(PATIENCE_S)
        hear(done(calls[0], "Hello", "llo"))

    engine.answers.append(answer)
    found = []
    for event in ask(stream=True):
        if event.choices and event.choices[0].delta.content:
            found.append(event.choices[0].delta.content)
            is_read.set()
    assert found == ["He", "llo"]


def test_what_arrives_while_a_batch_is_answered_goes_together_in_the_next(
    ask: Ask, engine: type[Engine], server: WeightsServer
) -> None:
    go_on = threading.Event()

    def answer(calls: Sequence[Call], hear: Hear) -> None:
        assert go_on.wait(PATIENCE_S)
        answer_each(calls, hear)

    engine.answers.append(answer)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(ask)
        wait_for(lambda: engine.made and engine.made[0].batches, "the first is asked")
        more = [pool.submit(ask) for _ in range(5)]
        (served,) = server.versions._served.values()
        wait_for(lambda: len(served._open) == 6, "the others wait")
        go_on.set()
        for one in (first, *more):
            one.result(PATIENCE_S)
    assert [len(batch) for batch in engine.made[0].batches] == [1, 5]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_caller_who_goes_away_is_drawn_for_no_longer(
    client: openai.OpenAI, ask: Ask, engine: type[Engine], is_streamed: bool, server: WeightsServer
) -> None:
    def answer(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        wait_for(lambda: engine.made[0].left, "somebody says that the caller is gone")
        hear(done(calls[0]))

    engine.answers.append(answer)
    if is_streamed:
        stream = ask(stream=True)
        next(iter(stream))
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            ask(timeout=0.5)
    wait_for(lambda: engine.made[0].left, "the row is left")
    assert [call.key for call in engine.made[0].batches[0]] == engine.made[0].left
    engine.answers.append(answer_each)
    assert ask().choices, "the next is answered"


def test_calls_are_told_at_the_end_under_ids_of_their_own(ask: Ask, engine: type[Engine]) -> None:
    made = (ToolCall("call-0", "look", {"day": "friday"}), ToolCall("call-1", "wait", {}))
    engine.answers.append(lambda calls, hear: hear(done(calls[0], "Ok.", "Ok.", made)))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    whole, other = ask(tools=tools).choices[0], ask(tools=tools).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", "Ok.")
    said = [(call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls]
    assert said == [("look", {"day": "friday"}), ("wait", {})]
    assert len({call.id for choice in (whole, other) for call in choice.message.tool_calls}) == 4
    with ask(tools=tools, stream=True) as stream:
        deltas = [event.choices[0] for event in stream]
    (calls,) = [choice.delta.tool_calls for choice in deltas if choice.delta.tool_calls]
    assert [(call.index, call.function.name) for call in calls] == [(0, "look"), (1, "wait")]
    assert deltas[-1].finish_reason == "tool_calls"


def test_a_process_that_ends_takes_its_own_requests_with_it_and_is_started_again(
    ask: Ask, engine: type[Engine], monkeypatch: pytest.MonkeyPatch, server: WeightsServer
) -> None:
    monkeypatch.setattr(served_versions, "PAUSE_S", 0.0)

    def answer(calls: Sequence[Call], hear: Hear) -> None:
        raise EngineError("the process of the model ended killed by SIGKILL")

    engine.answers.append(answer)
    with pytest.raises(openai.InternalServerError, match=r"assistant@1 does not answer: .*SIGKILL") as refused:
        ask()
    assert (refused.value.status_code, refused.value.code) == (503, "version_unavailable")
    assert refused.value.response.headers["retry-after"]

    def begin(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        answer(calls, hear)

    engine.answers.append(begin)
    with pytest.raises(openai.APIError, match="SIGKILL"):
        text_of(ask(stream=True))
    engine.answers.append(answer_each)
    assert ask().choices
    assert len(engine.made) == 3


def test_who_comes_while_the_weights_load_is_told_when_it_takes_too_long(
    ask: Ask, engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_server, "LOAD_S", 0.0)
    is_told = threading.Event()
    monkeypatch.setattr(artifacts, "places", lambda _: {"is_told": is_told.wait(PATIENCE_S)})
    with pytest.raises(openai.InternalServerError, match="are being loaded") as refused:
        ask()
    is_told.set()
    assert (refused.value.status_code, refused.value.code) == (503, "version_loading")
    assert ask().choices


def test_tools_of_the_version_are_shown_as_evals_show_them(ask: Ask, engine: type[Engine], version: Version) -> None:
    plain = [{"type": "function", "function": {"name": "calendar.delete_all", "description": "Delete every event.",
              "parameters": {"type": "object", "properties": {}}}}]  # fmt: skip
    other = {"type": "function", "function": {"name": "own", "parameters": {}}}
    ask(tools=[*plain, other])
    assert engine.made[0].batches[0][0].request.tools == (version.tools[2], other)


def test_it_lists_what_is_loaded(ask: Ask, client: openai.OpenAI, engine: type[Engine], version: Version) -> None:
    assert list(client.models.list()) == []
    ask()
    assert [model.id for model in client.models.list()] == [served_weights.name_of(version)]


def test_a_live_agent_answers_at_the_gateway_and_is_recorded(
    version: Version,
    server: WeightsServer,
    gate: dict[str, str],
    client: openai.OpenAI,
    recorded: list[Any],
    broker_installed: None,
    settings: Any,
    tmp_path: Path,
) -> None:
    settings.HOME = tmp_path
    served_weights.announce(Address(f"http://127.0.0.1:{server.port}", TOKEN))
    Agent.objects.filter(pk=version.agent_id).update(live=version)
    engine = open_engine({"kind": "transformers", "path": str(POLICY), "device": "cpu"})
    messages = (Message("system", version.system_prompt), Message("user", PROMPTS[0]))
    sampling, tools = Sampling(**version.sampling), tuple(version.tools)
    wanted = engine.chat([ChatRequest(messages, sampling, seed, tools) for seed in range(12)])
    engine.close()
    seed = max(range(12), key=lambda seed: len(wanted[seed].text))
    asked = [{"role": "user", "content": PROMPTS[0]}]
    answer, content = gateway.ask(Client(), gate, model="assistant@live", messages=asked, seed=seed, stream=True)
    assert (answer.status_code, content.endswith(b"data: [DONE]\n\n")) == (200, True), content
    row = Trajectory.objects.get()
    assert (row.agent, row.version) == (version.agent, version)
    step = stored_traces.trace_of(row).steps[0]
    assert (step.output[0].content, step.finish_reason) == (wanted[seed].text, wanted[seed].finish_reason)


def test_the_process_is_light_until_somebody_asks_and_comes_back_where_it_was(tmp_path: Path) -> None:
    told = {**os.environ, "FLYWHEEL_HOME": str(tmp_path), "DATABASE_URL": database_url()}
    place = tmp_path / "weights_server.json"
    places = []
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen([sys.executable, "-m", "workers.policies.small_weights"], cwd=ROOT, env=told)
        try:
            at = wait_for(lambda: place.exists() and Address(**json.loads(place.read_bytes())), "it says where it is")
            assert at
            with openai.OpenAI(base_url=f"{at.url}/v1", api_key=at.token, max_retries=0) as client:
                wait_for(lambda: _lists(client), "it answers")
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "libtorch" not in maps
            assert place.stat().st_mode & 0o777 == 0o600
            places.append(at)
        finally:
            process.send_signal(number)
            process.wait(PATIENCE_S)
    assert places[0] == places[1]
    assert process.returncode == 0


def _lists(client: openai.OpenAI) -> bool:
    try:
        return list(client.models.list()) == []
    except openai.APIConnectionError:
        return False
