"""Somebody else's NeMo Gym server: played and judged over its protocol, and never a 0 for what it did not do."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task
from flywheel.core.envs.kinds import check_new
from flywheel.core.envs.nemo_gym import NemoGym
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling, play
from flywheel.core.interop import gym_server as protocol
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.traces.openai_messages import definitions
from flywheel.core.verifiers import GymError, Runners, Verdict, VerifierError
from tests.interop.environments import export_of, tasks_of
from tests.waiting import PATIENCE_S
from workers.worlds import gym_sessions
from workers.worlds.gym_sessions import Gym, meet

SERVE = """
import sys
from flywheel.core.interop.gym_server import Gym
from flywheel.core.interop.gym_http import Server
from tests.interop.environments import export_of, tasks_of
server = Server(("127.0.0.1", 0), Gym(export_of("workplace").env, {task.id: task for task in tasks_of("workplace")}))
print(server.url, flush=True)
server.serve_forever()
"""
OURS = export_of("workplace").env


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Our own workplace behind our own server, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()


def environment(base_url: str, tools: Sequence[dict[str, Any]], gym: Gym | None = None, **config: Any) -> NemoGym:
    runners = Runners(gym=gym or Gym(timeout_s=PATIENCE_S, patience_s=0.2, backoff_s=0.01))
    made = envs.build("nemo_gym", {"base_url": base_url, "tools": list(tools), **config}, {"kind": "nemo_gym"}, runners)
    assert isinstance(made, NemoGym)
    return made


def workplace(base_url: str, gym: Gym | None = None) -> NemoGym:
    return environment(base_url, definitions(OURS.tools), gym, max_turns=20)


def rows() -> list[Task]:
    """The tasks of our workplace as the rows that its server hands out, with the calls that are right."""
    found = []
    for number, task in enumerate(tasks_of("workplace")):
        row = protocol.row_of(OURS, task, number=number, environment="own@1", split="train", agent="a")
        del row["responses_create_params"]["tools"]
        calls = [{**call, "tool": call["tool"].replace(".", "_")} for call in task.target["calls"]]
        found.append(Task(f"t-{number}", task.prompt, {"row": row, "calls": calls}))
    return found


def judged(env: NemoGym, task: Task, messages: Sequence[Message]) -> Verdict:
    return env.verifier(task)(Trace.from_messages("", messages), task.target)


class Scripted:
    """A policy that does everything right where the seed is even, and chats where it is odd."""

    def __init__(self, env: NemoGym, tasks: Sequence[Task]) -> None:
        self.env, self.tasks = env, {task.prompt: task for task in tasks}

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        found = []
        for request in requests:
            asked = next(m.content for m in request.messages if m.role == "user")
            said = self.env.solve(self.tasks[asked], request.messages)
            is_right = (request.seed // 100) % 2 == 0
            found.append(ChatResponse(said.content, said.tool_calls) if is_right else ChatResponse("Lovely weather."))
        return found

    def close(self) -> None: ...


def test_a_batch_is_played_and_judged_and_order_does_not_matter(served: str) -> None:
    tasks = rows()
    attempts = [(task, sample, 100 * sample) for task in tasks for sample in range(4)]
    found: list[dict[tuple[str, int], Any]] = []
    for order in (attempts, attempts[::-1]):
        env = workplace(served)
        played = play(Scripted(env, tasks), env, order, Sampling())
        found.append(
            {
                (rollout.task.id, rollout.sample): (
                    [m.to_json() for m in rollout.messages],
                    judged(env, rollout.task, rollout.messages).score,
                )
                for rollout in played
            }
        )
        assert not env.gym._sessions, "each session ended with its verdict"  # type: ignore[union-attr]
    assert found[0] == found[1]
    for (_, sample), (messages, score) in found[0].items():
        assert score == 1.0 if sample % 2 == 0 else score < 0.5
        assert any(message["role"] == "tool" for message in messages) == (sample % 2 == 0)


def test_what_is_judged_later_is_done_again_in_a_session_of_its_own(served: str) -> None:
    task = rows()[0]
    env = workplace(served)
    messages = envs.episode(env, task, lambda seen: env.solve(task, seen))
    assert judged(workplace(served), task, messages).score == 1.0
    told = [
        m if m.role != "tool" else Message("tool", '{"output": "no"}', tool_call_id=m.tool_call_id) for m in messages
    ]
    verdict = judged(workplace(served), task, told)
    assert (verdict.score, verdict.cause) == (None, "environment")
    assert "answers otherwise now" in verdict.reason
    probes = env.probes(task)
    assert set(probes) == {"empty", "echo", "constant", "every tool at once"}
    for name, probe in probes.items():
        score = judged(env, task, envs.episode(env, task, probe)).score
        assert score is not None, name
        assert score < 0.5, name


def test_only_tools_that_were_declared_are_ever_asked_for(odd: "Odd") -> None:
    env = environment(odd.url, [{"name": "add", "parameters": {"type": "object"}}])
    odd_calls: list[tuple[str, dict[str, Any] | str]] = [
        ("verify", {}), ("../admin", {}), ("http://169.254.169.254/", {}), ("add", "{broken"), ("add", {"n": 1}),
    ]  # fmt: skip
    calls = tuple(ToolCall(f"c{number}", *call) for number, call in enumerate(odd_calls))
    messages = [*env.reset(TASK, 0), Message("assistant", "", calls)]
    reply = env.respond(TASK, messages, 0)
    assert [each.tool_call_id for each in reply] == ["c0", "c1", "c2", "c3", "c4"]
    assert "There is no tool 'verify'" in reply[0].content
    assert json.loads(reply[4].content) == {"output": "added"}
    assert [path for path, _ in odd.asked] == ["/seed_session", "/add"]


class Odd:
    """A server that answers as a test says."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        found = self.answers.get(path, OK.get(path, (404, b"{}", {})))
        status, content, headers = found(self) if callable(found) else found
        return status, content, headers


