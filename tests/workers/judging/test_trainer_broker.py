"""A trainer's questions over a real socket: answered as in evals, of the run's own environments and of nothing else."""

import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs import Environment, Task, build
from flywheel.core.envs.policy_rollouts import ChatResponse, Sampling, play
from flywheel.core.envs.replay.model_stand_in import ModelStandIn
from flywheel.core.interop import gym_server as protocol
from flywheel.core.interop.gym_http import Server
from flywheel.core.traces import Message, ToolCall
from flywheel.core.verifiers import Runners, Verdict, WorldError
from flywheel.core.verifiers.rubric import judges
from tests.conftest import TOOLS
from tests.evals.fake import FakeEngine
from tests.interop.environments import tasks_of
from tests.shop_server import TOOLS as SHOP_TOOLS
from tests.shop_server import serve_shop
from tests.workers.judge_server import Mark, judge_server, naming
from tests.workers.judging.test_llm_judge import TASK, judge_of, rubric
from tests.workers.worlds.test_gym_sessions import OURS, Scripted, judged, rows, workplace
from workers.judging import attempt_verdicts, broker_line
from workers.judging.broker_line import BrokerLine, runners_over
from workers.judging.llm_judge import Judge
from workers.judging.trainer_broker import Broker
from workers.worlds.gym_sessions import Gym
from workers.worlds.tool_servers import ToolServers

Judging = Callable[..., tuple[BrokerLine, Environment, Judge]]
CANCEL = Task("t", "Cancel my order 1003.", {"wanted": []})


@pytest.fixture
def opened() -> Iterator[Callable[..., Broker]]:
    """Makes brokers, which end with the test."""
    with ExitStack() as stack:

        def go(runners: Runners, *envs: Environment, parts: Any = ()) -> Broker:
            broker = Broker(runners, envs, parts)
            stack.callback(broker.close)
            return broker

        yield go


@pytest.fixture
def judging(opened: Callable[..., Broker]) -> Iterator[Judging]:
    """A line, an environment whose judge is at its other end, and that judge."""
    with ExitStack() as stack:

        def go(mark: Mark, answer_s: float = 60.0) -> tuple[BrokerLine, Environment, Judge]:
            spec = rubric()
            asked = judge_of(stack.enter_context(judge_server(mark)), spec)
            stack.callback(asked.close)
            parts = [part.settings for part in judges(spec).values()]
            line = BrokerLine(opened(Runners(judge=asked), parts=parts).path, answer_s)
            return line, build("tool_call", {"tools": TOOLS}, spec, runners_over(line)), asked

        yield go


def said(env: Environment, *answers: str) -> list[Verdict]:
    attempts = [(TASK, [Message("user", TASK.prompt), Message("assistant", text)]) for text in answers]
    return attempt_verdicts.verdicts(env, attempts)


def test_a_judge_says_the_same_over_the_line_and_is_asked_the_same_once(judging: Judging) -> None:
    line, env, asked = judging(naming("austen"))
    good, bad = said(env, "Jane Austen wrote it.", "Charles Dickens.")
    assert (good.score, good.reason, bad.score) == (1.0, "right: 1 of 1: By the rule.", 0.0)
    assert said(env, "Charles Dickens.") == [bad]
    assert (asked.report["right"]["judged"], asked.report["right"]["remembered"]) == (2, 1)
    place = Path(line.path).parent
    assert (stat.S_IMODE(place.stat().st_mode), line.lost) == (0o700, "")


def test_hostile_text_arrives_as_it_was_written(judging: Judging) -> None:
    _, env, _ = judging(naming("austen"))
    nul, long, half = said(env, "Austen\0 \u2028", "Austen " + "x" * 2**20, "Austen \ud800")
    assert (nul.score, half.score) == (1.0, 1.0)
    assert (long.score, "characters" in long.reason) == (0.0, True), "as in evals: too long by its own words"


def test_rubbish_and_silence_are_no_score_and_say_so(judging: Judging) -> None:
    _, env, _ = judging(lambda data, _: "no mark" if "Emma?" in json.dumps(data) and "odd" in json.dumps(data) else 0)
    (odd,) = said(env, "odd")
    assert (odd.score, odd.cause) == (None, "malformed")
    done = threading.Event()

    def wait(data: dict[str, Any], _: dict[str, Any]) -> int:
        done.wait(30)
        return 0

    line, env, _ = judging(wait, answer_s=0.2)
    (late,) = said(env, "anything")
    done.set()
    assert (late.score, late.cause) == (None, "judge")
    assert "did not answer within 0.2 s" in late.reason
    assert not line.lost, "late is not gone"


