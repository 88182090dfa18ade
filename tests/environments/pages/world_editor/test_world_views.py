"""A world of a team's own tools, from its source to a proved task: through the pages, and through the API."""

import json
import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Environment, Play, Split, Task, WorldTrial
from flywheel.environments.pages.world_editor.world_forms import STARTER
from flywheel.environments.playground import episode_moves, played_targets
from flywheel.environments.tasks import own_tasks
from tests.conftest import TOOLS, Build, Cast
from tests.environments.shop import CANCELLED, OWN, shop, work
from tests.environments.tasks.test_replay_tasks import failed, run
from tests.pages import page_of
from tests.workers.jobs.test_task_proofs_recorded import CANCEL, recorded

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]


def url(cast: Cast, name: str, *args: object) -> str:
    return reverse(f"environments:{name}", args=[cast.project.slug, *args])


def test_choosing_the_kind_offers_an_example_with_its_tools(cast: Cast, sign_in: SignIn) -> None:
    page = page_of(sign_in(cast.builder).get(url(cast, "create") + "?kind=world"))
    assert "def refund(" in page
    assert "Give the money for a delivered order back." in page
    assert "one of damaged, late, unwanted" in page


def test_a_world_may_begin_with_the_tools_of_an_agent(cast: Cast, build: Build, sign_in: SignIn) -> None:
    version = build.version(tools=TOOLS)
    client = sign_in(cast.builder)
    assert f"the tools of {version}" in page_of(client.get(url(cast, "create") + "?kind=world"))
    page = page_of(client.get(url(cast, "create") + f"?kind=world&of={version.pk}"))
    assert "def calendar_create_event(" in page
    assert "calendar.create_event" in page
    for other in ("x", "recorded"):
        assert "def refund(" in page_of(client.get(url(cast, "create") + f"?kind=world&of={other}")), "none brings any"
    build.trajectory(tools=TOOLS[:1])
    assert "tools from recorded runs" in page_of(client.get(url(cast, "create") + "?kind=world"))
    assert "The tools of recorded runs" in page_of(client.get(url(cast, "create") + "?kind=world&of=recorded"))


def test_a_tool_server_may_begin_with_the_tools_of_an_agent(cast: Cast, build: Build, sign_in: SignIn) -> None:
    client, form = sign_in(cast.builder), url(cast, "create") + "?kind=tool_server"
    assert "the tools" not in page_of(client.get(form)).split("No server yet?")[1].split("without tools")[0]
    assert b"def reset(" in client.get(url(cast, "server_starter")).getvalue()
    version = build.version(tools=TOOLS)
    build.trajectory(tools=TOOLS[:1])
    page = client.get(form)
    assert f"the tools of {version}" in page_of(page)
    for of, whose in ((str(version.pk), str(version)), ("recorded", "recorded runs")):
        address = f"{url(cast, 'server_starter')}?of={of}"
        assert address in page.content.decode()
        answer = client.get(address)
        assert answer["Content-Disposition"] == 'attachment; filename="server.py"'
        source = answer.getvalue().decode()
        assert f"A tool server with the tools of {whose}." in source
        assert "def calendar_create_event(" in source
    assert client.get(url(cast, "server_starter") + "?of=x").status_code == 404


def test_an_environment_is_made_of_the_source(cast: Cast, sign_in: SignIn) -> None:
    sent = {"name": "shop", "source": STARTER, "start": "extend", "max_turns": "8", "held_out_share": "0.4"}
    answer = sign_in(cast.builder).post(url(cast, "create") + "?kind=world", sent)
    assert answer.status_code == 302
    config = Environment.objects.get(name="shop").latest.config
    assert config == {"source": STARTER, "start": "extend", "max_turns": 8}
    page = page_of(sign_in(cast.builder).get(url(cast, "environment", "shop")))
    assert "Write a task" in page
    assert "find_orders" in page


def test_a_world_that_began_with_the_tools_of_an_agent_takes_its_failures(
    cast: Cast, build: Build, sign_in: SignIn, key: Keys, client: Client
) -> None:
    version = build.version(tools=TOOLS)
    sent = {"name": "shop", "source": STARTER, "start": "extend", "max_turns": "8", "held_out_share": "0.4"}
    sign_in(cast.builder).post(url(cast, "create") + f"?kind=world&of={version.pk}", sent)
    assert Environment.objects.get().agent == version.agent
    wanted = {"kind": "world", "config": {"source": STARTER}}
    for name, more, agent in (("own", {}, None), ("of", {"version": str(version)}, version.agent)):
        answer = client.post(
            "/api/v1/environments", {"name": name, **wanted, **more}, "application/json", headers=key(Scope.BUILD)
        )
        assert answer.status_code == 201, answer.content
        made = Environment.objects.get(name=name)
        assert (made.agent, made.latest.config) == (agent, {"source": STARTER})


