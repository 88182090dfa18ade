"""NeMo Gym's protocol over our environments, spoken by an ordinary HTTP client."""

import base64
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from flywheel.core.envs import Environment, Task, build, episode
from flywheel.core.interop import foreign_attempt, gym_server
from flywheel.core.interop.gym_http import Server
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.openai_messages import definitions, items, names, policy_messages
from flywheel.core.verifiers import unscored
from tests.interop.environments import SOURCES, export_of, tasks_of
from tests.interop.policy import as_called

TOKEN = "only-for-tests"


class Caller:
    """It keeps the cookies of the last answer alone, as NeMo Gym's agents do."""

    def __init__(self, url: str, token: str = f"Bearer {TOKEN}") -> None:
        self.url, self.token, self.cookie = url, token, ""

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": self.token, "Cookie": self.cookie}
        request = urllib.request.Request(f"{self.url}/{path}", content, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                self.cookie = (answer.headers.get("Set-Cookie") or "").partition(";")[0]
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def env_of(kind: str) -> Environment:
    export = export_of(kind)
    return build(export.kind, export.config, export.verifier)


@pytest.fixture(params=SOURCES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), gym_server.Gym(env_of(kind), {t.id: t for t in tasks_of(kind)}), TOKEN) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def row_of(env: Environment, task: Task) -> dict[str, Any]:
    return gym_server.row_of(env, task, number=0, environment="own@1", split="train", agent="own_agent")


def solved(env: Environment, task: Task) -> list[Message]:
    messages = episode(env, task, lambda seen: as_called(env, env.solve(task, seen)))
    return messages[len(env.reset(task, 0)) :]


def test_the_right_way_is_worth_one_and_nothing_is_worth_little(server: Server, kind: str) -> None:
    env = server.gym.env
    for task in tasks_of(kind):
        for attempt, low, high in ((solved(env, task), 1.0, 1.0), ([Message("assistant", "Lovely weather.")], 0, 0.5)):
            caller = Caller(server.url)
            row = row_of(env, task)
            assert caller.post("seed_session", row) == (200, {})
            assert caller.cookie
            for message in attempt:
                for call in message.tool_calls:
                    status, body = caller.post(names_of(env)[call.name], call.arguments)
                    assert status == 200
                    assert isinstance(body["output"], str)
            status, body = caller.post("verify", row | {"response": {"output": items(attempt)}})
            assert status == 200
            assert low <= body["reward"] <= high
            assert body["responses_create_params"] == row["responses_create_params"]
            assert all(isinstance(body[key], float) for key in body if key.startswith("part_"))


def names_of(env: Environment) -> dict[str, str]:
    return {own: outside for outside, own in names(env.tools).items()}


@pytest.mark.parametrize("kind", ["tictactoe", "workplace"], indirect=True)
def test_turn_by_turn_as_the_gymnasium_agent_plays(server: Server, kind: str) -> None:
    env, task = server.gym.env, tasks_of(kind)[0]
    caller, row = Caller(server.url), row_of(server.gym.env, tasks_of(kind)[0])
    assert caller.post("reset", row) == (200, {"observation": None, "info": {}})
    turns = [message for message in solved(env, task) if message.role == "assistant"]
    for message in turns[:-1]:
        status, body = caller.post("step", row | {"response": {"output": items([message])}})
        assert (status, body["terminated"], body["reward"]) == (200, False, 0.0)
        assert bool(body["observation"]) == (kind == "tictactoe")
        assert len(body["info"]["tool_outputs"]) == len(message.tool_calls)
    status, body = caller.post("step", row | {"response": {"output": items([turns[-1]])}})
    assert (status, body["terminated"], body["reward"]) == (200, True, 1.0)
    for message in turns:  # the reward of an episode is given once
        status, body = caller.post("step", row | {"response": {"output": items([message])}})
        assert (status, body) == (409, {"detail": "This episode is over. POST a row to /reset for the next one."})
    assert caller.post("reset", row)[0] == 200
    assert caller.post("step", row | {"response": {"output": items([turns[0]])}})[0] == 200


@pytest.mark.parametrize("kind", ["workplace"], indirect=True)
def test_a_last_turn_without_a_score_may_be_judged_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    caller, row = Caller(server.url), row_of(server.gym.env, tasks_of("workplace")[0])
    caller.post("reset", row)
    last = row | {"response": {"output": items([Message("assistant", "Done.")])}}
    with monkeypatch.context() as away:
        away.setattr(foreign_attempt, "judge", lambda *_: unscored("the judge is away"))
        assert caller.post("step", last)[0] == 500
    status, body = caller.post("step", last)
    assert (status, body["terminated"]) == (200, True)
    assert caller.post("step", last)[0] == 409


@pytest.mark.parametrize("kind", ["workplace"], indirect=True)
def test_many_sessions_at_once_do_not_meet(server: Server) -> None:
    task = tasks_of("workplace")[0]
    row = row_of(server.gym.env, task)
    ours = names_of(server.gym.env)

    def play(number: int) -> tuple[str, str]:
        caller = Caller(server.url)
        caller.post("seed_session", row)
        person = server.gym.env.world(task).tables["contacts"]["00000000"]["email"]  # type: ignore[attr-defined]
        made = {"task_name": f"Own {number}", "assigned_to_email": person, "list_name": "Backlog"}
        caller.post(ours["project_management.create_task"], made | {"due_date": "2023-12-04", "board": "Design"})
        return caller.cookie, caller.post(ours["project_management.search_tasks"], {"task_name": "Own"})[1]["output"]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(play, range(16)))
    assert len({cookie for cookie, _ in found}) == 16
    for number, (_, output) in enumerate(found):
        assert [row["task_name"] for row in json.loads(output)] == [f"Own {number}"]


