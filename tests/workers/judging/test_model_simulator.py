"""A model that stands in for tools, asked over a socket: by a proof, and by an eval that reads its answers."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.agents.models import Version
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.traces import ToolCall
from flywheel.edge.refusals import Refused
from flywheel.environments.models import Proving, Task
from flywheel.environments.proofs import proof_jobs
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from flywheel.evals.models import EvalRun
from flywheel.evals.runs import run_budget
from tests.conftest import TOOLS, Build, Cast
from tests.environments.tasks.test_replay_tasks import FIND, failed, make, run
from tests.evals.fake import FakeEngine, submit
from tests.pages import page_of
from tests.trajectories.ingest.upstream import Answer, Seen, Upstream, completion, serve
from tests.workers.judge_server import data_of
from tests.workers.judging.test_project_judges import carry_out
from workers.jobs import eval_runs

pytestmark = pytest.mark.django_db

RIGHT: dict[str, Any] = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}


@pytest.fixture
def upstream(cast: Cast) -> Iterator[Upstream]:
    with serve() as served:
        set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=served.url)
        yield served


def say(result: str) -> bytes:
    return completion(json.dumps({"result": result}))


@pytest.fixture
def task(cast: Cast, build: Build, upstream: Upstream) -> Task:
    """A proved task, whose agent had found and created before; the model knew the first result again, not the other."""
    row = environment(
        project=cast.project,
        name="replay",
        actor=Actor(cast.builder),
        terms=Terms(kind="episode", held_out_share=1.0),
        config={
            "tools": [*TOOLS, FIND],
            "judged": "end",
            "unknown": "model",
            "simulator": {"endpoint": "upstream", "model": "m"},
        },
        verifier={"kind": "episode"},
    )
    upstream.say(say("free on friday"))
    made = make(cast, row, failed(cast, run(build), RIGHT))
    assert not made.is_proved, "only a worker reaches the model"
    prove(cast, made)
    assert made.is_proved
    return made


def prove(cast: Cast, task: Task) -> Proving:
    proving = proof_jobs.ask(task.environment, Actor(cast.builder))
    carry_out(proving)
    task.refresh_from_db()
    return proving


def looks(who: str) -> Any:
    """An agent that looks for somebody else first, whom nobody recorded, and then does what is right."""

    def answer(request: ChatRequest) -> ChatResponse:
        asked = [call for said in request.messages for call in said.tool_calls if call.arguments == {"who": who}]
        if not asked:
            return ChatResponse(tool_calls=(ToolCall("f", "calendar.find", {"who": who}),), tokens_out=3)
        if request.messages[-1].name == "calendar.find":
            return ChatResponse(tool_calls=(ToolCall("r", RIGHT["tool"], RIGHT["arguments"]),), tokens_out=3)
        return ChatResponse(text="Done.", tokens_out=1)

    return answer


def evaluated(cast: Cast, build: Build, task: Task, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> EvalRun:
    task_set = freeze(environment=task.environment, name="replay", actor=Actor(cast.builder))
    job = submit(build, task_set, version=build.version(tools=[*TOOLS, FIND], form="native"), samples=1, **fields)
    monkeypatch.setattr(eval_runs, "open_version", lambda _: FakeEngine(looks("Ada")))
    carry_out(job)
    return job


def test_a_proof_measures_how_often_it_gives_what_was_recorded(
    cast: Cast, task: Task, upstream: Upstream, client: Client
) -> None:
    found = task.proof["simulated"]
    assert (found["calls"], found["same"], found["unread"]) == (2, 1, 0)
    asked = [data_of(seen.body) for seen in upstream.seen]
    assert {data["call"]["tool"] for data in asked} == {"calendar.find", "calendar.create_event"}
    for data in asked:
        known = [{name: row[name] for name in ("tool", "arguments")} for row in [*data["before"], *data["later"]]]
        assert data["call"] not in known, "its own result is held back"
    client.force_login(cast.builder)
    page = page_of(client.get(reverse("environments:environment", args=[cast.project.slug, "replay"])))
    assert "Agreement with recorded results: <span" in page
    assert "<b>50.0" in page.split("Agreement with recorded results")[1][:200]
    upstream.say(say("who knows"))
    client.post(reverse("environments:prove", args=[cast.project.slug, "replay"]), {"measure": "1"})
    carry_out(Proving.objects.order_by("-pk")[0])
    task.refresh_from_db()
    assert (task.is_proved, task.proof["simulated"]["same"]) == (True, 0)


def test_an_eval_is_told_what_the_model_makes_up_and_counts_what_it_took(
    cast: Cast, build: Build, task: Task, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.say(say("Ada is ill"))
    job = evaluated(cast, build, task, monkeypatch)
    assert (job.state, job.error) == ("succeeded", "")
    result = job.results.get()
    assert (result.score, result.reason) == (1.0, "the right call")
    assert result.trajectory is not None
    told = json.dumps([step.body for step in result.trajectory.steps.all()])
    assert "[simulated by a model] Ada is ill" in told
    assert job.simulator["requests"] >= 2, "asked once before the first attempt, then for a call"
    assert job.simulator["models"] == ["tiny-1"]


@pytest.mark.parametrize("content", ["I am only a model.", '{"result": 1, "score": 1}', ""])
def test_nonsense_leaves_the_attempt_unscored_with_its_reason(
    cast: Cast, build: Build, task: Task, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    def answer(seen: Seen) -> Answer:
        return Answer(completion(content) if "Ada" in seen.raw.decode() else say("ok"))

    upstream.say(answer)
    job = evaluated(cast, build, task, monkeypatch)
    result = job.results.get()
    assert (result.score, result.success) == (None, None)
    assert "the simulator's answer" in result.reason


def test_a_model_that_is_away_ends_the_eval_before_its_first_attempt(
    cast: Cast, build: Build, task: Task, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.say(Answer(b'{"error": {"message": "no such model"}}', status=404))
    job = evaluated(cast, build, task, monkeypatch)
    assert job.state == "failed"
    assert "the simulator did not answer" in job.error
    assert not job.results.exists()


def test_dollars_are_limited_where_the_models_price_is_known_alone(cast: Cast, build: Build, task: Task) -> None:
    task_set = freeze(environment=task.environment, name="replay", actor=Actor(cast.builder))
    endpoint = {"kind": "openai", "base_url": "http://x/v1", "model": "own", "price_in": 1, "price_out": 2}
    version = build.version(endpoint=endpoint)
    with pytest.raises(Refused, match=r"budget\.usd: the simulator asks the upstream's model 'm', whose price nobody"):
        submit(build, task_set, version, budget={"usd": 1})
    ModelPrice.objects.create(project=cast.project, model="m", price_in=1, price_out=2)
    assert submit(build, task_set, Version.objects.get(pk=version.pk), budget={"usd": 1}).budget == {"usd": 1.0}


def test_a_budget_of_tokens_ends_where_the_simulator_tells_none(
    cast: Cast, build: Build, task: Task, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.say(json.dumps({key: value for key, value in json.loads(say("ok")).items() if key != "usage"}).encode())
    job = evaluated(cast, build, task, monkeypatch, budget={"tokens": 1_000})
    assert (job.simulator["tokens_in"], job.simulator["tokens_out"]) == (None, None)
    assert run_budget.of_simulator(job).tokens is None
    assert "does not say how many tokens an answer takes" in run_budget.spent(job, timedelta(0))