def test_a_failure_becomes_a_task_whose_page_tells_how_far_the_world_agrees(
    cast: Cast, build: Build, sign_in: SignIn, key: Keys, client: Client
) -> None:
    row = run(build, recorded(), metadata={"state": OWN})
    failed(cast, row, CANCEL, "s4")
    shop(cast)
    page = page_of(sign_in(cast.builder).get(url(cast, "make", row.trace_id)))
    assert "in shop" in page
    answer = sign_in(cast.builder).post(
        url(cast, "make_task", row.trace_id), {"environment": "shop"}, headers={"HX-Request": "true"}
    )
    assert "waiting for its proof" in " ".join(page_of(answer).split())
    work()
    task = Task.objects.get()
    page = page_of(sign_in(cast.builder).get(url(cast, "task", "shop", task.number)))
    assert "1 of 1 answers match" in page
    task.proof["recording"] |= {"same": 0, "first": "get_order: <b>", "refused": "cancel: Error"}
    task.save()
    page = page_of(sign_in(cast.builder).get(url(cast, "task", "shop", task.number)))
    assert "First difference: get_order: &lt;b&gt;." in page
    assert "This world rejects an expected call." in page
    assert "! look" in page
    sent = {"trace_id": row.trace_id}
    again = client.post("/api/v1/environments/shop/tasks", sent, "application/json", headers=key(Scope.BUILD))
    assert (again.status_code, again.json()["number"]) == (200, task.number)


def test_what_is_wrong_with_the_source_is_said_at_it_and_nothing_is_lost(cast: Cast, sign_in: SignIn) -> None:
    broken = STARTER.replace("customer: str) -> list", "customer) -> list")
    sent = {"name": "shop", "source": broken, "start": "extend", "max_turns": "8", "held_out_share": "0.4"}
    answer = sign_in(cast.builder).post(url(cast, "create") + "?kind=world", sent)
    assert answer.status_code == 422
    assert re.search(r"line \d+: find_orders: customer has no type hint; write customer: str", page_of(answer))
    assert answer.context["form"]["source"].value() == broken


def test_a_trial_shows_the_beginning_an_answer_and_whether_it_is_the_same_twice(cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.builder)
    sent = {"source": STARTER, "start": "extend", "max_turns": "8", "seed": "3", "tool": "get_order"}
    answer = client.post(url(cast, "try_world"), {**sent, "arguments": '{"order_id": "1001"}'})
    assert "waiting for a worker" in page_of(answer)
    work()
    trial = WorldTrial.objects.get()
    assert (trial.state, trial.report["is_same"]) == (State.SUCCEEDED, True)
    page = page_of(client.get(url(cast, "world_trial", trial.pk)))
    assert "Same answers twice" in page
    assert "Initial state, with seed 3" in page


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("return {'at': time.time()}", "Its answers differ the second time."),
        ("return {1}", "t returned a set, which is not JSON"),
        ("raise ValueError('no luck')", "raised in line 6, in t"),
    ],
)
def test_a_trial_says_what_is_wrong_with_a_world(cast: Cast, sign_in: SignIn, line: str, words: str) -> None:
    source = f"import time\ndef reset(seed):\n    return {{}}\ndef t():\n    'T.'\n    {line}\n"
    sent = {"source": source, "start": "extend", "max_turns": "8", "seed": "0", "tool": "t"}
    client = sign_in(cast.builder)
    client.post(url(cast, "try_world"), sent)
    work()
    assert words in page_of(client.get(url(cast, "world_trial", WorldTrial.objects.get().pk)))


def test_a_call_that_no_tool_takes_is_refused_before_anything_runs(cast: Cast, sign_in: SignIn) -> None:
    sent = {"source": STARTER, "start": "extend", "max_turns": "8", "seed": "3", "tool": "get_order"}
    answer = sign_in(cast.builder).post(url(cast, "try_world"), {**sent, "arguments": "{}"})
    assert answer.status_code == 422
    assert "is a required property" in page_of(answer)
    assert not WorldTrial.objects.exists()


def test_a_task_is_written_played_and_proved_by_hand(cast: Cast, sign_in: SignIn) -> None:
    shop(cast)
    client = sign_in(cast.builder)
    sent = {"prompt": "Please cancel my order 1003.", "seed": "3", "state": json.dumps(OWN)}
    answer = client.post(url(cast, "write_task", "shop"), sent)
    play = Play.objects.get()
    assert answer["Location"] == url(cast, "play", play.pk)
    work()
    assert "Orders" in page_of(client.get(answer["Location"]))
    client.post(url(cast, "say", play.pk), {"at": "0", "tool": "cancel", "argument-order_id": "1003"})
    assert "the world answers" in page_of(client.get(answer["Location"]))
    work()
    page = page_of(client.get(answer["Location"]))
    assert "Order 1003 is cancelled." in page
    assert "/orders/1003/status is" in page
    right = {"paths": ["/orders/1003/status"], "rest_same": "on"}
    client.post(url(cast, "say_right", play.pk), right)
    work()
    task = Task.objects.get()
    assert task.target == CANCELLED
    assert task.is_proved, [check for check in task.proof["checks"] if not check["passed"]]
    assert "✓" in page_of(client.get(url(cast, "task", "shop", task.number)))


