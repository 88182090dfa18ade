"""A team's own tool server as an environment: from its address to a proved task and an eval, through the pages."""

import html
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.accounts.project_settings import provider_keys
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.jobs import State
from flywheel.environments.models import Environment, Play, Task, WorldTrial
from flywheel.environments.playground import episode_moves
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.tasks import own_tasks
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.training.datasets import dataset_builder
from tests.conftest import Build, Cast
from tests.environments.shop import CANCELLED, OWN, work
from tests.evals.fake import carry_out, submit
from tests.pages import page_of
from tests.shop_server import TOOLS, Shop, serve_shop

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
CALLED = {"wanted": [{"type": "calls", "calls": [{"tool": "cancel", "arguments": {"order_id": "1003"}}]}]}


@pytest.fixture
def shop() -> Iterator[tuple[Shop, str]]:
    with serve_shop() as served:
        yield served


def url(cast: Cast, name: str, *args: object) -> str:
    return reverse(f"environments:{name}", args=[cast.project.slug, *args])


def attached(cast: Cast, base_url: str, **config: Any) -> Environment:
    config = {"base_url": base_url, "tools": TOOLS, "resets": True, "shows_state": True, **config}
    return environment_versions.environment(
        project=cast.project,
        name="shop",
        actor=Actor(cast.builder),
        config=config,
        verifier={"kind": "tool_server"},
        terms=Terms("tool_server", held_out_share=0.5),
    )


def test_the_definitions_are_read_by_a_worker_and_frozen(cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]) -> None:
    there, address = shop
    client = sign_in(cast.builder)
    assert "Use a test copy" in page_of(client.get(url(cast, "create") + "?kind=tool_server"))
    sent = {"base_url": address, "protocol": "http", "max_turns": "8", "resets": "on", "shows_state": "on"}
    answer = client.post(
        url(cast, "try_world"), {**sent, "seed": "3", "tool": "get_order", "arguments": '{"order_id": "1003"}'}
    )
    assert "waiting for a worker" in page_of(answer)
    assert there.asked == [], "no web process asks it"
    work()
    trial = WorldTrial.objects.get()
    assert (trial.state, trial.report["answer"], trial.report["is_same"]) == (
        State.SUCCEEDED,
        "Order 1003 is open.",
        True,
    )
    page = page_of(client.get(url(cast, "world_trial", trial.pk)))
    assert 'hx-swap-oob="true"' in page
    assert "Same answers twice" in page
    made = {**sent, "name": "shop", "held_out_share": "0.4", "tools": json.dumps(trial.report["tools"])}
    assert client.post(url(cast, "create") + "?kind=tool_server", made).status_code == 302
    config = Environment.objects.get(name="shop").latest.config
    assert [tool["name"] for tool in config["tools"]] == ["cancel", "get_order"]
    page = page_of(client.get(url(cast, "environment", "shop")))
    assert "Your tool server, at" in page
    assert "Look an order up." in page
    assert "Cancel an order." in page_of(client.get(url(cast, "world", "shop")))
    changed = client.post(url(cast, "world", "shop"), {**made, "max_turns": "4"})
    assert changed.status_code == 302
    assert Environment.objects.get(name="shop").latest.config["max_turns"] == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"base_url": "http://169.254.169.254"}, "it is link-local"),
        ({"tools": ""}, "none is there; read them from the server"),
        ({"tools": "{"}, "This is not JSON"),
        ({"protocol": "mcp", "resets": "on"}, "an MCP server has no way to say so"),
        ({"api_key_env": "secret"}, "name the key or its environment variable"),
        ({"api_key_env": "SHOP_API_KEY"}, "SHOP_API_KEY is bound to no host"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(cast: Cast, sign_in: SignIn, given: dict[str, str], words: str) -> None:
    sent = {"name": "shop", "base_url": "http://shop:8000", "protocol": "http", "max_turns": "8"}
    sent |= {"held_out_share": "0.4", "tools": json.dumps(TOOLS)} | given
    answer = sign_in(cast.builder).post(url(cast, "create") + "?kind=tool_server", sent)
    assert answer.status_code == 422
    assert words in page_of(answer)
    assert not Environment.objects.exists()


def test_a_trial_of_a_server_that_hangs_or_answers_otherwise_says_so(
    cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]
) -> None:
    there, address = shop
    client = sign_in(cast.builder)
    sent = {"base_url": address, "protocol": "http", "max_turns": "8", "tool": "get_order", "seed": "0"}
    there.is_random = True
    client.post(url(cast, "try_world"), {**sent, "arguments": '{"order_id": "1003"}'})
    work()
    page = page_of(client.get(url(cast, "world_trial", WorldTrial.objects.get().pk)))
    assert "Its answers differ the second time." in page
    client.post(url(cast, "try_world"), {**sent, "arguments": "{}"})
    work()
    assert "&#x27;order_id&#x27; is a required property" in str(
        client.get(url(cast, "world_trial", WorldTrial.objects.latest("pk").pk)).content.decode()
    )
    client.post(url(cast, "try_world"), {**sent, "base_url": f"{address}/none", "tool": ""})
    work()
    page = page_of(client.get(url(cast, "world_trial", WorldTrial.objects.latest("pk").pk)))
    assert "The world has an error." in page


