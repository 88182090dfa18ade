"""A tool server in a replay, over a socket: it answers what was never recorded, once, and never a 0 for what it did not
do."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.accounts.project_settings import provider_keys
from flywheel.core import envs
from flywheel.core.envs import Task
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse, Sampling, play
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.envs.worlds.server_stand_in import SERVED
from flywheel.core.envs.worlds.tool_stubs import stubs
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Runners, WorldError
from flywheel.environments.models import Environment, WorldTrial
from flywheel.environments.playground import episode_moves
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.versions import environment_versions
from flywheel.evals.attempts.program_rollouts import NOTHING, Action, follow
from flywheel.evals.models import EvalRun
from tests import shop_server
from tests.conftest import Build, Cast
from tests.environments.shop import work
from tests.environments.tasks.test_replay_tasks import failed, make, run
from tests.evals import fake as programs
from tests.evals.conftest import served
from tests.evals.fake import FakeEngine, submit
from tests.evals.programs import CODE, serve_program, use_tool
from tests.pages import page_of
from tests.shop_server import TOOLS, Shop, serve_shop
from workers.jobs import eval_runs
from workers.worlds.gym_sessions import meet
from workers.worlds.server_lines import Patience
from workers.worlds.tool_servers import ToolServers

__all__ = ["served"]

SignIn = Callable[[User], Client]
QUICK = Patience(answer_s=1.0, away_s=0.0, backoff_s=0.01)
ORDER = {"order_id": "1003"}
MAIL: dict[str, Any] = {"name": "mail", "parameters": {"type": "object"}}
BEGUN = [
    Message("user", "Cancel my order 1003."),
    Message("assistant", "", (ToolCall("a", "cancel", ORDER),)),
    Message("tool", "It was done.", (), "a", "cancel"),
    Message("user", "How is it now? Mail it to Ann."),
]
SENT = {"tool": "mail", "arguments": {"to": "Ann"}, "result": "sent"}
WANTED = [{"type": "calls", "calls": [{"tool": "mail", "arguments": {"to": "Ann"}}]}]
TASK = Task(
    "t",
    BEGUN[-1].content,
    {"wanted": WANTED},
    {"messages": [each.to_json() for each in BEGUN], "replies": [SENT]},
)


@pytest.fixture
def shop() -> Iterator[tuple[Shop, str]]:
    with serve_shop() as found:
        yield found


def replay(url: str, servers: ToolServers | None = None, **server: Any) -> envs.Environment:
    settings = {"base_url": url, "tools": TOOLS, **server}
    config = {"tools": [*TOOLS, MAIL], "judged": "end", "unknown": "server", "server": settings}
    return envs.build("episode", config, {"kind": "episode"}, Runners(server=servers or ToolServers(patience=QUICK)))


def mcp(url: str) -> envs.Environment:
    return replay(f"{url}/mcp", protocol="mcp")


def said(*calls: tuple[str, Any]) -> Message:
    return Message("assistant", "", tuple(ToolCall(f"c{n}", *call) for n, call in enumerate(calls)))


LOOKS, MAILS = said(("get_order", ORDER)), said(("mail", {"to": "Ann"}))


def played(env: envs.Environment, *turns: Message) -> list[Message]:
    waiting = list(turns)
    return envs.episode(env, TASK, lambda _: waiting.pop(0) if waiting else Message("assistant", "Done."))


def told(messages: list[Message]) -> list[str]:
    return [each.content for each in messages[len(BEGUN) :] if each.role == "tool"]


def test_each_attempt_has_a_session_in_which_the_recorded_calls_were_made(shop: tuple[Shop, str]) -> None:
    there, url = shop
    env = replay(url, resets=True)
    meet(env, TASK)
    found = played(env, LOOKS, MAILS, LOOKS)
    assert told(found) == [f"{SERVED}Order 1003 is cancelled.", "sent", f"{SERVED}Order 1003 is cancelled."]
    assert env.verifier(TASK)(Trace.from_messages("", found), TASK.target).score == 1.0
    assert len([path for _, path, _ in there.asked if path == "/reset"]) == 1, "what met it goes on"
    assert there.calls() == [ORDER] * 3, "the recorded one, and two that were never recorded"
    played(env, LOOKS)
    assert len([path for _, path, _ in there.asked if path == "/reset"]) == 2


@pytest.mark.parametrize("made", [replay, mcp])
def test_without_a_beginning_to_return_to_no_recorded_call_is_done_again(
    shop: tuple[Shop, str], made: Callable[..., envs.Environment]
) -> None:
    there, url = shop
    seen = [*made(url).reset(TASK, 0), LOOKS]
    seen += [*made(url).respond(TASK, seen, 0), LOOKS]
    seen += made(url).respond(TASK, seen, 0)
    assert told(seen) == [f"{SERVED}Order 1003 is open."] * 2
    assert len(there.calls()) == 2


def test_a_lost_session_is_made_again_and_what_is_answered_otherwise_then_breaks_the_attempt(
    shop: tuple[Shop, str],
) -> None:
    there, url = shop
    seen = [*replay(url, resets=True).reset(TASK, 0), LOOKS]
    seen += [*replay(url, resets=True).respond(TASK, seen, 0), LOOKS]
    again = replay(url, resets=True).respond(TASK, seen, 0)
    assert again[0].content == f"{SERVED}Order 1003 is cancelled."
    there.is_random = True
    with pytest.raises(WorldError, match="get_order answers otherwise now than it did in this attempt"):
        replay(url, resets=True).respond(TASK, seen, 0)


class Looking:
    """An engine that looks, and is done."""

    def chat(self, requests: Any) -> list[ChatResponse]:
        return [self._next(request) for request in requests]

    def _next(self, request: ChatRequest) -> ChatResponse:
        is_told = request.messages[-1].role == "tool"
        return ChatResponse(text="Done.") if is_told else ChatResponse(tool_calls=LOOKS.tool_calls)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (shop_server.hangs, "no complete answer within 1 s"),
        (shop_server.floods, "longer than 8 MiB"),
        (shop_server.fails, "it answered 500 Internal Server Error"),
        (shop_server.redirects, "redirects are not followed"),
        (shop_server.says({"results": 1}), '{"result": …} is wanted'),
    ],
)
def test_what_it_does_not_answer_is_no_score(shop: tuple[Shop, str], fault: shop_server.Fault, problem: str) -> None:
    there, url = shop
    there.faults["/tools/get_order"] = fault
    (rollout,) = play(Looking(), replay(url), [(TASK, 0, 0)], Sampling())
    assert problem in rollout.broken
    assert len(there.calls()) == 1, "it is not sent again"


def test_a_server_that_cannot_be_reached_or_has_other_tools_by_now_is_no_score(shop: tuple[Shop, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = replay(f"http://127.0.0.1:{free.getsockname()[1]}")
        (rollout,) = play(Looking(), away, [(TASK, 0, 0)], Sampling())
        assert "no connection" in rollout.broken
        with pytest.raises(WorldError, match="no connection"):
            meet(away, TASK)
    there, url = shop
    there.tools = [TOOLS[0], TOOLS[1] | {"description": "Delete it."}]
    with pytest.raises(WorldError, match="its tool get_order has other description than when they were read"):
        meet(replay(url), TASK)
    (rollout,) = play(Looking(), replay(url), [(TASK, 0, 0)], Sampling())
    assert "has other description" in rollout.broken
    assert there.calls() == []


def test_a_programs_calls_are_not_asked_again_to_put_its_attempt_together(shop: tuple[Shop, str]) -> None:
    """Those that it carried out at the attempt's tools, and those that it carried out elsewhere."""
    there, url = shop
    env = replay(url, resets=True)
    done = {"c0": Message("tool", f"{SERVED}Order 1003 is cancelled.", (), "c0", "get_order")}
    acts = [Action(LOOKS, NOTHING, done), Action(said(("get_order", {"order_id": "9"})), NOTHING)]
    messages, _, _ = follow(env, TASK, 0, env.reset(TASK, 0), acts)
    assert told(messages) == [done["c0"].content, MARK + ERROR]
    assert there.asked == []


