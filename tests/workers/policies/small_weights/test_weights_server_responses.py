"""Small weights answer OpenAI's own client by the Responses API, and with the tokens of a chat completion."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from pytest_django.live_server_helper import LiveServer

from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Version
from flywheel.agents.weights import served_weights
from flywheel.agents.weights.served_weights import Address
from flywheel.core.envs.policy_rollouts import EngineError
from flywheel.core.traces import ToolCall
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store import stored_traces
from tests.trajectories.ingest.gateway.conftest import gate, recorded, upstream
from tests.waiting import PATIENCE_S, wait_for
from tests.workers.policies.small_weights.conftest import TOKEN, Ask, Engine, Hear, answer_each, done
from workers.engines.streamed_answers import Call, Heard
from workers.policies.small_weights import served_versions, weights_server
from workers.policies.small_weights.weights_server import WeightsServer

__all__ = ["gate", "recorded", "upstream"]
pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "Meet Bako on friday."
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def respond(client: openai.OpenAI, version: Version) -> Callable[..., Any]:
    """`respond(seed=1)` → the client's response of the version."""

    def go(text: Any = TEXT, *, seed: int | None = None, **more: Any) -> Any:
        own = {"extra_body": {"seed": seed}} if seed is not None else {}
        asked: dict[str, Any] = {"model": served_weights.name_of(version), "input": text} | own | more
        return client.responses.create(**asked)

    return go


def text_of(stream: Any) -> str:
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def test_a_response_has_the_tokens_of_the_chat_completion_whole_and_streamed(ask: Ask, respond: Ask) -> None:
    prompt = {"role": "system", "content": "You plan."}
    found = set()
    for seed in (0, 7, 123456):
        settings = {"temperature": 0.8, "top_p": 0.9, "seed": seed}
        chat = ask(messages=[prompt, {"role": "user", "content": TEXT}], max_tokens=48, **settings)
        more = {"instructions": prompt["content"], "max_output_tokens": 48, **settings}
        whole = respond(**more)
        assert whole.output_text == chat.choices[0].message.content
        assert whole.status == {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]
        usage = (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens)
        assert usage == (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens)
        assert text_of(respond(stream=True, **more)) == whole.output_text
        found.add(whole.output_text)
    assert len(found) > 1, "seeds change answers, else this shows nothing"


def test_the_clients_own_helper_reads_a_stream_and_goes_on_from_it(client: openai.OpenAI, version: Version) -> None:
    model = served_weights.name_of(version)
    settings: dict[str, Any] = {"model": model, "max_output_tokens": 200, "extra_body": {"seed": 1}}
    with client.responses.stream(input=TEXT, tools=[LOOK], **settings) as stream:
        events = list(stream)
        first = stream.get_final_response()
    assert events[-1].type == "response.completed"
    assert text_of(events) == first.output_text != ""
    history = [{"role": "user", "content": TEXT}, *(item.to_dict() for item in first.output)]
    again = client.responses.create(input=[*history, {"role": "user", "content": "Hi"}], **settings)  # type: ignore[list-item]
    assert again.usage
    assert first.usage
    assert again.usage.input_tokens > first.usage.input_tokens, "what it said before is shown to it"


def test_an_answer_that_is_cut_off_is_incomplete(respond: Ask) -> None:
    short = respond(seed=1, max_output_tokens=3)
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert short.usage.output_tokens == 3
    *_, last = respond(seed=1, max_output_tokens=3, stream=True)
    assert (last.type, last.response.output_text) == ("response.incomplete", short.output_text)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_cannot_be_done_is_refused_as_openai_does(respond: Ask, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="send the whole conversation in input") as refused:
        respond(previous_response_id="resp_1", stream=is_streamed)
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match=r"the model takes 512 in all") as long:
        respond("word " * 100, max_output_tokens=500, stream=is_streamed)
    assert (long.value.param, long.value.code) == ("input", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError, match="there is no version"):
        respond(model="assistant-v9-0000000000000000", stream=is_streamed)
    with pytest.raises(openai.BadRequestError, match="chat_template_kwargs are the version's own"):
        respond(extra_body={"chat_template_kwargs": {"enable_thinking": False}}, stream=is_streamed)
    assert respond("Hi", max_output_tokens=4).output, "which harms nobody else"


