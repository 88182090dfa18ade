"""A team's own program in worlds whose tools only a worker carries out: of Python, and at a tool server."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import AttemptKey
from flywheel.core import envs
from flywheel.core.envs.worlds.server_world import MCP, Server
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, TaskSet
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import own_tasks
from flywheel.evals.attempts import attempt_lifecycle, waiting_calls
from flywheel.evals.attempts.attempt_lifecycle import answer, claim_some
from flywheel.evals.models import EvalRun, ProgramAttempt
from tests.conftest import Build, Cast
from tests.environments.pages.world_editor.test_server_forms import CALLED, attached
from tests.environments.shop import CANCELLED, OWN, shop, work
from tests.evals import fake
from tests.evals.conftest import served
from tests.evals.fake import submit
from tests.evals.programs import CODE, ask_model, program_version, serve_program, status_of, use_tool
from tests.shop_server import Shop, fails, serve_shop
from tests.trajectories.ingest.upstream import Answer, completion, serve
from tests.waiting import wait_for
from tests.workers.conftest import sandbox
from workers.judging import project_judges
from workers.policies.program_runs import ProgramRuns
from workers.policies.tool_carriers import ToolCarrier
from workers.worlds.mcp_client import McpLine
from workers.worlds.server_lines import Asked, Patience

__all__ = ["sandbox", "served"]

pytestmark = pytest.mark.django_db(transaction=True)
ORDER = {"order_id": "1003"}


@pytest.fixture
def there() -> Iterator[tuple[Shop, str]]:
    with serve_shop() as found:
        yield found


def tasks_of(row: Environment, build: Build, target: dict[str, Any], count: int = 4) -> TaskSet:
    row.agent = build.agent()
    row.save()
    actor = Actor(build.cast.builder)
    for number in range(count):
        prompt = f"I am customer {number}. Cancel my order 1003, please."
        state = {"seed": number, "state": OWN}
        own_tasks.write(environment=row, actor=actor, prompt=prompt, state=state, target=target)
    work()
    assert all(task.is_proved for task in row.tasks.all())
    return freeze(environment=row, name="shop", actor=actor)


def evaluate(build: Build, task_set: TaskSet, does: Callable[[dict[str, Any]], Any]) -> EvalRun:
    with serve_program(does) as program:
        run = submit(build, task_set, program_version(build, url=program.url), samples=1)
        fake.work(run)
    return run


def cancels(work: dict[str, Any]) -> Any:
    answer = use_tool(work, "cancel", ORDER)
    assert answer["over"] is False, answer
    assert "cancelled" in answer["result"]
    return {"output": "It is cancelled."}


def test_a_world_of_python_is_played_by_a_program(cast: Cast, build: Build, served: str, sandbox: None) -> None:
    run = evaluate(build, tasks_of(shop(cast), build, CANCELLED), cancels)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", "reason")) == {(True, "the wanted state")}


def test_a_program_that_only_says_so_fails(cast: Cast, build: Build, served: str, there: tuple[Shop, str]) -> None:
    task_set = tasks_of(attached(cast, there[1]), build, CANCELLED)
    run = evaluate(build, task_set, lambda _: {"output": "It is cancelled."})
    assert set(run.results.values_list("success", flat=True)) == {False}


def test_a_program_plays_at_a_tool_server_and_no_call_is_carried_out_again_to_judge_it(
    cast: Cast, build: Build, served: str, there: tuple[Shop, str]
) -> None:
    shop, address = there
    task_set = tasks_of(attached(cast, address), build, CANCELLED)
    before = len(shop.calls())
    run = evaluate(build, task_set, cancels)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", "reason")) == {(True, "the wanted state")}
    assert len(shop.calls()) - before == run.results.count()


def test_what_the_server_does_not_answer_leaves_the_attempt_unscored(
    cast: Cast, build: Build, served: str, there: tuple[Shop, str]
) -> None:
    shop, address = there
    task_set = tasks_of(attached(cast, address), build, CANCELLED)
    shop.faults["/tools/cancel"] = fails

    def insists(work: dict[str, Any]) -> Any:
        assert status_of(f"{work['tools_url']}/cancel", ORDER, work["api_key"]) == 422
        assert status_of(f"{work['tools_url']}/get_order", ORDER, work["api_key"]) == 422, "a fault stays"
        return {"output": "I could not cancel it."}

    run = evaluate(build, task_set, insists)
    assert set(run.results.values_list("score", "cause")) == {(None, "not_answered")}
    result = run.results.first()
    assert result is not None
    assert "cancel: it answered 500 Internal Server Error: out of paper" in result.error


def test_a_call_still_open_when_the_program_answers_leaves_the_attempt_unscored(
    cast: Cast, build: Build, served: str, there: tuple[Shop, str]
) -> None:
    shop, address = there
    task_set = tasks_of(attached(cast, address), build, CALLED)
    asked, answered = threading.Event(), threading.Event()

    def slow(handler: Any) -> None:
        asked.set()
        answered.wait(20)
        fails(handler)

    shop.faults["/tools/cancel"] = slow

    def hurries(work: dict[str, Any]) -> Any:
        asked.clear()
        sender = threading.Thread(target=status_of, args=(f"{work['tools_url']}/cancel", ORDER, work["api_key"]))
        sender.start()
        assert asked.wait(20)
        return {"output": "I left it alone."}

    with serve_program(hurries) as program:
        run = submit(build, task_set, program_version(build, url=program.url, concurrency=1), samples=1)
        threading.Timer(2.0, answered.set).start()
        fake.work(run)
    error = "cancel had no answer yet when the program gave its own"
    assert {(each.score, error in each.error) for each in run.results.all()} == {(None, True)}


def test_the_tools_of_an_attempt_are_an_mcp_server_too(
    cast: Cast, build: Build, served: str, there: tuple[Shop, str]
) -> None:
    def speaks_mcp(work: dict[str, Any]) -> Any:
        line = McpLine(Asked(Server(work["mcp_url"], MCP), work["api_key"], Patience(20.0, 0.0, 0.01)))
        line.begin(0, {})
        tools = line.tools()
        assert [tool["name"] for tool in tools] == ["cancel", "get_order"]
        assert tools[0]["inputSchema"]["required"] == ["order_id"]
        assert line.call("nothing", {}).startswith("Error: there is no tool 'nothing'")
        assert "cancelled" in line.call("cancel", ORDER)
        return {"output": "It is cancelled."}

    run = evaluate(build, tasks_of(attached(cast, there[1]), build, CALLED), speaks_mcp)
    assert set(run.results.values_list("success", flat=True)) == {True}, list(run.results.values())


# Turns


@pytest.mark.parametrize("turns", [1, 12])
def test_an_episode_is_over_after_as_many_calls_as_the_world_has_turns(
    cast: Cast, build: Build, served: str, there: tuple[Shop, str], turns: int
) -> None:
    shop, address = there
    task_set = tasks_of(attached(cast, address, max_turns=turns), build, CALLED)
    before = len(shop.calls())

    def goes_on(work: dict[str, Any]) -> Any:
        for _ in range(turns - 1):
            assert use_tool(work, "get_order", ORDER) == {"result": "Order 1003 is open.", "over": False}
        assert use_tool(work, "cancel", ORDER) == {"result": "Order 1003 is cancelled.", "over": False}
        assert use_tool(work, "get_order", ORDER) == {"result": "", "over": True}
        return {"output": "It is cancelled."}

    run = evaluate(build, task_set, goes_on)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", flat=True)) == {True}, list(run.results.values())
    assert len(shop.calls()) - before == turns * run.results.count()


@pytest.mark.parametrize("is_python", [True, False])
def test_calls_of_one_message_are_one_turn_however_many_they_are(
    cast: Cast, build: Build, served: str, sandbox: None, there: tuple[Shop, str], is_python: bool
) -> None:
    world = shop(cast, max_turns=2) if is_python else attached(cast, there[1], max_turns=2)
    task_set = tasks_of(world, build, CANCELLED)
    names = [*["get_order"] * 13, "cancel"]

    def proposes(_: Any) -> Answer:
        functions = [{"name": name, "arguments": json.dumps(ORDER)} for name in names]
        calls = [{"id": f"c{place}", "type": "function", "function": each} for place, each in enumerate(functions)]
        return Answer(completion(None, message={"tool_calls": calls}))

    def obeys(work: dict[str, Any]) -> Any:
        for call in ask_model(work)["tool_calls"]:
            answer = use_tool(work, call["function"]["name"], ORDER)
            assert answer["over"] is False, answer
        return {"output": "It is cancelled."}

    with serve() as model, serve_program(obeys) as program:
        model.say(proposes)
        run = submit(build, task_set, program_version(build, model.url, url=program.url), samples=1)
        fake.work(run)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", flat=True)) == {True}, list(run.results.values())


# Hand to hand


@pytest.fixture
def claimed(cast: Cast, build: Build, there: tuple[Shop, str]) -> Callable[..., ProgramAttempt]:
    """An attempt that is under way, in a world of a tool server."""

    def make(**config: Any) -> ProgramAttempt:
        task_set = tasks_of(attached(cast, there[1], **config), build, CALLED, count=6)
        run = submit(build, task_set, program_version(build, way="pull"), samples=1)
        EvalRun.objects.filter(pk=run.pk).update(state=State.RUNNING)
        member = task_set.members.select_related("task").first()
        assert member is not None
        messages = [{"role": "user", "content": member.task.prompt}]
        ProgramAttempt.objects.create(run=run, task=member.task, sample=0, seed=1, messages=messages)
        [claim] = claim_some(run.version.agent, CODE, 1)
        return claim.attempt

    return make


def carrier(attempt: ProgramAttempt) -> ToolCarrier:
    world = attempt.run.task_set.environment_version
    runners = project_judges.runners(attempt.run.project, world.verifier)
    return ToolCarrier(attempt.run, envs.build(world.environment.kind, world.config, world.verifier, runners))


def asks(attempt: ProgramAttempt) -> tuple[threading.Thread, list[Any]]:
    """A call that waits, as the web process has it; and what came of it."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(waiting_calls.have_carried_out(attempt, "cancel", dict(ORDER)))
        except Exception as error:
            found.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, found