OK: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "/seed_session": (200, b"{}", {"Set-Cookie": "session=abc; HttpOnly"}),
    "/add": (200, b'{"output": "added"}', {}),
    "/verify": (200, b'{"reward": 0.75, "accuracy": true, "id": 4, "part_tidy": 0.5}', {}),
}
TASK = Task(
    "t-1", "Add", {"row": {"id": 4, "responses_create_params": {"input": [{"role": "user", "content": "Add"}]}}}
)
ADD = Message("assistant", "", (ToolCall("c", "add", {"n": 1}),))


@pytest.fixture
def odd() -> Iterator[Odd]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            with found.lock:
                found.asked.append((self.path, dict(self.headers)))
                found.under_way += 1
                found.most = max(found.most, found.under_way)
            status, content, headers = found.answer(self.path)
            with found.lock:
                found.under_way -= 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Whoever lost patience is gone."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        found = Odd(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


def attempt(odd: Odd, gym: Gym | None = None) -> Verdict:
    env = environment(odd.url, [{"name": "add", "parameters": {"type": "object"}}], gym)
    said = iter([ADD, Message("assistant", "Done.")])
    return judged(env, TASK, envs.episode(env, TASK, lambda _: next(said)))


def test_the_reward_is_the_servers_and_its_figures_are_parts(odd: Odd) -> None:
    verdict = attempt(odd)
    assert (verdict.score, dict(verdict.parts)) == (0.75, {"accuracy": 1.0, "tidy": 0.5})
    sent = [headers for path, headers in odd.asked if path != "/seed_session"]
    assert {headers.get("Cookie") for headers in sent} == {"session=abc"}
    assert not {"Authorization", "X-Api-Key"} & {name for _, headers in odd.asked for name in headers}


def slow(_: Odd) -> tuple[int, bytes, dict[str, str]]:
    time.sleep(1.5)
    return OK["/add"]


@pytest.mark.parametrize(
    ("path", "answer", "cause", "reason"),
    [
        ("/seed_session", (500, b"boom", {}), "environment", "500"),
        ("/seed_session", (302, b"", {"Location": "http://127.0.0.1:1/"}), "environment", "redirects are not followed"),
        ("/add", (500, b"", {}), "environment", "/add: it answered 500"),
        ("/add", (404, b"{}", {}), "environment", "404"),
        ("/add", slow, "environment", "no complete answer"),
        ("/add", (200, b"x" * (300 * 1024), {}), "environment", "more than 256 KiB"),
        ("/verify", (500, b'{"detail": "unscored: the sandbox died"}', {}), "environment", "the sandbox died"),
        ("/verify", (200, b"<html>", {}), "environment", "not JSON"),
        ("/verify", (200, b"{}", {}), "nan", "no number"),
        ("/verify", (200, b'{"reward": true}', {}), "nan", "no number"),
        ("/verify", (200, b'{"reward": NaN}', {}), "nan", "nan"),
        ("/verify", (200, b'{"reward": 1.5}', {}), "range", "1.5"),
        ("/verify", (200, b'{"reward": -1}', {}), "range", "-1"),
    ],
)
def test_what_a_server_does_wrong_is_unscored_with_its_cause(
    odd: Odd, path: str, answer: Any, cause: str, reason: str
) -> None:
    odd.answers[path] = answer
    verdict = attempt(odd, Gym(timeout_s=1.0 if answer is slow else PATIENCE_S, patience_s=0.1, backoff_s=0.01))
    assert (verdict.score, verdict.cause) == (None, cause)
    assert reason in verdict.reason
    if path == "/add":
        assert [asked for asked, _ in odd.asked] == ["/seed_session", "/add"], "a call is never sent twice"


