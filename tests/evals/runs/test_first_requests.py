"""What an eval sends first is what the gateway would send for its version; where not, it is said in which part."""

import json
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.environments.models import Split
from flywheel.environments.task_sets.frozen_sets import freeze
from flywheel.evals.comparisons.run_comparison import CannotCompare, comparison
from flywheel.evals.models import EvalRun
from flywheel.evals.runs.first_requests import NOT_KNOWN, differences
from flywheel.promotions.live_version import make_first
from flywheel.trajectories.ingest.gateway import recorder, routing
from flywheel.trajectories.ingest.gateway import upstream_connection as connections
from tests.conftest import Build, Cast
from tests.environments.tasks.test_seeded_tasks import asked, made, work
from tests.evals import fake
from tests.evals.fake import carry_out, finished, right, submit
from tests.trajectories.ingest.gateway.calls import ask
from tests.trajectories.ingest.upstream import completion, serve

pytestmark = pytest.mark.django_db(transaction=True)


def test_two_versions_that_differ_in_their_prompt_are_asked_differently(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set = build.task_set(held_out=2)
    for prompt in ("Be brief.", "Be long."):
        run = submit(build, task_set, build.version(system_prompt=prompt))
        engine = carry_out(run, monkeypatch)
        assert {request.messages[0].content for request in engine.asked} == {prompt}
        assert differences(run) == []


def test_a_prompt_that_helps_is_told_apart(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def minds(request: ChatRequest) -> ChatResponse:
        return right(request) if "carefully" in request.messages[0].content else ChatResponse("No.")

    task_set = build.task_set(held_out=12)
    versions = [build.version(system_prompt=prompt) for prompt in ("Answer.", "Answer carefully.")]
    before, after = (finished(build, monkeypatch, minds, task_set=task_set, version=one) for one in versions)
    assert [run.summary["metrics"]["success"]["mean"] for run in (before, after)] == [0.0, 1.0]
    assert comparison(after, before)


def test_what_the_gateway_sends_is_what_the_eval_sent(
    build: Build, cast: Cast, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both over real sockets: the server sees the same system prompt, tools and sampling."""
    monkeypatch.setattr(recorder.recorder, "put", lambda _: None)
    monkeypatch.setattr(routing, "_known", type(routing._known)())
    tool = {"name": "send", "description": "Send it.", "parameters": {"type": "object", "properties": {}}}
    with serve() as server:
        server.say(completion("Done."))
        version = build.version(
            endpoint={"kind": "openai", "base_url": server.url, "model": "tiny-1"}, tools=[tool], form="native"
        )
        run = submit(build, build.task_set(held_out=1), version, samples=1)
        fake.work(run)
        make_first(agent=version.agent, version=version, actor=Actor(cast.approver), reason="first")
        _, key = ApiKey.make(cast.project, "gateway", ["gateway"], cast.admin)
        prompt = run.task_set.members.get(split=Split.HELD_OUT).task.prompt
        messages = [{"role": "user", "content": prompt}]
        answer, _ = ask(client, {"authorization": f"Bearer {key}"}, model="assistant@live", messages=messages)
        assert answer.status_code == 200
        connections.forget()
        evaluated, live = (seen.body for seen in server.seen)
    parts = ("messages", "tools", "temperature", "top_p", "max_tokens")
    assert {part: live[part] for part in parts} == {part: evaluated[part] for part in parts}
    assert differences(run) == []


@pytest.mark.parametrize("kind", ["tictactoe", "workplace"])
def test_a_worlds_rules_and_tools_are_no_difference(
    kind: str, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = made(cast, kind)
    work(asked(cast, environment, 8))
    task_set = freeze(environment=environment, name="set", actor=Actor(cast.builder))
    run = submit(build, task_set, split=Split.TRAIN, samples=1)
    carry_out(run, monkeypatch, lambda _: ChatResponse("5", tokens_in=1, tokens_out=1))
    assert differences(run) == []


def test_it_says_in_which_part_an_eval_was_asked_otherwise(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set, version = build.task_set(held_out=2), build.version()
    colder = finished(build, monkeypatch, task_set=task_set, version=version, sampling={"temperature": 0.0})
    assert differences(colder) == ["sampling"]
    run = finished(build, monkeypatch, task_set=task_set, version=version)
    for part in ("system prompt", "tools"):
        changed = EvalRun.objects.get(pk=run.pk)
        changed.first_request[part] = "0" * 64
        assert differences(changed) == [part]


def test_an_eval_from_before_is_compared_with_new_ones_no_more(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(held_out=2)
    old, new = (finished(build, monkeypatch, task_set=task_set, version=build.version()) for _ in range(2))
    EvalRun.objects.filter(pk=old.pk).update(first_request={})
    old.refresh_from_db()
    assert differences(old) == [NOT_KNOWN]
    with pytest.raises(CannotCompare, match=f"{old} was asked with the environment's prompt"):
        comparison(new, old)


def test_what_was_sent_first_outlives_a_worker(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second owner of a run goes on with what the first one noted."""
    run = finished(build, monkeypatch, task_set=build.task_set(held_out=2))
    noted: dict[str, Any] = json.loads(json.dumps(run.first_request))
    assert noted.keys() == {"system prompt", "tools", "sampling", "task"}
    assert run.task_set.tasks.filter(pk=noted["task"]).exists()
