"""The shipped small policy as a version, and the server that answers with it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import openai
import pytest

from flywheel.agents import artifacts
from flywheel.agents.models import Version
from flywheel.agents.weights import served_weights
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import ToolCall
from tests.conftest import Build
from tests.waiting import PATIENCE_S, wait_for
from workers.engines.streamed_answers import Call, Heard
from workers.policies.small_weights import served_versions
from workers.policies.small_weights.served_versions import ServedVersions
from workers.policies.small_weights.weights_server import WeightsServer
from workers.reference.build import POLICY

TOKEN = "sesame"


@pytest.fixture
def version(build: Build) -> Version:
    return build.version(weights=artifacts.store(POLICY, "model"), endpoint={"kind": "transformers", "device": "cpu"})


@pytest.fixture
def server() -> Iterator[WeightsServer]:
    versions = ServedVersions()
    made = WeightsServer(("127.0.0.1", 0), TOKEN, versions)
    thread = threading.Thread(target=made.serve_forever, args=[0.02])
    thread.start()
    yield made
    made.shutdown()
    thread.join(PATIENCE_S)
    made.server_close()
    versions.close()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("serving ")], "its versions end")


Ask = Callable[..., Any]


@pytest.fixture
def client(server: WeightsServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


@pytest.fixture
def ask(client: openai.OpenAI, version: Version) -> Ask:
    """`ask("Meet Bako on friday.", seed=1)` → the client's answer of the version."""

    def go(text: str = "Meet Bako on friday.", **more: Any) -> Any:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(**{"model": served_weights.name_of(version), "messages": messages} | more)

    return go


Hear = Callable[[Heard], None]


class Engine:
    """In place of a model's process; what it does is the test's."""

    made: list["Engine"]
    answers: list[Callable[[Sequence[Call], Hear], None]]
    """What each does from now on, the last of these."""

    def __init__(self, spec: Any) -> None:
        self.batches: list[list[Call]] = []
        self.left: list[int] = []
        self.made.append(self)

    def speak(self, calls: Sequence[Call], hear: Hear) -> list[ChatResponse]:
        self.batches.append(list(calls))
        self.answers[-1](calls, hear)
        return []

    def leave(self, key: int) -> None:
        self.left.append(key)

    def close(self) -> None:
        pass


def answer_each(calls: Sequence[Call], hear: Hear) -> None:
    for call in calls:
        hear(done(call))


def done(call: Call, text: str = "", rest: str = "", calls: tuple[ToolCall, ...] = ()) -> Heard:
    return Heard(call.key, rest, ChatResponse(text, calls, "stop", tokens_in=1, tokens_out=2))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    made = type("Made", (Engine,), {"made": [], "answers": [answer_each]})
    monkeypatch.setattr(served_versions, "ProcessEngine", made)
    return made