def test_a_call_waits_for_a_worker_and_is_carried_out_once(
    claimed: Callable[..., ProgramAttempt], there: tuple[Shop, str]
) -> None:
    attempt = claimed()
    before = len(there[0].calls())
    waiters = [asks(attempt), asks(attempt)]
    wait_for(lambda: ProgramAttempt.objects.filter(open_call__has_key="name").exists(), "no call waits")
    with carrier(attempt):
        for thread, _ in waiters:
            thread.join(20)
    assert [found[0].result for _, found in waiters] == ["Order 1003 is cancelled."] * 2
    assert len(there[0].calls()) - before == 2
    row = ProgramAttempt.objects.get()
    assert (len(row.uses), row.open_call) == (2, None)


@pytest.mark.parametrize("resets", [True, False])
def test_a_call_at_which_a_worker_was_killed_is_made_again_only_where_the_server_begins_anew(
    claimed: Callable[..., ProgramAttempt], there: tuple[Shop, str], resets: bool
) -> None:
    attempt = claimed(resets=resets, shows_state=False)
    before = len(there[0].calls())
    thread, found = asks(attempt)
    wait_for(lambda: ProgramAttempt.objects.filter(open_call__has_key="name").exists(), "no call waits")
    assert waiting_calls.begin(ProgramAttempt.objects.get())
    assert not waiting_calls.begin(attempt), "another worker is at it"
    with carrier(attempt):
        thread.join(20)
    assert len(there[0].calls()) - before == int(resets)
    if resets:
        assert found[0].result == "Order 1003 is cancelled."
    else:
        assert "cancel was perhaps carried out when a worker stopped, and is not sent again" in str(found[0])
        assert "cancel was perhaps" in waiting_calls.reason(ProgramAttempt.objects.get())