def test_trying_keeps_what_was_left_out_and_marked_and_takes_definitions_on_request(
    cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]
) -> None:
    there, address = shop
    client = sign_in(cast.builder)
    sent = {"base_url": address, "protocol": "http", "max_turns": "8", "tool": "cancel", "seed": "0"}
    sent |= {"tools": json.dumps([TOOLS[0] | {"x-unsafe": True}]), "arguments": '{"order_id": "1003"}'}

    def tried() -> tuple[str, str]:
        client.post(url(cast, "try_world"), sent)
        work()
        there = url(cast, "world_trial", WorldTrial.objects.latest("pk").pk)
        return there, page_of(client.get(there))

    _, page = tried()
    assert "hx-swap-oob" not in page
    assert "not offered to agents: <code>get_order</code>. To use all" in page
    assert "differ from those here" not in page
    assert "unsafe" in page
    there.tools = [{**TOOLS[0], "description": "Cancel an order for good."}, TOOLS[1]]
    address, page = tried()
    assert "hx-swap-oob" not in page
    assert "its tool cancel has other description than when they were read" in page
    answer = client.get(address, {"take": "1"})
    taken = json.loads(html.unescape(answer.content.decode()).partition('hx-swap-oob="true">')[2].partition("<")[0])
    assert taken == [{**TOOLS[0], "description": "Cancel an order for good.", "x-unsafe": True}]
    assert "differ from those here" not in page_of(answer)


def test_by_the_api(cast: Cast, client: Client, key: Keys, shop: tuple[Shop, str]) -> None:
    headers = key(Scope.BUILD, Scope.READ)
    sent = {"config": {"base_url": f"{shop[1]}/mcp", "protocol": "mcp"}}
    answer: Any = client.post("/api/v1/world-trials", sent, content_type="application/json", headers=headers)
    assert answer.status_code == 202
    work()
    tools = client.get(f"/api/v1/world-trials/{answer.json()['id']}", headers=headers).json()["tools"]
    assert [tool["name"] for tool in tools] == ["cancel", "get_order"]
    wanted = {"name": "shop", "kind": "tool_server", "config": {**sent["config"], "tools": tools}}
    made: Any = client.post("/api/v1/environments", wanted, content_type="application/json", headers=headers)
    assert made.status_code == 201, made.content


def test_a_task_is_played_by_hand_and_proved_and_the_same_calls_are_made_twice(
    cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]
) -> None:
    there, address = shop
    row = attached(cast, address)
    client = sign_in(cast.builder)
    client.post(url(cast, "write_task", "shop"), {"prompt": "Cancel my order 1003.", "seed": "3"})
    play = Play.objects.get()
    work()
    play.refresh_from_db()
    assert play.world is not None
    assert play.world["now"]["orders"] == {"1003": {"status": "open"}}
    call = Message("assistant", "", (ToolCall("a", "cancel", {"order_id": "1003"}),))
    episode_moves.say(play=play, message=call, at=0)
    work()
    episode_moves.say(play=Play.objects.get(), message=Message("assistant", "It is cancelled."), at=1)
    work()
    answer = client.post(
        url(cast, "say_right", play.pk), {"paths": ["/orders/1003/status"], "rest_same": "on", "words": ""}
    )
    assert answer.status_code == 302
    work()
    task = row.tasks.get()
    assert task.is_proved, task.proof
    assert task.proof["agreement"] == {"calls": 1, "same": 1}
    page = page_of(client.get(url(cast, "task", "shop", task.number)))
    assert "Repeated calls: 1 of 1 identical answers." in page
    assert there.sessions[""] == Shop.fresh({})