def test_a_judge_that_is_full_is_waited_for_and_nothing_is_lost(judging: Judging) -> None:
    full = iter((429, 429))
    line, env, _ = judging(lambda data, body: next(full, 0) or naming("austen")(data, body) if data["attempt"] else 0)
    assert [verdict.score for verdict in said(env, "Jane Austen.", "Charles Dickens.")] == [1.0, 0.0]
    assert next(full, None) is None, "it was full"
    assert not line.lost


def test_a_broker_that_is_gone_is_told_once_and_for_all(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> None:
    line, env, _ = judging(naming("austen"))
    Path(line.path).unlink()
    (verdict,) = said(env, "Jane Austen.")
    assert (verdict.score, verdict.cause) == (None, "refused")
    assert "is gone" in line.lost
    assert line.path in line.lost
    monkeypatch.setenv(broker_line.VARIABLE, line.path)
    assert broker_line.lost() == "", "another line of the same process, which asked nothing yet"


def test_an_answer_that_breaks_off_is_a_broker_that_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def break_off() -> None:
            other, _ = listener.accept()
            with other:
                other.recv(1)
                other.sendall(b'{"sai')

        thread = threading.Thread(target=break_off)
        thread.start()
        line = BrokerLine(path, 10)
        with pytest.raises(broker_line.Unanswered, match="is gone"):
            line.ask("judge")
        thread.join()
    assert line.lost


def test_nothing_is_asked_that_is_not_of_the_runs_environments(judging: Judging) -> None:
    line, _, asked = judging(naming("austen"))
    strange = build("tool_call", {"tools": TOOLS}, rubric(criteria="Say yes to all."), runners_over(line))
    (verdict,) = said(strange, "Jane Austen.")
    assert (verdict.score, verdict.cause) == (None, "refused")
    assert "none of this run's" in verdict.reason
    questions: list[dict[str, Any]] = [{}, {"part": 7}, {"model": "m"}]
    for what, about in zip(("exec", "judge", "simulate"), questions, strict=True):
        with pytest.raises(broker_line.Unanswered, match="refuses"):
            line.ask(what, **about)
    assert asked.report == {}, "not even a canary was spent on it"


def test_who_says_nothing_or_too_much_holds_nobody_up(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> None:
    line, env, _ = judging(naming("austen"))
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as nonsense:
        silent.connect(line.path)
        nonsense.connect(line.path)
        nonsense.sendall(b"\xff{\n")
        assert said(env, "Jane Austen.")[0].score == 1.0
        assert b"problem" in nonsense.recv(4096)
    monkeypatch.setattr(broker_line, "MOST_BYTES", 1000)
    (verdict,) = said(env, "Jane Austen " * 200)
    assert (verdict.score, verdict.cause) == (None, "output")


def shop(url: str, runners: Runners, **config: Any) -> Environment:
    config = {"base_url": url, "tools": SHOP_TOOLS, "max_turns": 3, **config}
    return build("tool_server", config, {"kind": "tool_server"}, runners)


def call(env: Environment, tool: str, order: str = "1003") -> str:
    said = Message("assistant", "", (ToolCall("c", tool, {"order_id": order}),))
    return env.respond(CANCEL, [*env.reset(CANCEL, 0), said], 0)[0].content


@pytest.mark.parametrize("protocol", ["http", "mcp"])
def test_an_attached_server_is_played_with_the_workers_key(opened: Callable[..., Broker], protocol: str) -> None:
    with serve_shop() as (served, url):
        address = f"{url}/mcp" if protocol == "mcp" else url
        config = {"protocol": protocol, "api_key_env": "SHOP_API_KEY", "resets": protocol == "http"}
        servers = ToolServers(lambda *_: "a-secret")
        own = shop(address, Runners(server=servers), **config)
        line = BrokerLine(opened(Runners(server=servers), own).path)
        env = shop(address, runners_over(line), **config)
        assert call(env, "cancel") == "Order 1003 is cancelled."
        assert "there is no order 7" in call(env, "cancel", "7")
        assert {headers.get("Authorization") for headers in served.headers} == {"Bearer a-secret"}
        servers.close()


def test_no_other_server_and_no_other_tool_is_reached(opened: Callable[..., Broker]) -> None:
    with serve_shop() as (served, url):
        servers = ToolServers()
        line = BrokerLine(opened(Runners(server=servers), shop(url, Runners())).path)
        with pytest.raises(WorldError, match="none of this run's"):
            call(shop(f"{url}/elsewhere", runners_over(line)), "cancel")
        digest = broker_line.server_digest(shop(url, Runners()).server, SHOP_TOOLS)  # type: ignore[attr-defined]
        with pytest.raises(broker_line.Unanswered, match="no tool of this environment"):
            line.ask("play", server=digest, retold=[], seed=0, prompt="", calls=[["../reset", {}, None]])
        assert not served.asked


def test_a_server_that_does_not_answer_breaks_the_attempt_alone(opened: Callable[..., Broker]) -> None:
    with serve_shop() as (served, url):
        served.faults["/tools/cancel"] = lambda handler: handler.say(500, b"")
        servers = ToolServers()
        line = BrokerLine(opened(Runners(server=servers), shop(url, Runners())).path)
        engine = FakeEngine(lambda _: ChatResponse('{"tool": "cancel", "arguments": {"order_id": "1003"}}'))
        (rollout,) = play(engine, shop(url, runners_over(line)), [(CANCEL, 0, 0)], Sampling())
        assert "500" in rollout.broken
        assert not line.lost


def test_a_simulator_answers_calls_and_nothing_else(opened: Callable[..., Broker]) -> None:
    seen: list[Any] = []

    def simulate(settings: Any, messages: Any, seed: int) -> str:
        seen.append((settings, seed))
        return '{"result": "Bako is free."}'

    settings = {"endpoint": "upstream", "model": "m"}
    tools: list[Any] = TOOLS
    config = {"tools": TOOLS, "judged": "end", "unknown": "model", "simulator": settings}
    env = build("episode", config, {"kind": "episode"})
    line = BrokerLine(opened(Runners(simulator=simulate), env).path)
    asked = ModelStandIn(settings, tools, runners_over(line))
    asked.begin(TASK)
    assert seen == [(settings, 0)]
    with pytest.raises(WorldError, match="for nothing else"):
        runners_over(line).simulator(settings, [Message("user", "Write me a poem.")], 0)  # type: ignore[misc]
    with pytest.raises(WorldError, match="none of this run's"):
        runners_over(line).simulator({**settings, "model": "dearer"}, [], 0)  # type: ignore[misc]


def test_a_gym_is_played_and_judges_over_the_line(opened: Callable[..., Broker]) -> None:
    tasks = rows()[:2]
    served = Server(("127.0.0.1", 0), protocol.Gym(OURS, {task.id: task for task in tasks_of("workplace")}))
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        line = BrokerLine(opened(Runners(gym=Gym()), workplace(served.url)).path)
        asked: Any = runners_over(line).gym
        env = workplace(served.url, asked)
        played = play(Scripted(env, tasks), env, [(task, 0, seed) for task in tasks for seed in (0, 100)], Sampling())
        scores = [judged(env, rollout.task, rollout.messages).score for rollout in played]
        assert scores == [1.0, 0.0, 1.0, 0.0]
        elsewhere = workplace(served.url + "/x", asked)
        assert "none of this run's" in judged(elsewhere, tasks[0], played[0].messages).reason
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


def test_questions_are_counted(opened: Callable[..., Broker]) -> None:
    broker = opened(Runners())
    line = BrokerLine(broker.path)
    with pytest.raises(broker_line.Unanswered):
        line.ask("judge", part="x")
    assert broker.counts == {"judge": 1, "unanswered": 1}
    assert broker.is_alive
    broker.close()
    assert not broker.is_alive
    assert not os.path.exists(broker.path)


def test_what_a_killed_worker_left_is_swept_and_a_living_broker_is_not(
    opened: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = opened(Runners())
    dead = tmp_path / "flywheel-broker-dead"
    dead.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead / "s"))
    opened(Runners())
    assert not dead.exists()
    assert living.is_alive


def test_a_path_that_no_socket_can_have_is_told(
    opened: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(OSError, match="set a shorter TMPDIR"):
        opened(Runners())
    assert not list(deep.iterdir())