def test_what_a_tool_says_against_the_arguments_is_told_to_the_policy(odd: Odd) -> None:
    odd.answers["/add"] = (422, b'{"detail": "n: a number is wanted"}', {})
    env = environment(odd.url, [{"name": "add", "parameters": {"type": "object"}}])
    reply = env.respond(TASK, [*env.reset(TASK, 0), ADD], 0)
    assert reply[0].content == '{"detail": "n: a number is wanted"}'


def test_arguments_that_are_no_json_are_refused_and_not_sent(odd: Odd) -> None:
    env = environment(odd.url, [{"name": "add", "parameters": {"type": "object"}}])
    for arguments in ({"n": float("nan")}, {"n": "\ud800"}):
        call = Message("assistant", "", (ToolCall("c", "add", arguments),))
        reply = env.respond(TASK, [*env.reset(TASK, 0), call], 0)
        assert [each.content for each in reply] == ["The arguments are not JSON."]
    assert "/add" not in [path for path, _ in odd.asked]


def test_a_server_that_is_full_is_waited_for_and_asked_less(odd: Odd) -> None:
    def full(server: Odd) -> tuple[int, bytes, dict[str, str]]:
        time.sleep(0.02)
        return OK["/add"] if server.under_way <= 4 else (503, b"", {})

    odd.answers["/add"] = full
    gym = Gym(timeout_s=PATIENCE_S, patience_s=PATIENCE_S, backoff_s=0.02)
    with ThreadPoolExecutor(40) as pool:
        verdicts = list(pool.map(lambda _: attempt(odd, gym), range(40)))
    assert [verdict.score for verdict in verdicts] == [0.75] * 40
    assert odd.most <= 16


def test_a_server_that_is_away_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment("http://127.0.0.1:1", [], Gym(patience_s=0.3, backoff_s=0.05))
    with pytest.raises(GymError, match="no connection"):
        meet(env, TASK)
    unwaited = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it is waited for again"))
    monkeypatch.setattr(gym_sessions, "time", unwaited)
    verdict = judged(env, TASK, [*env.reset(TASK, 0), Message("assistant", "Hi")])
    assert (verdict.score, verdict.cause) == (None, "environment")


def test_without_the_network_nobody_plays_and_nothing_is_scored() -> None:
    env = NemoGym({"base_url": "http://127.0.0.1:1", "tools": [{"name": "add"}]}, {"kind": "nemo_gym"})
    with pytest.raises(GymError, match="only a worker"):
        env.respond(TASK, [*env.reset(TASK, 0), ADD], 0)
    assert judged(env, TASK, [*env.reset(TASK, 0), Message("assistant", "Hi")]).cause == "refused"


@pytest.mark.parametrize(
    ("config", "verifier", "reason"),
    [
        ({}, {"kind": "nemo_gym"}, "base_url"),
        ({"base_url": "http://x", "tools": [{"name": "verify"}]}, {"kind": "nemo_gym"}, "no address of a tool"),
        ({"base_url": "http://x", "tools": [{"name": "a/b"}]}, {"kind": "nemo_gym"}, "no address of a tool"),
        ({"base_url": "http://x", "max_turns": 0}, {"kind": "nemo_gym"}, "max_turns"),
        ({"base_url": "http://x"}, {"kind": "nemo_gym", "weights": {}}, "no settings"),
        ({"base_url": "http://x"}, {"kind": "rubric", "parts": [{"type": "environment"}]}, "its server's"),
    ],
)
def test_settings_that_cannot_be(config: dict[str, Any], verifier: dict[str, Any], reason: str) -> None:
    with pytest.raises(VerifierError, match=reason):
        envs.build("nemo_gym", config, verifier)


def test_a_setting_that_there_is_not_makes_no_version() -> None:
    with pytest.raises(VerifierError, match="token: there is no such setting"):
        check_new("nemo_gym", {"base_url": "http://x", "token": "s"})