# From the form to an eval


def serve_with(cast: Cast, row: Environment, **settings: Any) -> None:
    config = row.latest.config | {"server": row.latest.config["server"] | settings}
    environment_versions.environment_version(
        environment=row, actor=Actor(cast.builder), config=config, verifier={"kind": "episode"}
    )


@pytest.fixture
def ours(cast: Cast, build: Build, sign_in: SignIn, shop: tuple[Shop, str]) -> Environment:
    """A replay whose server is not asked by any proof, with one proved task."""
    version = build.version(tools=[*TOOLS, MAIL], form="native")
    sent = {
        "name": "replay",
        "version": str(version.pk),
        "judged": "end",
        "unknown": "server",
        "server_base_url": f"{shop[1]}/",
        "server_protocol": "http",
        "server_resets": "on",
        "held_out_share": "1",
    }
    url = reverse("environments:create", args=[cast.project.slug])
    client = sign_in(cast.builder)
    assert "Your tool server that answers unrecorded calls" in page_of(client.get(f"{url}?kind=episode"))
    assert client.post(f"{url}?kind=episode", sent).status_code == 302
    row = Environment.objects.get(name="replay")
    assert row.latest.config["server"] == {"base_url": shop[1], "protocol": "http", "resets": True}
    serve_with(cast, row, tools=TOOLS)
    recorded = [*BEGUN, said(("mail", {"to": "Bob"})), Message("tool", "sent", (), "c0", "mail")]
    task = make(cast, row, failed(cast, run(build, recorded), {"tool": "mail", "arguments": {"to": "Ann"}}, "s4"))
    assert not task.is_proved, "a worker proves it"
    work()
    task.refresh_from_db()
    assert task.is_proved, task.proof
    assert shop[0].asked == [], "verdicts look at calls and words alone"
    return row


