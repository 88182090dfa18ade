"""Worlds that are a team's own tool server: a session for each attempt, and never a 0 for what a server did not do."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flywheel.core.envs import Environment, Task, build, episode
from flywheel.core.envs.kinds import check_new
from flywheel.core.envs.worlds.server_world import KIND, Server
from flywheel.core.envs.worlds.tool_stubs import server_stubs
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Runners, Verdict, VerifierError, WorldError
from tests import shop_server
from tests.shop_server import TOOLS, Shop, serve_shop
from workers.worlds import tool_servers
from workers.worlds.gym_sessions import meet
from workers.worlds.server_lines import Patience
from workers.worlds.tool_servers import ToolServers, read_tools

WANTED = {
    "wanted": [{"type": "state", "paths": {"/orders/1003/status": "cancelled"}, "rest": "same"}],
    "solution": [{"tool": "cancel", "arguments": {"order_id": "1003"}}],
}
CALLS = {"wanted": [{"type": "calls", "calls": WANTED["solution"]}]}
QUICK = Patience(answer_s=1.0, away_s=0.0, backoff_s=0.01)


@pytest.fixture
def shop() -> Iterator[tuple[Shop, str]]:
    with serve_shop() as served:
        yield served


def world(url: str, servers: ToolServers | None = None, **config: Any) -> Environment:
    config = {"base_url": url, "tools": TOOLS, **config}
    return build(KIND, config, {"kind": KIND}, Runners(server=servers or ToolServers(patience=QUICK)))


def stateful(url: str, servers: ToolServers | None = None) -> Environment:
    return world(url, servers, resets=True, shows_state=True)


def mcp(url: str, servers: ToolServers | None = None) -> Environment:
    return world(f"{url}/mcp", servers, protocol="mcp")


def judged(env: Environment, task: Task, messages: Sequence[Message]) -> Verdict:
    return env.verifier(task)(Trace.from_messages("", messages), task.target)


def cancels(seen: Sequence[Message]) -> Message:
    if seen[-1].role == "tool":
        return Message("assistant", "It is cancelled.")
    return Message("assistant", "", (ToolCall("c", "cancel", {"order_id": "1003"}),))


def task_of(target: dict[str, Any], **state: Any) -> Task:
    return Task("t", "Cancel my order 1003.", target, state)


def test_an_attempt_has_a_session_of_its_own_and_is_judged_by_the_state_left_behind(shop: tuple[Shop, str]) -> None:
    there, url = shop
    env, task = stateful(url), task_of(WANTED, seed=7)
    played = episode(env, task, cancels)
    assert [each.content for each in played if each.role == "tool"] == ["Order 1003 is cancelled."]
    assert judged(env, task, played).score == 1.0
    assert judged(env, task, episode(env, task, lambda _: Message("assistant", "It is done."))).score == 0.0
    resets = [body for _, path, body in there.asked if path == "/reset"]
    assert resets[0] == {"seed": 7, "task": {"prompt": "Cancel my order 1003.", "state": None}}
    assert len(there.calls()) == 1, "judging carries nothing out"
    assert there.sessions[""] == Shop.fresh({}), "nobody touched what is outside of a session"


def test_a_task_brings_a_state_of_its_own(shop: tuple[Shop, str]) -> None:
    env: Any = stateful(shop[1])
    task = task_of(WANTED, state={"orders": {"7": {"status": "open"}}})
    assert [table.name for table in env.state(task, env.reset(task, 0))] == ["orders"]
    assert set(env.state(task, env.reset(task, 0))[0].rows) == {"1003", "7"}


def test_a_lost_session_is_made_again_by_the_same_calls(shop: tuple[Shop, str]) -> None:
    there, url = shop
    task = task_of(WANTED)
    played = episode(stateful(url), task, cancels)
    assert judged(stateful(url), task, played).score == 1.0
    assert len(there.calls()) == 2
    there.is_random = True
    verdict = judged(stateful(url), task, played)
    assert (verdict.score, verdict.cause) == (None, "environment")
    assert "cancel answers otherwise now than it did in this attempt" in verdict.reason


@pytest.mark.parametrize("made", [world, mcp])
def test_without_a_reset_no_call_is_ever_made_twice(shop: tuple[Shop, str], made: Callable[..., Environment]) -> None:
    there, url = shop
    task = task_of(CALLS)
    opening = made(url).reset(task, 0)
    said = [*opening, cancels(opening)]
    said += made(url).respond(task, said, 0)
    again = Message("assistant", "", (ToolCall("d", "get_order", {"order_id": "1003"}),))
    said += [again, *made(url).respond(task, [*said, again], 0)]
    assert judged(made(url), task, [*said, Message("assistant", "Done.")]).score == 1.0
    assert len(there.calls()) == 2


def test_what_calls_are_judged_by_asks_nobody(shop: tuple[Shop, str]) -> None:
    task = task_of(CALLS)
    played = episode(world(shop[1]), task, cancels)
    assert judged(build(KIND, {"base_url": shop[1], "tools": TOOLS}, {"kind": KIND}), task, played).score == 1.0


def test_probes_call_nothing_where_harm_stays(shop: tuple[Shop, str]) -> None:
    task = task_of(CALLS)
    assert set(world(shop[1]).probes(task)) == {"empty", "echo", "claims to be done"}
    assert "every tool at once" in stateful(shop[1]).probes(task)


def test_arguments_are_checked_before_anything_is_sent(shop: tuple[Shop, str]) -> None:
    there, url = shop
    env, task = world(url), task_of(CALLS)
    wrong = [ToolCall("a", "cancel", {"order_id": 3}), ToolCall("b", "refund", {}), ToolCall("c", "cancel", "{")]
    said = [*env.reset(task, 0), Message("assistant", "", tuple(wrong))]
    answers = [each.content for each in env.respond(task, said, 0)]
    assert answers[0].startswith("Error: order_id: 3 is not of type 'string'")
    assert answers[1] == "Error: there is no tool 'refund', only cancel, get_order."
    assert there.calls() == []


@pytest.mark.parametrize("made", [world, mcp])
def test_what_a_tool_refuses_is_its_answer(shop: tuple[Shop, str], made: Callable[..., Environment]) -> None:
    env, task = made(shop[1]), task_of(CALLS)
    call = Message("assistant", "", (ToolCall("a", "cancel", {"order_id": "9"}),))
    assert "there is no order 9" in env.respond(task, [*env.reset(task, 0), call], 0)[0].content


FAULTS = [
    (shop_server.hangs, "no complete answer within 1 s", "timeout"),
    (shop_server.floods, "the server's answer is longer than 8 MiB", "output"),
    (shop_server.redirects, "it answered 307 Temporary Redirect, and redirects are not followed", "environment"),
    (shop_server.breaks_off, "the connection broke: IncompleteRead", "environment"),
    (shop_server.fails, "it answered 500 Internal Server Error: out of paper", "environment"),
    (shop_server.babbles, "its answer is not JSON: <html>hello</html>", "environment"),
]


@pytest.mark.parametrize(("fault", "words", "cause"), FAULTS)
@pytest.mark.parametrize(("made", "path"), [(world, "/tools/cancel"), (mcp, "tools/call")])
def test_what_a_server_does_not_answer_is_an_error_with_its_reason_and_is_not_sent_again(
    shop: tuple[Shop, str], made: Callable[..., Environment], path: str, fault: Any, words: str, cause: str
) -> None:
    there, url = shop
    there.faults[path] = fault
    with pytest.raises(WorldError, match="cancel: ") as raised:
        episode(made(url), task_of(CALLS), cancels)
    assert words in str(raised.value)
    assert raised.value.cause == cause
    assert len(there.calls()) == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"answer": "ok"}, 'cancel: {"result": …} is wanted, not {"answer": "ok"}'),
        ({"result": "x" * 300_000}, "cancel: it answered more than 256 KiB"),
    ],
)
def test_an_answer_that_is_none_is_told(shop: tuple[Shop, str], value: Any, words: str) -> None:
    shop[0].faults["/tools/cancel"] = shop_server.says(value)
    with pytest.raises(WorldError) as raised:
        episode(world(shop[1]), task_of(CALLS), cancels)
    assert words in str(raised.value)


@pytest.mark.parametrize("made", [world, mcp])
@pytest.mark.parametrize(
    ("tools", "words"),
    [
        (TOOLS[:1], "it has no tool get_order any more"),
        ([TOOLS[0], {**TOOLS[1], "description": "Do it."}], "its tool get_order has other description than"),
        ([TOOLS[0], {**TOOLS[1], "parameters": {"type": "object"}}], "its tool get_order has other parameters than"),
        ([*TOOLS, TOOLS[0]], "its definitions cannot be used: tools: 'cancel' is there twice"),
    ],
)
def test_a_server_that_has_other_tools_by_now_is_found_out_before_any_attempt(
    shop: tuple[Shop, str], made: Callable[..., Environment], tools: list[dict[str, Any]], words: str
) -> None:
    shop[0].tools = tools
    with pytest.raises(WorldError) as raised:
        meet(made(shop[1]), task_of(CALLS))
    assert words in str(raised.value)


def test_further_tools_of_a_server_are_nobodys_business(shop: tuple[Shop, str]) -> None:
    shop[0].tools = [*TOOLS, {**TOOLS[0], "name": "refund"}]
    assert episode(world(shop[1]), task_of(CALLS), cancels)[-1].content == "It is cancelled."


def test_a_server_that_is_away_says_so() -> None:
    with pytest.raises(WorldError, match="/tools: no connection: "):
        meet(world("http://127.0.0.1:1"), task_of(CALLS))


def test_a_key_is_sent_as_a_bearer_token(shop: tuple[Shop, str]) -> None:
    there, url = shop
    asked: list[tuple[str, str]] = []

    def key_for(name: str, base_url: str) -> str:
        asked.append((name, base_url))
        return "secret-1"

    env = world(url, ToolServers(key_for, QUICK), api_key_env="SHOP_API_KEY")
    meet(env, task_of(CALLS))
    assert asked == [("SHOP_API_KEY", url)]
    assert {headers["Authorization"] for headers in there.headers} == {"Bearer secret-1"}
    with pytest.raises(WorldError, match="the key SHOP_API_KEY of its server is not known here"):
        meet(world(url, api_key_env="SHOP_API_KEY"), task_of(CALLS))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"base_url": "shop"}, "base_url: expected the address of a server"),
        ({"base_url": "http://a:b@shop/"}, "base_url: leave out logins"),
        ({"base_url": "http://169.254.169.254/tools"}, "base_url: it is link-local"),
        ({"base_url": "http://[::1/"}, "base_url: expected the address of a server"),
        ({"protocol": "soap"}, "protocol: 'soap' is unknown; use one of http, mcp"),
        ({"protocol": "mcp", "resets": True}, "resets: an MCP server has no way to say so"),
        ({"shows_state": True}, "shows_state: a state is one attempt's own where the server resets"),
        ({"resets": "yes"}, "resets: expected true or false"),
        ({"tools": []}, "tools: none is there"),
        ({"tools": [{"name": ""}]}, 'tools: tools\\[0\\]: needs a "name"'),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools: 'cancel' is there twice"),
        ({"command": ["sh"]}, "command: there is no such setting"),
    ],
)
def test_a_config_that_is_none_is_refused_at_its_field(config: dict[str, Any], words: str) -> None:
    given = {"base_url": "http://shop:8000", "tools": TOOLS, **config}

    def check() -> None:
        check_new(KIND, given)
        build(KIND, given, {"kind": KIND})

    with pytest.raises(VerifierError, match=words):
        check()


def test_a_target_of_a_state_that_nobody_shows_is_none(shop: tuple[Shop, str]) -> None:
    verdict = judged(world(shop[1]), task_of(WANTED), [Message("user", "?"), Message("assistant", "Done.")])
    assert (verdict.score, verdict.cause) == (None, "target")


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_some_statuses_with_json_are_the_tools_answer(shop: tuple[Shop, str], status: int) -> None:
    shop[0].faults["/tools/cancel"] = lambda handler: handler.value({"detail": "no such order"}, status)
    played = episode(world(shop[1]), task_of(CALLS), cancels)
    assert [each.content for each in played if each.role == "tool"] == ['{"detail": "no such order"}']


@pytest.mark.parametrize(
    ("status", "body"),
    [*((status, b"{}") for status in (401, 402, 403, 405, 408, 410, 413, 429, 503)), (404, b"<html>"), (422, b"")],
)
def test_any_other_status_is_the_servers_fault(shop: tuple[Shop, str], status: int, body: bytes) -> None:
    shop[0].faults["/tools/cancel"] = lambda handler: handler.say(status, body)
    with pytest.raises(WorldError, match=f"cancel: it answered {status} "):
        episode(world(shop[1]), task_of(CALLS), cancels)


def test_what_no_database_takes_is_cleaned_where_it_comes_in(shop: tuple[Shop, str]) -> None:
    there, url = shop
    hostile = b'"a\\u0000b\\ud800c"'
    there.faults["/state"] = lambda handler: handler.say(200, b'{"note": %s}' % hostile)
    there.faults["/tools/cancel"] = lambda handler: handler.say(200, b'{"result": {"note": %s}}' % hostile)
    env: Any = stateful(url)
    task = task_of(WANTED)
    assert env.play(task, env.reset(task, 0)).state == {"note": "a\u2400b\ufffdc"}
    told = next(each.content for each in episode(env, task, cancels) if each.role == "tool")
    told.encode()
    assert "\0" not in told
    there.faults["tools/call"] = lambda handler: handler.say(
        200, b'{"jsonrpc": "2.0", "id": %d, "error": {"code": 1, "message": %s}}' % (len(TOOLS) + 2, hostile)
    )
    with pytest.raises(WorldError, match="it answered the error 1: a\u2400b\ufffdc"):
        episode(mcp(url), task, cancels)


def test_sessions_end_with_their_job_and_the_oldest_before(
    shop: tuple[Shop, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, url = shop

    def ended() -> int:
        return sum(method == "DELETE" for method, _, _ in there.asked)

    servers, task = ToolServers(patience=QUICK), task_of(CALLS)
    env: Any = mcp(url, servers)
    begun = [env.reset(task, 0)] * 3
    monkeypatch.setattr(tool_servers, "SESSIONS_MAX", 2)
    attempts = [episode(env, task, cancels) for _ in begun]
    assert len(attempts) == 3
    assert ended() == 1, "all stand under one key"
    servers.close()
    assert ended() == 3
    servers.close()
    assert ended() == 3
    there.faults["tools/call"] = shop_server.fails
    with pytest.raises(WorldError, match="out of paper"):
        episode(env, task, cancels)
    assert ended() == 4, "what was done in it nobody knows"


@pytest.mark.parametrize("made", [stateful, mcp])
def test_a_session_is_handed_over(shop: tuple[Shop, str], made: Callable[..., Environment]) -> None:
    there, url = shop
    there.is_random = True
    task, first, second = task_of(CALLS), ToolServers(patience=QUICK), ToolServers(patience=QUICK)
    env: Any = made(url, first)
    said = [*env.reset(task, 0), cancels(env.reset(task, 0))]
    said += env.respond(task, said, 0)
    handed = json.loads(json.dumps(first.hand_over()))
    first.close()
    second.take_over(env.server, handed)
    said += [Message("assistant", "", (ToolCall("d", "get_order", {"order_id": "1003"}),))]
    assert made(url, second).respond(task, said, 0)[0].content == "Order 1003 is cancelled. 2"
    assert len(there.sessions) == 2
    numbers = [number for number in there.numbers if number]
    assert len(set(numbers)) == len(numbers), "no number of a question comes twice in a session"


@contextmanager
def started(place: Path, code: str) -> Iterator[str]:
    """The address of a server whose program this is."""
    (place / "server.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "server.py", str(port)], cwd=place, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


PATIENT = Patience(10.0, 20.0, 0.05)


def test_the_guides_server_is_complete(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/worlds.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", guide, re.S) if block.startswith("# server.py"))
    with started(tmp_path, code) as address:
        servers = ToolServers(patience=PATIENT)
        tools = read_tools(servers.line(Server(address, "http", resets=True)))
        env = world(address, servers, tools=tools, resets=True, shows_state=True)
        wanted = [{"type": "state", "paths": {"/orders/1003": "cancelled"}, "rest": "same"}]
        task = task_of({**WANTED, "wanted": wanted}, state={"orders": {"7": "open"}})
        assert judged(env, task, episode(env, task, cancels)).score == 1.0
        assert judged(env, task, episode(env, task, lambda _: Message("assistant", "Done."))).score == 0.0


def test_a_server_to_begin_with_lacks_nothing_but_what_its_tools_do(tmp_path: Path) -> None:
    unwritten = server_stubs("assistant@1", TOOLS)
    raised = 'raise NotImplementedError("this tool is not written yet")'
    before, cancel = unwritten.split("def cancel(")
    code = f"{before}def cancel({cancel.replace(raised, CANCELS, 1)}".replace("return {}", f"return {BEGINNING!r}")
    wanted = [{"type": "state", "paths": {"/orders/1003": "cancelled"}, "rest": "same"}]
    with started(tmp_path, code) as address:
        servers = ToolServers(patience=PATIENT)
        tools = read_tools(servers.line(Server(address, "http", resets=True)))
        assert [tool["name"] for tool in tools] == [tool["name"] for tool in TOOLS]
        env = world(address, servers, tools=tools, resets=True, shows_state=True)
        task = task_of({**WANTED, "wanted": wanted}, state={"notes": ["mine"]})
        assert judged(env, task, episode(env, task, cancels)).score == 1.0
        assert judged(env, task, episode(env, task, lambda _: Message("assistant", "Done."))).score == 0.0
        played = episode(env, task_of(WANTED, state={"orders": {}}), cancels)
        (answer,) = [said.content for said in played if said.role == "tool"]
        assert json.loads(answer) == {"error": "'1003'"}, "what a tool raises is its answer"
        with pytest.raises(WorldError, match="this tool is not written yet"):
            episode(env, task, lambda _: Message("assistant", "", (ToolCall("c", "get_order", {"order_id": "1"}),)))


BEGINNING = {"orders": {"1003": "open"}}
CANCELS = """state["orders"][order_id]
    state["orders"][order_id] = "cancelled"
    return f"Order {order_id} is cancelled."
"""