@pytest.mark.parametrize("kind", ["tool_call"], indirect=True)
def test_no_answer_waits_for_the_callers_word_of_its_head(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[socket.socket] = []
    take = server.get_request

    def kept() -> tuple[socket.socket, Any]:
        found = take()
        taken.append(found[0])
        return found

    monkeypatch.setattr(server, "get_request", kept)
    host, port = server.server_address[:2]
    caller = http.client.HTTPConnection(str(host), port)
    for _ in range(2):
        caller.request("GET", "/health")
        assert caller.getresponse().read()
    assert [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in taken] == [1]
    caller.close()


@pytest.mark.parametrize("kind", ["tool_call"], indirect=True)
def test_what_cannot_be_scored_is_an_error_and_no_reward(server: Server) -> None:
    task = Task("broken", "Mail Bako", {"arguments": 5})
    server.gym.tasks = {"broken": task}
    row = row_of(server.gym.env, task)
    call = Message("assistant", "", (ToolCall("c", "search", {"q": "x"}),))
    for response in ({"output": items([call])}, {"output": [], "status": "failed"}):
        status, body = Caller(server.url).post("verify", row | {"response": response})
        assert status == 500
        assert "unscored" in body["detail"]
        assert "reward" not in body


@pytest.mark.parametrize("kind", ["tool_call"], indirect=True)
def test_the_rows_answer_is_not_believed(server: Server) -> None:
    task = tasks_of("tool_call")[0]
    row = row_of(server.gym.env, task)
    assert "Bako" not in json.dumps(row["verifier_metadata"])
    wrong = Message("assistant", "", (ToolCall("c", "search", {"q": "x"}),))
    row["verifier_metadata"]["target"] = row["ground_truth"] = {"tool": "search", "arguments": {"q": "x"}}
    status, body = Caller(server.url).post("verify", row | {"response": {"output": items([wrong])}, "reward": 1.0})
    assert status == 200
    assert body["reward"] < 0.5


@pytest.mark.parametrize("kind", ["tool_call"], indirect=True)
def test_who_has_no_token_and_what_is_malformed(server: Server) -> None:
    task = tasks_of("tool_call")[0]
    row = row_of(server.gym.env, task)
    assert Caller(server.url, "").post("seed_session", row)[0] == 401
    assert Caller(server.url, "Bearer wrong").post("seed_session", row)[0] == 401
    login = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    assert Caller(server.url, f"Basic {login}").post("seed_session", row)[0] == 200
    assert Caller(server.url, "Basic %%%").post("seed_session", row)[0] == 401
    caller = Caller(server.url)
    assert caller.post("mail_send", {"to": "Bako"})[0] == 400, "no session"
    assert caller.post("verify", row)[0] == 422, "no response"
    assert caller.post("verify", row | {"response": {"output": [5]}})[0] == 422
    assert caller.post("seed_session", {"verifier_metadata": {"task": "t-99"}})[0] == 422
    assert caller.post("seed_session", row | {"verifier_metadata": {"task": task.id, "seed": "x"}})[0] == 422
    assert caller.post("seed_session", b"[1]")[0] == 422
    assert caller.post("seed_session", b"{")[0] == 422
    caller.post("seed_session", row)
    assert "no tool" in caller.post("rm_rf", {})[1]["output"]
    for _ in range(300):
        status, _ = caller.post("search", {"q": "x"})
    assert status in (200, 429)


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_server, "SESSIONS_MAX", 3)
    task = tasks_of("tool_call")[0]
    served = gym_server.Gym(env_of("tool_call"), {task.id: task})
    begun = [served.answer("seed_session", row_of(served.env, task)).session for _ in range(5)]
    answers = [served.answer("search", {"q": "x"}, session).status for session in begun]
    assert answers == [400, 400, 200, 200, 200]


def test_figures_are_means() -> None:
    found = gym_server.aggregate([{"reward": 1.0, "part_win": 1.0}, {"reward": 0.0, "part_win": 0.0, "reason": "x"}])
    assert found["agent_metrics"] == {"mean/reward": 0.5, "mean/part_win": 0.5}
    assert found["key_metrics"] == {"mean/reward": 0.5}
    assert gym_server.aggregate("nonsense")["agent_metrics"] == {}


def test_names_are_those_that_functions_may_have() -> None:
    tools = [{"name": "mail.send"}, {"name": "mail_send"}]
    with pytest.raises(ValueError, match="rename one"):
        names(tools)
    assert [tool["name"] for tool in definitions(tools[:1])] == ["mail_send"]
    with pytest.raises(ValueError, match="address of its own"):
        gym_server.Gym(build("tool_call", {"tools": [{"name": "verify", "parameters": {}}]}, {"kind": "tool_call"}), {})


def test_what_was_said_is_grouped_into_turns() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "mail_send", "arguments": '{"to": "Bako"}'}
    bad = {"type": "function_call", "call_id": "b", "name": "mail_send", "arguments": "{"}
    output = {"type": "function_call_output", "call_id": "a", "output": "…"}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    asked = {"role": "user", "content": "And?"}
    found = policy_messages(
        [{"type": "reasoning"}, text, call, bad, output, output, text, asked, text], [{"name": "mail.send"}]
    )
    assert [(message.content, len(message.tool_calls)) for message in found] == [("Hi", 2), ("Hi", 0), ("Hi", 0)]
    assert found[0].tool_calls == (ToolCall("a", "mail.send", {"to": "Bako"}), ToolCall("b", "mail.send", "{"))
    assert policy_messages(items(found), [{"name": "mail.send"}]) == found