def played(row: Environment, cast: Cast) -> Play:
    task = row.tasks.first() or own_tasks.write(
        environment=row, actor=Actor(cast.builder), prompt="Cancel 1003.", state={"seed": 3}
    )
    play = episode_moves.start(task=task, actor=Actor(cast.builder))
    work()
    return Play.objects.get(pk=play.pk)


def moved(play: Play, tool: str = "") -> Play:
    calls = (ToolCall("a", tool, {"order_id": "1003"}),) if tool else ()
    episode_moves.say(play=play, message=Message("assistant", "" if tool else "Done.", calls), at=len(play.moves))
    work()
    return Play.objects.get(pk=play.pk)


def orders(play: Play) -> list[str]:
    """The order's status in the beginning, before the last move, and now."""
    assert play.world is not None
    return [play.world[name]["orders"]["1003"]["status"] for name in ("beginning", "before", "now")]


def test_answers_that_are_others_each_time_can_be_played_on(cast: Cast, shop: tuple[Shop, str]) -> None:
    there, address = shop
    there.is_random = True
    play = played(attached(cast, address), cast)
    assert orders(play) == ["open", "open", "open"]
    play = moved(moved(play, "get_order"), "cancel")
    assert [each["content"] for each in play.messages if each["role"] == "tool"] == [
        "Order 1003 is open. 1",
        "Order 1003 is cancelled. 2",
    ]
    assert orders(play) == ["open", "open", "cancelled"]
    asked = len(there.asked)
    episode_moves.take_back(play=play, at=2)
    work()
    play = Play.objects.get()
    assert orders(play) == ["open", "open", "open"]
    assert len(there.asked) == asked, "it was noted"
    play = moved(play, "cancel")
    assert episode_moves.unanswered(play), "the session is gone, and would be another one now"
    turn = play.turns.first()
    assert turn is not None
    assert "get_order answers otherwise now than it did in this attempt, whose session is gone" in turn.error
    play = moved(moved(played(play.task.environment, cast), "cancel"))
    assert orders(play) == ["open", "cancelled", "cancelled"]
    assert play.is_over


def test_an_answered_move_is_kept_where_the_state_cannot_be_had(
    cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]
) -> None:
    there, address = shop
    play = played(attached(cast, address), cast)
    answers: list[dict[str, Any]] = [{"orders": {}}]

    def once(handler: Any) -> None:
        if answers:
            handler.value(answers.pop())
        else:
            handler.say(500, b"out of paper")

    there.faults["/state"] = once
    play = moved(play, "cancel")
    assert play.messages[-1]["content"] == "Order 1003 is cancelled."
    assert play.world is None
    assert len(there.calls()) == 1
    page = page_of(sign_in(cast.builder).get(url(cast, "play", play.pk)))
    assert "Its state is unknown." in page
    del there.faults["/state"]
    assert orders(moved(play, "get_order")) == ["open", "cancelled", "cancelled"]


def test_a_session_over_mcp_lasts_from_move_to_move_and_ends_with_the_play(
    cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]
) -> None:
    there, address = shop
    row = attached(cast, f"{address}/mcp", protocol="mcp", resets=False, shows_state=False)
    play = moved(moved(played(row, cast), "cancel"), "get_order")
    assert play.messages[-1]["content"] == "Order 1003 is cancelled."
    assert len(there.calls()) == 2
    assert not [each for each in there.asked if each[0] == "DELETE"]
    page = page_of(sign_in(cast.builder).get(url(cast, "play", play.pk)))
    assert "Calls stay in effect even if you undo the move" in page
    moved(play)
    assert len([each for each in there.asked if each[0] == "DELETE"]) == 1