def looks_and_mails(request: ChatRequest) -> ChatResponse:
    last = request.messages[-1]
    if last.role == "user":
        return ChatResponse(tool_calls=LOOKS.tool_calls, tokens_out=3)
    if last.name == "get_order":
        return ChatResponse(tool_calls=MAILS.tool_calls, tokens_out=3)
    return ChatResponse(text="Done.", tokens_out=1)


def evaluate(cast: Cast, build: Build, row: Environment, monkeypatch: pytest.MonkeyPatch) -> EvalRun:
    task_set = freeze(environment=row, name="replay", actor=Actor(cast.builder))
    version = build.version(tools=[*TOOLS, MAIL], form="native")
    job = submit(build, task_set, version=version, samples=2)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: FakeEngine(looks_and_mails))
    programs.work(job)
    return job


@pytest.mark.django_db(transaction=True)
def test_an_eval_is_told_what_the_server_answers(
    cast: Cast, build: Build, ours: Environment, shop: tuple[Shop, str], sign_in: SignIn, monkeypatch: Any
) -> None:
    job = evaluate(cast, build, ours, monkeypatch)
    assert (job.state, job.error) == ("succeeded", "")
    assert set(job.results.values_list("score", "reason")) == {(1.0, "the right call")}
    result = job.results.first()
    assert result is not None
    assert result.trajectory is not None
    steps = json.dumps([step.body for step in result.trajectory.steps.all()])
    assert "[from the tool server] Order 1003 is cancelled." in steps
    assert shop[0].calls().count(ORDER) == 4, "in each attempt the recorded one and the one that is not"
    page = page_of(sign_in(cast.builder).get(reverse("environments:environment", args=[cast.project.slug, "replay"])))
    assert "Unrecorded calls are answered by your tool server" in page
    assert "Each attempt gets a new session" in page


@pytest.mark.django_db(transaction=True)
def test_a_server_that_breaks_leaves_its_attempts_unscored_and_one_that_is_away_ends_the_eval(
    cast: Cast, build: Build, ours: Environment, shop: tuple[Shop, str], monkeypatch: Any
) -> None:
    shop[0].faults["/tools/get_order"] = shop_server.fails
    job = evaluate(cast, build, ours, monkeypatch)
    assert set(job.results.values_list("score", "success", "cause")) == {(None, None, "broken")}
    shop[0].faults["/reset"] = shop_server.fails
    job = submit(build, job.task_set, version=job.version, samples=1)
    programs.work(job)
    assert job.state == "failed"
    assert "/reset: it answered 500" in job.error
    assert not job.results.exists()