@pytest.mark.parametrize("way", ["http", "pull"])
@pytest.mark.parametrize("resets", [True, False])
def test_an_attempt_that_broke_off_after_a_call_is_made_again_only_where_the_server_begins_anew(
    claimed: Callable[..., ProgramAttempt], resets: bool, way: str
) -> None:
    attempt = claimed(resets=resets, shows_state=False)
    with carrier(attempt):
        waiting_calls.have_carried_out(attempt, "cancel", dict(ORDER))
    gone = timezone.now() - timedelta(hours=1)  # the worker of a program that was called, or the time of one that pulls
    AttemptKey.objects.update(deadline=gone)
    EvalRun.objects.update(state=State.QUEUED)
    run = EvalRun.objects.get()
    run.version.endpoint["way"] = way
    with fake.claim(run) as lease:
        ProgramRuns(lease, run, carrier(attempt)._env, [(attempt.task, 0)])._rows()
    row = ProgramAttempt.objects.get()
    assert (row.state, len(row.uses)) == (("waiting", 0) if resets else ("answered", 1))
    assert ("a server that does not reset" in row.error) is not resets


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_silent_program_is_given_its_attempt_again_only_if_nothing_was_sent(
    claimed: Callable[..., ProgramAttempt], is_sent: bool
) -> None:
    claimed(resets=False, shows_state=False)
    gone = timezone.now() - timedelta(hours=1)
    asked = {"number": 0, "problem": "it did not answer"} if is_sent else None
    ProgramAttempt.objects.update(lease_until=gone, claimed_at=gone, open_call=asked)
    attempt_lifecycle.expire([ProgramAttempt.objects.get()], is_repeatable=False)
    row = ProgramAttempt.objects.get()
    assert row.state == ("answered" if is_sent else "waiting")
    assert waiting_calls.reason(row) == ("it did not answer" if is_sent else "")