def test_a_trial_ends_its_sessions_whatever_comes_of_it(cast: Cast, sign_in: SignIn, shop: tuple[Shop, str]) -> None:
    there, address = shop
    there.faults["tools/call"] = lambda handler: handler.say(500, b"out of paper")
    sent = {"base_url": f"{address}/mcp", "protocol": "mcp", "max_turns": "8", "tool": "cancel", "seed": "0"}
    sign_in(cast.builder).post(url(cast, "try_world"), {**sent, "arguments": '{"order_id": "1003"}'})
    work()
    assert "out of paper" in WorldTrial.objects.get().report["fault"]
    assert [each[0] for each in there.asked].count("DELETE") == 1


def cancels(request: ChatRequest) -> ChatResponse:
    if request.messages[-1].role == "tool":
        return ChatResponse(text="It is cancelled.", tokens_out=3)
    return ChatResponse(tool_calls=(ToolCall("a", "cancel", {"order_id": "1003"}),), tokens_out=3)


def tasks(row: Environment, build: Build, target: dict[str, Any], count: int = 6) -> list[Task]:
    row.agent = build.agent()
    row.save()
    for number in range(count):
        prompt = f"I am customer {number}. Cancel my order 1003, please."
        state = {"seed": number, "state": OWN}
        own_tasks.write(environment=row, actor=Actor(build.cast.builder), prompt=prompt, state=state, target=target)
    work()
    assert all(task.is_proved for task in row.tasks.all()), [task.proof for task in row.tasks.all()]
    return list(row.tasks.all())


@pytest.mark.parametrize("protocol", ["http", "mcp"])
def test_a_version_is_evaluated_there_and_rows_are_made_of_it(
    cast: Cast, build: Build, shop: tuple[Shop, str], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    _, address = shop
    if protocol == "mcp":
        row = attached(cast, f"{address}/mcp", protocol="mcp", resets=False, shows_state=False)
    else:
        row = attached(cast, address)
    tasks(row, build, CALLED if protocol == "mcp" else CANCELLED)
    task_set = freeze(environment=row, name="shop", actor=Actor(cast.builder))
    run = submit(build, task_set, samples=1)
    carry_out(run, monkeypatch, cancels)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("success", flat=True)) == {True}
    rows = dataset_builder.draft(kind="sft", task_set=task_set, version=build.version(system_prompt="A clerk.")).rows
    told = [row["prompt"][-1]["content"] for row in rows if row["prompt"][-1]["role"] == "tool"]
    assert told
    assert set(told) == {"Order 1003 is cancelled."}


def test_what_the_server_does_not_answer_is_unscored(
    cast: Cast, build: Build, shop: tuple[Shop, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, address = shop
    row = attached(cast, address)
    tasks(row, build, CANCELLED)
    task_set = freeze(environment=row, name="shop", actor=Actor(cast.builder))
    there.faults["/tools/cancel"] = lambda handler: handler.say(500, b"out of paper")
    run = submit(build, task_set, samples=1)
    carry_out(run, monkeypatch, cancels)
    assert run.state == State.SUCCEEDED
    assert set(run.results.values_list("score", flat=True)) == {None}
    result = run.results.first()
    assert result is not None
    assert "out of paper" in result.error
    there.tools = TOOLS[:1]
    again = submit(build, task_set, samples=1)
    carry_out(again, monkeypatch, cancels)
    assert again.state == State.FAILED
    assert "it has no tool get_order any more" in again.error


def test_a_key_goes_where_it_is_bound_and_never_into_the_config(cast: Cast, shop: tuple[Shop, str]) -> None:
    there, address = shop
    provider_keys.enter(
        project=cast.project, actor=Actor(cast.admin), name="SHOP_API_KEY", base_url=address, secret="s3cret"
    )
    row = attached(cast, address, api_key_env="SHOP_API_KEY")
    assert "s3cret" not in json.dumps(row.latest.config)
    own_tasks.write(
        environment=row, actor=Actor(cast.builder), prompt="Cancel 1003.", target=CANCELLED, state={"state": OWN}
    )
    work()
    assert row.tasks.get().is_proved
    assert {headers["Authorization"] for headers in there.headers} == {"Bearer s3cret"}
