"""Runs whose calls are carried out elsewhere, with real trainers and the policy that ships: by an MCP server on this
machine, which once does not answer, and by a model."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice
from flywheel.edge.jobs import State
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.training.models import Point, TrainingRun
from tests.conftest import Build
from tests.shop_server import serve_shop
from tests.trajectories.ingest.upstream import completion
from tests.workers.jobs.training.test_run_broker import server
from tests.workers.jobs.training.test_training_runs import Launch, carry_out, launched, page, version
from tests.workers.judge_server import JudgeServer
from workers.reference import story
from workers.worlds import server_lines, tool_servers

__all__ = ["launched", "page", "server"]

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = 2
UNANSWERED = 6
"""Which call is never answered: one of the first step's, after those of a right attempt and of the held-out tasks."""


def run_of(launched: Launch, build: Build, kind: str, config: dict[str, Any]) -> TrainingRun:
    """Practise requests that the policy answers with the right call, mostly, where this kind of environment carries it
    out."""
    base = version(build, tools=story.TOOLS, system_prompt=story.SYSTEM_PROMPT)
    environment = environment_versions.environment(
        project=build.cast.project,
        name=kind,
        actor=Actor(build.cast.builder),
        config={"tools": story.TOOLS, "max_turns": 2, **config},
        verifier={"kind": kind},
        terms=Terms(kind, agent=base.agent, held_out_share=0.5),
    )
    task_set = build.task_set(train=4, held_out=2, environment=environment)
    for task, name in zip(task_set.tasks.all(), ("Ada", "Ben", "Carla", "David", "Emma", "Frank"), strict=True):
        task.prompt = f"Email {name} about the audit."
        call = {"tool": "email.send", "arguments": {"to": name, "subject": "audit"}}
        said = {"role": "user", "content": task.prompt}
        task.state = {"messages": [said], "replies": []} if kind == "episode" else {}
        task.target = {"wanted": [{"type": "calls", "calls": [call]}], "solution": [call]}
        task.save()
    return carry_out(launched(algorithm="grpo", steps=STEPS, base=base, task_set=task_set))


def test_an_mcp_server_is_practised_at_and_an_attempt_whose_tool_never_answers_is_left_out(
    launched: Launch, build: Build, monkeypatch: pytest.MonkeyPatch, page: Callable[[TrainingRun], str]
) -> None:
    monkeypatch.setattr(tool_servers, "Patience", lambda: server_lines.Patience(answer_s=5.0))
    with serve_shop() as (shop, url):
        shop.tools, told, is_over = story.TOOLS, list[str](), threading.Event()

        def answer(handler: Any) -> None:
            number, call = shop.numbers[-1], shop.asked[-1][2]
            told.append(call["name"])
            if len(told) == UNANSWERED:
                is_over.wait(120)
                handler.close_connection = True
            else:
                handler.rpc(number, {"result": {"content": [{"type": "text", "text": "It is sent."}]}})

        shop.faults["tools/call"] = answer
        run = run_of(launched, build, "tool_server", {"base_url": f"{url}/mcp", "protocol": "mcp"})
        is_over.set()
    assert run.state == State.SUCCEEDED, run.error
    assert told.count("email.send") > UNANSWERED, told
    assert run.outside_calls["questions"]["unanswered"] == 1
    steps = [point.values for point in run.points.filter(kind=Point.Kind.STEP).order_by("step")]
    assert sum(values["unscored"] for values in steps) == 1 / 8
    (left,) = run.tried.filter(score=None)
    assert "no complete answer within 5 s" in left.reason
    assert "1 had no answer" in page(run)


def test_a_model_plays_the_tools_and_what_it_takes_is_counted(
    launched: Launch, build: Build, server: JudgeServer, page: Callable[[TrainingRun], str]
) -> None:
    ModelPrice.objects.create(project=build.cast.project, model="m", price_in=1, price_out=1)
    asked = list[str]()

    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(json.dumps(body["messages"]))
        return 200, completion(json.dumps({"result": "It is sent."}))

    server.reply = reply  # type: ignore[method-assign]
    simulator = {"endpoint": "upstream", "model": "m"}
    run = run_of(launched, build, "episode", {"judged": "end", "unknown": "model", "simulator": simulator})
    assert run.state == State.SUCCEEDED, run.error
    report = run.outside_calls["simulator"]
    assert report["requests"] == len(asked) > 8
    assert report["cost_usd"] == pytest.approx(len(asked) * 12 / 1e6)
    assert all(row.score is not None for row in run.tried.all())
    assert f"{len(asked)} requests" in page(run)
