"""Functions in a replay, from the page on: chosen, edited, tried, and played and proved by a worker."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope, User
from flywheel.core.envs.replay.episode_replay import MARK
from flywheel.core.traces import Message, ToolCall
from flywheel.edge.jobs import State
from flywheel.environments.exchange import environment_packages
from flywheel.environments.models import Environment, Play, Task, WorldTrial
from flywheel.environments.pages.world_editor.world_forms import STARTER
from flywheel.environments.playground import episode_moves
from flywheel.environments.tasks.recorded_tasks import task_from
from tests.conftest import TOOLS, Build, Cast
from tests.environments.shop import OWN, work
from tests.environments.tasks.test_replay_tasks import failed, run
from tests.pages import page_of
from tests.workers.jobs.test_task_proofs_recorded import CANCEL, recorded

pytestmark = pytest.mark.django_db(transaction=True)
SignIn = Callable[[User], Client]
NAMES = ("find_orders", "get_order", "cancel", "refund")
SHOP = [{"name": name, "description": name, "parameters": {"type": "object"}} for name in NAMES]
ONE = '''
def reset(seed: int) -> dict:
    return {}

def get_order(state: dict, order_id: str) -> str:
    """Look it up."""
    return order_id
'''
OTHER = ONE.replace("def get_order", "def other")


def url(cast: Cast, name: str, *args: object) -> str:
    return reverse(f"environments:{name}", args=[cast.project.slug, *args])


def sent(version: Any, **more: Any) -> dict[str, Any]:
    given = {"name": "replay", "version": version.pk, "judged": "end", "unknown": "python", "source": STARTER}
    return given | {"held_out_share": "0.4"} | more


def made(cast: Cast, build: Build, sign_in: SignIn, **more: Any) -> Environment:
    answer = sign_in(cast.builder).post(url(cast, "create") + "?kind=episode", sent(build.version(tools=SHOP), **more))
    assert answer.status_code == 302, page_of(answer)
    return Environment.objects.get()


def test_a_replay_may_begin_with_a_function_for_each_tool(cast: Cast, build: Build, sign_in: SignIn) -> None:
    version = build.version(tools=TOOLS)
    client = sign_in(cast.builder)
    assert f"the tools of {version}" in page_of(client.get(url(cast, "create") + "?kind=episode"))
    page = page_of(client.get(url(cast, "create") + f"?kind=episode&of={version.pk}"))
    assert "def calendar_create_event(" in page
    assert '<option value="python" selected>' in page


def test_a_replay_is_made_with_its_functions_and_no_package_carries_them(
    cast: Cast, build: Build, sign_in: SignIn
) -> None:
    latest = made(cast, build, sign_in).latest
    assert latest.config == {"tools": SHOP, "judged": "end", "unknown": "python", "source": STARTER}
    assert "which no export can carry" in environment_packages.why_not(latest)
    assert "Edit the functions" in page_of(sign_in(cast.builder).get(url(cast, "environment", "replay")))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"source": OTHER}, "this environment has no tool other"),
        ({"source": "def get_order(:\n"}, "line 1"),
    ],
)
def test_what_is_wrong_is_said_and_the_source_is_kept(
    cast: Cast, build: Build, sign_in: SignIn, more: dict[str, str], words: str
) -> None:
    answer = sign_in(cast.builder).post(
        url(cast, "create") + "?kind=episode", sent(build.version(tools=SHOP), **{"source": ONE, **more})
    )
    assert (answer.status_code, Environment.objects.count()) == (422, 0)
    page = page_of(answer)
    assert words in page
    assert "def " in page


def test_functions_are_added_to_a_replay_as_its_next_version(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = made(cast, build, sign_in, unknown="error", source="", judged="next")
    client = sign_in(cast.builder)
    assert "Answer by functions" in page_of(client.get(url(cast, "environment", "replay")))
    page = page_of(client.get(url(cast, "world", "replay")))
    assert "def get_order(" in page
    assert "Attempts are then played to the end" in page
    assert client.post(url(cast, "world", "replay"), {"source": ONE}).status_code == 302
    assert (row.latest.number, row.latest.config) == (
        2,
        {"tools": SHOP, "judged": "end", "unknown": "python", "source": ONE},
    )
    assert client.post(url(cast, "world", "replay"), {"source": OTHER}).status_code == 422
    assert sign_in(cast.reviewer).get(url(cast, "world", "replay")).status_code in (403, 404)


def test_the_same_by_the_api(cast: Cast, build: Build, client: Client, key: Callable[..., dict[str, str]]) -> None:
    version = build.version(tools=SHOP)
    config = {"judged": "end", "unknown": "python", "source": ONE}
    body = {"name": "replay", "kind": "episode", "version": str(version), "config": config}

    def post(**more: Any) -> Any:
        return client.post("/api/v1/environments", body | more, "application/json", headers=key(Scope.BUILD))

    wrong = post(config=config | {"source": OTHER})
    assert (wrong.status_code, "no tool other" in wrong.content.decode()) == (422, True)
    assert post().status_code == 201
    assert Environment.objects.get().latest.config["source"] == ONE


def test_functions_are_tried_before_they_are_saved(cast: Cast, sign_in: SignIn, sandbox: None) -> None:
    client = sign_in(cast.builder)
    given = {"source": STARTER, "seed": "0", "tool": "get_order", "arguments": '{"order_id": "1001"}'}
    client.post(url(cast, "try_world"), given)
    work()
    trial = WorldTrial.objects.get()
    assert trial.state == State.SUCCEEDED, trial.error
    assert "Same answers twice" in page_of(client.get(url(cast, "world_trial", trial.pk)))


def test_a_failure_is_proved_and_played_with_functions_by_a_worker(
    cast: Cast, build: Build, sign_in: SignIn, sandbox: None
) -> None:
    row = made(cast, build, sign_in)
    failure = failed(cast, run(build, recorded(), metadata={"state": OWN}), CANCEL, "s4")
    task, _ = task_from(failure=failure, environment=row, actor=Actor(cast.builder))
    work()
    task = Task.objects.get(pk=task.pk)
    assert task.is_proved, [check for check in task.proof["checks"] if not check["passed"]]
    play = episode_moves.start(task=task, actor=Actor(cast.builder))
    work()
    call = ToolCall("c", "cancel", {"order_id": "1003"})
    episode_moves.say(play=play, message=Message("assistant", "", (call,)), at=0)
    work()
    play = Play.objects.get()
    page = page_of(sign_in(cast.builder).get(url(cast, "play", play.pk)))
    assert f"{MARK}Order 1003 is cancelled." in page
