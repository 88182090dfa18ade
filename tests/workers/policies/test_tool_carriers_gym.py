"""A team's own program at somebody else's NeMo Gym server: its tools are offered, a worker calls them in the attempt's
session, and the server judges that session."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.models import Environment, TaskSet
from flywheel.environments.task_sets import frozen_sets
from flywheel.evals.models import EvalRun, ProgramAttempt
from tests.conftest import Build, Cast
from tests.environments.versions.test_environment_versions_attached import attached, lines, proved
from tests.evals import fake
from tests.evals.conftest import served
from tests.evals.programs import program_version, serve_program, status_of, use_tool
from tests.workers.worlds.test_gym_sessions import Odd, odd, rows
from tests.workers.worlds.test_gym_sessions import served as gym

__all__ = ["gym", "odd", "served"]

pytestmark = pytest.mark.django_db(transaction=True)
ADD = [{"name": "add", "parameters": {"type": "object"}}]
ROW = {"input": "Add", "tools": [{"type": "function", "name": "add", "parameters": {}}]}


def frozen(environment: Environment, cast: Cast, some: list[bytes]) -> TaskSet:
    import_tasks(environment=environment, lines=some, actor=Actor(cast.builder))
    proved(environment)
    return frozen_sets.freeze(environment=environment, name="office", actor=Actor(cast.builder))


def adding(cast: Cast, odd: Odd) -> TaskSet:
    """One task at a server whose verdict is 0 for whatever the proof tries, and what it usually is from then on."""
    odd.answers["/verify"] = (200, b'{"reward": 0}', {})
    task_set = frozen(
        attached(cast, odd.url, ADD), cast, [json.dumps({"id": 4, "responses_create_params": ROW}).encode()]
    )
    odd.answers.clear()
    odd.asked.clear()
    return task_set


def evaluate(build: Build, task_set: TaskSet, does: Callable[[dict[str, Any]], Any]) -> EvalRun:
    with serve_program(does) as program:
        run = fake.submit(build, task_set, program_version(build, url=program.url), samples=1)
        fake.work(run)
    return run


def test_what_a_program_does_there_is_judged_by_the_server(cast: Cast, build: Build, served: str, gym: str) -> None:
    task_set = frozen(attached(cast, gym), cast, lines())
    right = {task.prompt: task.target["calls"] for task in rows()}

    def does(work: dict[str, Any]) -> Any:
        for call in right[work["input"]]:
            assert use_tool(work, call["tool"], call["arguments"])["over"] is False
        return {"output": "Done."}

    run = evaluate(build, task_set, does)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert set(run.results.values_list("score", flat=True)) == {1.0}
    chats = evaluate(build, task_set, lambda _: {"output": "Done."})
    assert set(chats.results.values_list("success", flat=True)) == {False}


def test_one_session_holds_all_of_an_attempt_and_its_verdict(cast: Cast, build: Build, served: str, odd: Odd) -> None:
    task_set = adding(cast, odd)

    def does(work: dict[str, Any]) -> Any:
        assert [use_tool(work, "add", {"n": n})["result"] for n in range(2)] == ['{"output": "added"}'] * 2
        assert "There is no tool" in use_tool(work, "verify", {})["result"]
        return {"output": "Added."}

    run = evaluate(build, task_set, does)
    result = run.results.get()
    assert (result.score, result.parts["tidy"]) == (0.75, 0.5)
    assert [path for path, _ in odd.asked] == ["/seed_session", "/seed_session", "/add", "/add", "/verify"]


def test_what_the_server_does_not_answer_is_no_score(cast: Cast, build: Build, served: str, odd: Odd) -> None:
    task_set = adding(cast, odd)
    odd.answers["/add"] = (500, b"out of paper", {})

    def does(work: dict[str, Any]) -> Any:
        assert status_of(f"{work['tools_url']}/add", {"n": 1}, work["api_key"]) == 422
        return {"output": "It did not work."}

    result = evaluate(build, task_set, does).results.get()
    assert (result.score, result.success) == (None, None)
    assert "/add: it answered 500" in result.error
    odd.answers = {"/verify": (500, b"no judge", {})}
    result = evaluate(build, task_set, lambda _: {"output": "Done."}).results.get()
    assert (result.score, result.cause) == (None, "environment")


def test_its_turns_are_counted_as_a_policys_are(cast: Cast, build: Build, served: str, odd: Odd) -> None:
    task_set = adding(cast, odd)
    over: list[bool] = []

    def does(work: dict[str, Any]) -> Any:
        over.extend(use_tool(work, "add", {"n": n})["over"] for n in range(10))
        return {"output": "Added."}

    run = evaluate(build, task_set, does)
    assert over == [False] * 8 + [True] * 2
    assert run.results.get().score == 0.75
    assert ProgramAttempt.objects.get().state == "ended"