def test_looking_for_calls_reads_no_more_than_which_they_are(claimed: Callable[..., ProgramAttempt]) -> None:
    attempt = claimed()
    ProgramAttempt.objects.update(open_call={"number": 0, "name": "cancel", "arguments": ORDER})
    hand = carrier(attempt)
    with CaptureQueriesContext(connection) as queries:
        assert hand._take(ProgramAttempt.objects.all()) == [attempt.pk]
        assert hand._take(ProgramAttempt.objects.all()) == [], "it is in hand"
    assert not any('"uses"' in query["sql"] or '"messages"' in query["sql"] for query in queries)


def test_few_wait_at_once_and_without_a_connection(
    claimed: Callable[..., ProgramAttempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = claimed()
    given_back = threading.Event()
    monkeypatch.setattr(waiting_calls, "give_back", given_back.set)
    monkeypatch.setattr(waiting_calls, "AT_ONCE_EACH", 1)
    thread, found = asks(attempt)
    wait_for(lambda: ProgramAttempt.objects.filter(open_call__has_key="name").exists(), "no call waits")
    with pytest.raises(waiting_calls.Busy, match="1 calls of this attempt wait here already"):
        waiting_calls.have_carried_out(attempt, "cancel", ORDER)
    monkeypatch.setattr(waiting_calls, "AT_ONCE_EACH", 2)
    monkeypatch.setattr(waiting_calls, "AT_ONCE", 1)
    with pytest.raises(waiting_calls.Busy, match="too many calls wait here already"):
        waiting_calls.have_carried_out(attempt, "cancel", ORDER)
    with carrier(attempt):
        thread.join(20)
    assert found[0].result == "Order 1003 is cancelled."
    assert given_back.is_set()
    with carrier(attempt):
        assert waiting_calls.have_carried_out(attempt, "get_order", ORDER).result == "Order 1003 is cancelled."


def test_a_call_is_not_waited_for_for_ever(
    claimed: Callable[..., ProgramAttempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = claimed()
    monkeypatch.setattr(waiting_calls, "MOST_WAIT_S", 0.1)
    with pytest.raises(waiting_calls.Unanswered, match=r"cancel has no answer after 0\.1 s and may be carried out yet"):
        waiting_calls.have_carried_out(attempt, "cancel", ORDER)
    with pytest.raises(waiting_calls.Busy, match="the calls before this one have no answer yet"):
        waiting_calls.have_carried_out(attempt, "cancel", ORDER)


def test_a_program_is_told_when_to_send_its_call_again(
    client: Client, claimed: Callable[..., ProgramAttempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed()
    key = AttemptKey.objects.get()
    monkeypatch.setattr(attempt_lifecycle, "find", lambda *_: ProgramAttempt.objects.get())
    monkeypatch.setattr(waiting_calls, "AT_ONCE", 0)
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "cancel", "arguments": ORDER}}
    for path, body in (("tools/cancel", ORDER), ("mcp", message)):
        url = f"/attempts/{key.public}/{path}"
        answer = client.post(url, body, content_type="application/json", headers={"Authorization": "Bearer x"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert "send this one again later" in answer.json()["detail"]


def test_a_result_that_is_too_large_to_keep_leaves_the_attempt_unscored(
    claimed: Callable[..., ProgramAttempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = claimed()
    monkeypatch.setattr(waiting_calls, "USES_MAX", 10)
    with carrier(attempt), pytest.raises(Refused, match="cancel was carried out and cannot be kept"):
        waiting_calls.have_carried_out(attempt, "cancel", ORDER)
    answer(attempt, "It is cancelled.")
    assert "cancel was carried out and cannot be kept" in waiting_calls.reason(ProgramAttempt.objects.get())


def test_nobody_waits_for_an_attempt_that_is_over(claimed: Callable[..., ProgramAttempt]) -> None:
    attempt = claimed()
    thread, found = asks(attempt)
    wait_for(lambda: ProgramAttempt.objects.filter(open_call__has_key="name").exists(), "no call waits")
    ProgramAttempt.objects.update(state="answered")
    thread.join(20)
    assert "this attempt has its answer already" in str(found[0])