@pytest.mark.django_db(transaction=True)
def test_a_program_is_answered_by_it_and_nothing_is_asked_twice(
    cast: Cast, build: Build, ours: Environment, shop: tuple[Shop, str], served: str
) -> None:
    def does(work: dict[str, Any]) -> Any:
        assert "cancelled" in use_tool(work, "get_order", ORDER)["result"]
        assert use_tool(work, "mail", {"to": "Ann"})["result"].endswith(ERROR), "nobody recorded it, nor has the server"
        return {"output": "Done."}

    task_set = freeze(environment=ours, name="replay", actor=Actor(cast.builder))
    with serve_program(does) as program:
        about = {"kind": "program", "way": "http", "code": CODE, "timeout_s": 20.0, "url": program.url}
        version = build.version(endpoint=about, tools=[*TOOLS, MAIL], form="native")
        job = submit(build, task_set, version, samples=1)
        programs.work(job)
    assert (job.state, job.error) == ("succeeded", "")
    assert list(job.results.values_list("score", flat=True)) == [1.0]
    assert len(shop[0].calls()) == 2


@pytest.mark.django_db(transaction=True)
def test_it_is_edited_tried_and_frozen_on_its_page(
    cast: Cast, ours: Environment, shop: tuple[Shop, str], sign_in: SignIn
) -> None:
    client, slug = sign_in(cast.builder), cast.project.slug
    world = reverse("environments:world", args=[slug, "replay"])
    assert "Look an order up." in page_of(client.get(world))
    assert "Functions, in Python" in page_of(client.get(f"{world}?by=python"))
    sent = {"base_url": shop[1], "protocol": "http", "resets": "on"}
    trying = {**sent, "seed": "0", "tool": "get_order", "arguments": json.dumps(ORDER)}
    assert "waiting for a worker" in page_of(client.post(reverse("environments:try_world", args=[slug]), trying))
    work()
    trial = WorldTrial.objects.get()
    assert (trial.report["answer"], trial.report["is_same"]) == ("Order 1003 is open.", True)
    assert client.post(world, {**sent, "tools": json.dumps(TOOLS[:1])}).status_code == 302
    config = Environment.objects.get(name="replay").latest.config
    assert config["server"] == {"base_url": shop[1], "protocol": "http", "resets": True, "tools": TOOLS[:1]}
    wrong = {"base_url": "http://169.254.169.254", "protocol": "http", "api_key_env": "", "tools": "[]"}
    refused = client.post(world, wrong)
    assert refused.status_code == 422
    assert "it is link-local" in page_of(refused)
    unbound = client.post(world, {**sent, "api_key_env": "SHOP_API_KEY", "tools": ""})
    assert "SHOP_API_KEY is bound to no host" in page_of(unbound)
    source = stubs("a shop", [MAIL | {"description": "Mail it."}])
    saved = client.post(f"{world}?by=python", {"source": source})
    assert saved.status_code == 302, page_of(saved)
    config = Environment.objects.get(name="replay").latest.config
    assert (config["unknown"], "server" in config) == ("python", False)


@pytest.mark.django_db(transaction=True)
def test_a_key_goes_to_the_host_that_it_is_bound_to(
    cast: Cast, ours: Environment, shop: tuple[Shop, str], monkeypatch: Any, build: Build
) -> None:
    provider_keys.enter(
        project=cast.project, actor=Actor(cast.admin), name="SHOP_API_KEY", secret="s3cret", base_url=shop[1]
    )
    serve_with(cast, ours, api_key_env="SHOP_API_KEY")
    work()
    evaluate(cast, build, ours, monkeypatch)
    assert {headers.get("Authorization") for headers in shop[0].headers} == {"Bearer s3cret"}


@pytest.mark.django_db(transaction=True)
def test_it_is_played_by_hand(cast: Cast, ours: Environment, shop: tuple[Shop, str]) -> None:
    play = episode_moves.start(task=ours.tasks.get(), actor=Actor(cast.builder))
    work()
    episode_moves.say(play=play, message=LOOKS, at=0)
    work()
    play.refresh_from_db()
    episode_moves.say(play=play, message=LOOKS, at=1)
    work()
    play.refresh_from_db()
    assert [each["content"] for each in play.messages[-3:] if each["role"] == "tool"] == [
        f"{SERVED}Order 1003 is cancelled."
    ] * 2
