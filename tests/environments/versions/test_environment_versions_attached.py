"""Somebody else's NeMo Gym server as an environment: attached by an admin, proved through it, never trained on."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Scope
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.interop.environment_exports import CannotExport
from flywheel.core.traces import ToolCall
from flywheel.core.verifiers import Runners
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.environments.exchange.environment_packages import exported
from flywheel.environments.exchange.task_files import import_tasks
from flywheel.environments.models import Environment, Split
from flywheel.environments.playground.episode_moves import start
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.task_sets import frozen_sets
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.training.datasets.dataset_builder import build as build_dataset
from tests.conftest import Build, Cast
from tests.evals.fake import carry_out, submit
from tests.workers.worlds.test_gym_sessions import OK, OURS, Odd, odd, rows, served
from workers.judging import attempt_verdicts
from workers.programs import environment_hosting
from workers.worlds.gym_sessions import Gym

__all__ = ["odd", "served"]

pytestmark = pytest.mark.django_db(transaction=True)


def lines() -> list[bytes]:
    """The rows of our own workplace's server, which say which calls are right, as NeMo Gym's own workplace does."""
    found = []
    for task in rows():
        row = dict(task.target["row"])
        tools = [{"type": "function", **tool} for tool in TOOLS]
        calls = [{"name": call["tool"], "arguments": json.dumps(call["arguments"])} for call in task.target["calls"]]
        params = {**row["responses_create_params"], "tools": tools}
        found.append(json.dumps({**row, "responses_create_params": params, "ground_truth": calls}).encode())
    return found


TOOLS: list[dict[str, Any]] = [{**tool, "name": tool["name"].replace(".", "_")} for tool in OURS.tools]


def attached(cast: Cast, base_url: str, tools: list[dict[str, Any]] | None = None) -> Environment:
    return environment_versions.environment(
        project=cast.project,
        name="office",
        actor=Actor(cast.admin),
        config={"base_url": base_url, "tools": TOOLS if tools is None else tools, "max_turns": 8},
        verifier={"kind": "nemo_gym"},
        terms=Terms("nemo_gym"),
    )


def proved(environment: Environment) -> None:
    runners = Runners(python=attempt_verdicts.python, gym=Gym(timeout_s=5, patience_s=0.1, backoff_s=0.01))
    while proof_jobs.prove_some(environment, environment.latest, runners):
        pass


def test_an_eval_plays_and_is_judged_at_the_server_and_nothing_of_it_trains(
    cast: Cast, build: Build, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = attached(cast, served)
    report = import_tasks(environment=environment, lines=lines(), actor=Actor(cast.builder))
    assert (report.made, report.waiting, report.left_out) == (3, 3, 0), report.problems
    assert {task.split for task in environment.tasks.all()} == {Split.HELD_OUT}
    with pytest.raises(Refused, match="wait for a worker"):
        frozen_sets.freeze(environment=environment, name="office", actor=Actor(cast.builder))
    proved(environment)
    for task in environment.tasks.all():
        checks = {check["name"]: check for check in task.proof["checks"]}
        assert task.is_proved, checks
        assert checks["corrected"]["score"] == 1.0
        assert checks["same every time"]["shown"] == "5/5"
    task_set = frozen_sets.freeze(environment=environment, name="office", actor=Actor(cast.builder))
    right = {row.prompt: row.target["calls"] for row in rows()}

    def answer(request: ChatRequest) -> ChatResponse:
        said = [message for message in request.messages if message.role == "assistant"]
        asked = next(message.content for message in request.messages if message.role == "user")
        calls = tuple(ToolCall(f"c{n}", c["tool"], c["arguments"]) for n, c in enumerate(right[asked]))
        return ChatResponse("Done.") if said else ChatResponse(tool_calls=calls)

    run = submit(build, task_set)
    carry_out(run, monkeypatch, answer)
    assert (run.state, run.error) == (State.SUCCEEDED, "")
    assert {(result.score, result.success, result.cause) for result in run.results.all()} == {(1.0, True, "")}
    trajectory = run.results.first().trajectory  # type: ignore[union-attr]
    assert trajectory is not None
    assert trajectory.steps.filter(kind="tool").exists(), "what the server answered is in the rollout"
    with pytest.raises(Refused):
        build_dataset(name="office", task_set=task_set, kind="sft", actor=Actor(cast.trainer))
    with pytest.raises(CannotExport, match="somebody else's server"):
        exported(task_set, ["held_out"])
    with pytest.raises(CannotExport, match="its rows and its verdict are had there"):
        environment_hosting.server(task_set=task_set, splits=["held_out"])
    with pytest.raises(Refused, match="only eval runs play"):
        start(task=environment.tasks.all()[0], actor=Actor(cast.builder))


def test_a_server_that_breaks_leaves_attempts_unscored_and_proofs_red_until_it_is_back(
    cast: Cast, build: Build, odd: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = attached(cast, odd.url, [{"name": "add", "parameters": {"type": "object"}}])
    tools = [{"type": "function", "name": "add", "parameters": {}}]
    good = [
        {"id": n, "responses_create_params": {"input": f"Add {n}", "tools": tools}, "expected": n} for n in range(2)
    ]
    other = {**good[0], "id": 9, "responses_create_params": {"input": "Add", "tools": [{"name": "rm"}]}}
    lines = [json.dumps(row).encode() for row in [*good, other, {"prompt": "?"}]]
    report = import_tasks(environment=environment, lines=lines, actor=Actor(cast.builder))
    assert report.made == 2
    fields = [(problem.line, problem.field) for problem in report.problems]
    assert fields == [(3, "responses_create_params.tools"), (4, "responses_create_params")]
    odd.answers["/verify"] = (500, b"", {})
    proved(environment)
    assert {check["cause"] for task in environment.tasks.all() for check in task.proof["checks"]} == {"environment"}
    assert proof_jobs.spoiled(environment).count() == 2
    odd.answers["/verify"] = (200, b'{"reward": 0.25}', {})
    proof_jobs.forget_spoiled(environment)
    proved(environment)
    assert all(task.is_proved for task in environment.tasks.all())
    assert all("corrected" not in {c["name"] for c in task.proof["checks"]} for task in environment.tasks.all())
    task_set = frozen_sets.freeze(environment=environment, name="office", actor=Actor(cast.builder))
    odd.answers["/add"] = lambda server: OK["/add"] if len(server.asked) % 2 else (500, b"boom", {})
    monkeypatch.setattr("workers.judging.project_judges.Gym", lambda: Gym(timeout_s=2, patience_s=0.1, backoff_s=0.01))

    def answer(request: ChatRequest) -> ChatResponse:
        is_first = request.messages[-1].role == "user"
        return ChatResponse(tool_calls=(ToolCall("c", "add", {"n": 1}),)) if is_first else ChatResponse("Done.")

    run = submit(build, task_set, samples=4)
    carry_out(run, monkeypatch, answer)
    assert run.state == State.SUCCEEDED
    found = {(result.score, result.cause) for result in run.results.all()}
    assert found <= {(0.25, ""), (None, "environment")}
    assert (None, "environment") in found
    assert run.summary["metrics"]["success"]["unscored"] == run.results.filter(score=None).count()
    odd.answers["/seed_session"] = (302, b"", {"Location": "http://127.0.0.1:9/"})
    lost = submit(build, task_set, seed=3)
    carry_out(lost, monkeypatch, answer)
    assert (lost.state, lost.error_kind, lost.results.count()) == (State.FAILED, "environment", 0)


def test_only_an_admin_says_to_whose_server_this_installation_talks(
    cast: Cast, sign_in: Callable[..., Client], client: Client, key: Callable[..., dict[str, str]], odd: Odd
) -> None:
    page = reverse("environments:create", args=[cast.project.slug]) + "?kind=nemo_gym"
    row = {"responses_create_params": {"input": "Hi", "tools": [{"type": "function", "name": "add", "strict": False}]}}
    sent = {"name": "office", "base_url": odd.url + "/", "tools": json.dumps(row) + "\n{}", "max_turns": 4}
    assert sign_in(cast.builder).post(page, sent).status_code == 403
    admin = sign_in(cast.admin)
    for address in ("ftp://x", "http://a:b@host", "http://169.254.169.254/", "http://host/?x=1"):
        assert admin.post(page, sent | {"base_url": address}).status_code == 422, address
    assert admin.post(page, sent).status_code == 302
    environment = Environment.objects.get()
    config = {"base_url": odd.url, "tools": [{"name": "add"}], "max_turns": 4}
    assert environment.latest.config == config
    home = reverse("environments:environment", args=[cast.project.slug, "office"])
    shown = sign_in(cast.builder).get(home).content.decode()
    assert "never trained on" in shown
    assert "Save as the next version" not in shown
    change = {"config": json.dumps(config | {"base_url": "http://elsewhere"}), "verifier": '{"kind": "nemo_gym"}'}
    assert sign_in(cast.builder).post(home + "versions/", change).status_code == 403
    asked = {"name": "other", "kind": "nemo_gym", "config": config}
    for scopes, status in (([Scope.BUILD], 403), ([Scope.BUILD, Scope.ADMIN], 201)):
        headers = key(*scopes, by=cast.admin)
        answer = client.post("/api/v1/environments", asked, "application/json", headers=headers)
        assert answer.status_code == status, answer.content
    assert odd.asked == [], "attaching asks nobody"