def test_another_path_is_told_both(client: openai.OpenAI, version: Version) -> None:
    with pytest.raises(openai.NotFoundError, match=r"asked at /v1/chat/completions or /v1/responses, not at"):
        client.embeddings.create(model="m", input="x")


def test_the_first_words_arrive_before_the_last_are_drawn(respond: Ask, engine: type[Engine]) -> None:
    is_read = threading.Event()

    def answer(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        assert is_read.wait(PATIENCE_S)
        hear(done(calls[0], "Hello", "llo"))

    engine.answers.append(answer)
    found = []
    for event in respond(stream=True):
        if event.type == "response.output_text.delta":
            found.append(event.delta)
            is_read.set()
    assert found == ["He", "llo"]


def test_calls_are_items_of_their_own_whole_and_streamed(respond: Ask, engine: type[Engine], version: Version) -> None:
    made = (ToolCall("call-0", "look", {"day": "friday"}), ToolCall("call-1", "wait", {}))
    engine.answers.append(lambda calls, hear: hear(done(calls[0], "Ok.", "Ok.", made)))
    own = {"type": "function", "name": "calendar.delete_all", "description": "Delete every event.",
           "parameters": {"type": "object", "properties": {}}, "strict": True}  # fmt: skip
    whole = respond(tools=[LOOK, own])
    told = list(respond(tools=[LOOK, own], stream=True))
    assert told[-1].type == "response.completed"
    for response in (whole, told[-1].response):
        assert (response.status, response.output_text) == ("completed", "Ok.")
        said = [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]
        assert said == [("look", {"day": "friday"}), ("wait", {})]
    written = [event.arguments for event in told if event.type == "response.function_call_arguments.done"]
    assert list(map(json.loads, written)) == [{"day": "friday"}, {}]
    ids = [item.call_id for each in (whole, told[-1].response) for item in each.output if item.type == "function_call"]
    assert len({*ids}) == 4, "a reader's own ids are the same in every answer"
    shown = engine.made[0].batches[0][0].request.tools
    assert shown[1] == version.tools[2], "a tool of the version is shown as in evals"
    assert shown[0] == {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_caller_who_goes_away_is_drawn_for_no_longer(
    respond: Ask, engine: type[Engine], is_streamed: bool, server: WeightsServer
) -> None:
    def answer(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        wait_for(lambda: engine.made[0].left, "somebody says that the caller is gone")
        hear(done(calls[0]))

    engine.answers.append(answer)
    if is_streamed:
        stream = respond(stream=True)
        next(iter(stream))
        stream.close()
    else:
        with pytest.raises(openai.APITimeoutError):
            respond(timeout=0.5)
    wait_for(lambda: engine.made[0].left, "the row is left")
    engine.answers.append(answer_each)
    assert respond().output, "the next is answered"


def test_a_process_that_ends_is_an_error_before_the_stream_and_within_it(
    respond: Ask, engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_versions, "PAUSE_S", 0.0)

    def answer(calls: Sequence[Call], hear: Hear) -> None:
        raise EngineError("the process of the model ended killed by SIGKILL")

    engine.answers.append(answer)
    with pytest.raises(openai.InternalServerError, match="SIGKILL") as refused:
        respond(stream=True)
    assert (refused.value.status_code, refused.value.code) == (503, "version_unavailable")
    assert refused.value.response.headers["retry-after"]

    def begin(calls: Sequence[Call], hear: Hear) -> None:
        hear(Heard(calls[0].key, "He"))
        answer(calls, hear)

    engine.answers.append(begin)
    stream, events = iter(respond(stream=True)), list[Any]()
    with pytest.raises(openai.APIError, match="SIGKILL"):
        events.extend(stream)  # which keeps what came before
    assert (events[-1].type, events[-1].response.output_text) == ("response.failed", "He")


def test_who_comes_while_the_weights_load_is_told_when_to_come_again(
    respond: Ask, engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_server, "LOAD_S", 0.0)
    is_told = threading.Event()
    monkeypatch.setattr(artifacts, "places", lambda _: {"is_told": is_told.wait(PATIENCE_S)})
    with pytest.raises(openai.InternalServerError, match="are being loaded") as refused:
        respond()
    is_told.set()
    assert (refused.value.code, refused.value.response.headers["retry-after"]) == ("version_loading", "2")
    assert respond().output


@pytest.fixture
def at_gateway(
    version: Version,
    server: WeightsServer,
    gate: dict[str, str],
    recorded: list[Any],
    broker_installed: None,
    live_server: LiveServer,
    settings: Any,
    tmp_path: Path,
) -> Iterator[openai.OpenAI]:
    """A client of the gateway, where the version is live on small weights."""
    settings.HOME = tmp_path
    served_weights.announce(Address(f"http://127.0.0.1:{server.port}", TOKEN))
    Agent.objects.filter(pk=version.agent_id).update(live=version)
    key = gate["authorization"].removeprefix("Bearer ")
    with openai.OpenAI(base_url=f"{live_server.url}/gateway/v1", api_key=key, max_retries=0) as made:
        yield made


def test_a_live_agent_answers_responses_at_the_gateway_and_is_recorded(
    at_gateway: openai.OpenAI, version: Version, engine: type[Engine]
) -> None:
    call = ToolCall("call-0", "calendar.delete_all", {})
    engine.answers.append(lambda calls, hear: hear(done(calls[0], "Ok.", "Ok.", (call,))))
    create = at_gateway.responses.with_raw_response.create
    raw = create(model="assistant@live", input="Clear friday.")
    first = raw.parse()
    assert (raw.headers["x-flywheel-version"], raw.headers["x-flywheel-digest"]) == (str(version), version.digest)
    assert [item.type for item in first.output] == ["message", "function_call"]
    made = first.output[1]
    assert made.type == "function_call"
    engine.answers.append(lambda calls, hear: hear(done(calls[0], "Done.", "Done.")))
    history: Any = [
        {"role": "user", "content": "Clear friday."},
        *(item.to_dict() for item in first.output),
        {"type": "function_call_output", "call_id": made.call_id, "output": "2 events"},
    ]
    streamed = create(model="assistant@live", input=history, stream=True)
    assert streamed.headers["x-flywheel-version"] == str(version)
    assert streamed.headers["x-flywheel-digest"] == version.digest
    assert text_of(streamed.parse()) == "Done."
    wait_for(lambda: Trajectory.objects.filter(step_count=2).exists(), "both are recorded as one trajectory")
    row = Trajectory.objects.get()
    assert row.version == version
    trace = stored_traces.trace_of(row)
    said = [(message.role, message.content) for message in trace.conversation()]
    prompt = ("system", version.system_prompt)
    told = [("user", "Clear friday."), ("assistant", "Ok."), ("tool", "2 events"), ("assistant", "Done.")]
    assert said == [prompt, *told]
    (answer,) = trace.steps[0].output
    assert answer.tool_calls == (ToolCall(made.call_id, call.name, {}),)
    assert [step.finish_reason for step in trace.steps] == ["tool_calls", "stop"]
    assert [(step.status, step.tokens_in, step.tokens_out) for step in trace.steps] == [("ok", 1, 2)] * 2
    asked = [batch[0].request for one in engine.made for batch in one.batches]
    assert [request.tools for request in asked] == [tuple(version.tools)] * 2, "filled in, and shown as in evals"
    assert {request.sampling.max_tokens for request in asked} == {version.sampling["max_tokens"]}