def test_more_changes_than_anybody_can_choose_from_are_refused(
    cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(played_targets, "MOST_CHANGES", 0)
    task = own_tasks.write(
        environment=shop(cast), actor=Actor(cast.builder), prompt="Cancel", state={"seed": 3, "state": OWN}
    )
    play = episode_moves.start(task=task, actor=Actor(cast.builder))
    work()
    call = ToolCall("c", "cancel", {"order_id": "1003"})
    episode_moves.say(play=play, message=Message("assistant", "", (call,)), at=0)
    work()
    client = sign_in(cast.builder)
    assert "places of the world changed, and 0 are the most" in page_of(client.get(url(cast, "play", play.pk)))
    client.post(url(cast, "say_right", play.pk), {"paths": ["/orders/1003/status"], "rest_same": "on"})
    task.refresh_from_db()
    assert own_tasks.is_draft(task)


def test_a_move_taken_back_takes_its_change_of_the_world_along(cast: Cast) -> None:
    row = shop(cast)
    task = own_tasks.write(environment=row, actor=Actor(cast.builder), prompt="Cancel", state={"state": OWN})
    play = episode_moves.start(task=task, actor=Actor(cast.builder))
    work()
    call = ToolCall("c", "cancel", {"order_id": "1003"})
    episode_moves.say(play=play, message=Message("assistant", "", (call,)), at=0)
    work()
    play.refresh_from_db()
    assert play.world is not None
    assert play.world["now"]["orders"]["1003"]["status"] == "cancelled"
    episode_moves.take_back(play=play, at=1)
    work()
    play.refresh_from_db()
    assert play.world["now"] == play.world["beginning"]


def test_the_same_by_the_api(cast: Cast, client: Client, key: Keys) -> None:
    shop(cast)
    headers = key(Scope.BUILD, Scope.READ)
    sent = {"prompt": "Cancel 1003", "state": {"state": OWN}, "target": CANCELLED}
    made = client.post("/api/v1/environments/shop/tasks/own", sent, "application/json", headers=headers)
    assert made.status_code == 201, made.content
    work()
    assert Task.objects.get().is_proved
    again = client.post("/api/v1/environments/shop/tasks/own", sent, "application/json", headers=headers)
    assert "asks and wants the very same" in again.json()["detail"]
    trial = client.post("/api/v1/world-trials", {"config": {"source": STARTER}}, "application/json", headers=headers)
    assert [tool["name"] for tool in trial.json()["tools"]] == ["find_orders", "get_order", "refund", "cancel"]
    work()
    found = client.get(f"/api/v1/world-trials/{trial.json()['id']}", headers=headers).json()
    assert found["report"]["is_same"] is True


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"target": {"wanted": []}}, "wanted: expected a list of at least one item"),
        ({"target": {**CANCELLED, "solution": [{"tool": "sell", "arguments": {}}]}}, "solution.0: sell: unknown tool"),
        ({"state": {"seed": -1}}, "state.seed: -1 is no whole number"),
        ({"state": {"world": 1}}, "state.world: there is no such field, only seed and state"),
        ({"prompt": " "}, "prompt: expected a text of 1 to 20,000 characters"),
    ],
)
def test_a_task_that_cannot_be_is_refused(
    cast: Cast, client: Client, key: Keys, change: dict[str, object], problem: str
) -> None:
    shop(cast)
    sent = {"prompt": "Cancel 1003", "state": {"state": OWN}, "target": CANCELLED, **change}
    made = client.post("/api/v1/environments/shop/tasks/own", sent, "application/json", headers=key(Scope.BUILD))
    assert made.status_code in (409, 422)
    assert problem in made.content.decode()
    assert not Task.objects.exists()


def test_a_draft_that_fell_into_the_sealed_split_is_played_by_whoever_wrote_it(cast: Cast) -> None:
    task = own_tasks.write(environment=shop(cast), actor=Actor(cast.builder), prompt="Cancel", state={"state": OWN})
    Task.objects.update(split=Split.SEALED)
    task.refresh_from_db()
    assert episode_moves.start(task=task, actor=Actor(cast.builder)).pk
    own_tasks.complete(task, CANCELLED, Actor(cast.builder))
    task.refresh_from_db()
    with pytest.raises(Refused, match="is sealed"):
        episode_moves.start(task=task, actor=Actor(cast.builder))
