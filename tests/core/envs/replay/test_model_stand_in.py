"""A model that stands in for tools in a replay: its settings, what it is shown, and how its answers are read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task, kinds
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.envs.replay.model_stand_in import LONGEST_CALL, SIMULATED, ModelStandIn, read
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import Runners, VerifierError, WorldError

TOOLS: list[dict[str, Any]] = [{"name": name, "parameters": {"type": "object"}} for name in ("find", "order")]
SIMULATOR = {"endpoint": "upstream", "model": "m"}
CONFIG = {"tools": TOOLS, "judged": "end", "unknown": "model", "simulator": SIMULATOR}
LAMP = {"tool": "find", "arguments": {"what": "lamp"}, "result": '{"id": 1}'}
RUG = {"tool": "find", "arguments": {"what": "rug"}, "result": '{"id": 2}'}
TASK = Task(
    "t",
    "Order a lamp",
    {"wanted": [{"type": "calls", "calls": [{"tool": "order", "arguments": {"secret": "SECRET"}}]}]},
    {"replies": [LAMP, RUG]},
)


class Fake:
    """A model that says one thing."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen: list[str] = []

    def __call__(self, settings: Mapping[str, Any], messages: Sequence[Message], seed: int) -> str:
        assert settings == SIMULATOR
        self.seen.append(messages[-1].content)
        return self.text


def answered(fake: Fake | None, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    env = envs.build("episode", CONFIG, {"kind": "episode"}, Runners(simulator=fake))
    made = Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))
    return [message.content for message in env.respond(TASK, [*env.reset(TASK, 0), made], 0)]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"simulator": None}, 'simulator: expected {"endpoint"'),
        ({"simulator": {"endpoint": "mine", "model": "m"}}, "simulator.endpoint: 'mine' is unknown"),
        ({"simulator": SIMULATOR | {"model": " "}}, "simulator.model: expected the model's name"),
        ({"simulator": SIMULATOR | {"key": "k"}}, "simulator.key: there is no such setting"),
        ({"unknown": "stub"}, "simulator: a model answers with"),
        ({"judged": "next"}, "judged: at the next action nothing is answered, by a model neither"),
    ],
)
def test_settings_that_are_wrong_are_refused_by_name(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as refused:
        envs.build("episode", CONFIG | config, {"kind": "episode"})
    assert str(refused.value).startswith(problem)
    assert kinds.needs("episode", CONFIG, {"kind": "episode"}) == {"simulator"}


def test_it_is_asked_for_what_was_never_recorded_alone_and_its_answer_is_marked() -> None:
    fake = Fake('{"result": "none"}')
    found = answered(fake, ("find", {"what": "lamp"}), ("find", {"what": "vase"}), ("send", {}))
    assert found == ['{"id": 1}', f"{SIMULATED}none", MARK + ERROR]
    assert len(fake.seen) == 1
    assert "SECRET" not in fake.seen[0], "it knows nothing of what is wanted"


def test_a_call_that_is_too_long_gets_the_error_so_that_nobody_escapes_the_verdict() -> None:
    assert answered(Fake(""), ("find", {"what": "x" * LONGEST_CALL})) == [MARK + ERROR]


@pytest.mark.parametrize("text", ["", "hello", "[]", '{"result": 1, "more": 2}', "[" * 100_000])
def test_nonsense_is_no_answer(text: str) -> None:
    with pytest.raises(WorldError, match="the simulator's answer"):
        read(text)
    with pytest.raises(WorldError):
        answered(Fake(text), ("find", {}))


def test_without_a_worker_nobody_answers_in_its_place() -> None:
    with pytest.raises(WorldError, match="only a worker asks"):
        answered(None, ("find", {}))


def test_agreement_holds_each_result_back() -> None:
    fake = Fake(json.dumps({"result": '{ "id":1 }'}))
    found = ModelStandIn(SIMULATOR, TOOLS, Runners(simulator=fake)).agreement(TASK)
    assert (found["calls"], found["same"], found["unread"]) == (2, 1, 0)
    assert found["first"].startswith("find: ")
    held = [json.loads(seen.split("\n", 2)[2].rsplit("\n=====", 1)[0])["later"] for seen in fake.seen]
    assert [[row["arguments"]["what"] for row in rows] for rows in held] == [["rug"], ["lamp"]]
