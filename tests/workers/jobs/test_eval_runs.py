"""Carrying out an eval run, with a scripted engine: what is stored, what is unscored, what ends it, what goes on."""

import json
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.agents.artifacts import store
from flywheel.agents.models import Artifact
from flywheel.core import envs, verifiers
from flywheel.core.envs.policy_rollouts import ChatRequest, ChatResponse
from flywheel.core.envs.tool_call import ToolCallEnvironment
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.environments import ledger
from flywheel.environments.models import JudgeMemory, Split, TaskSetMember
from flywheel.environments.task_sets.leaks import trained_on
from flywheel.evals import run_rescores
from flywheel.evals.models import EvalRun, Result
from flywheel.evals.runs.submission import attempt_seed, resume
from flywheel.evals.runs.unanswered_attempts import can_resume
from flywheel.promotions.models import Candidate
from flywheel.training.datasets import dataset_builder
from flywheel.training.models import Dataset, TrainingRun
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.store.stored_traces import traces_of
from tests.conftest import Build
from tests.evals.fake import FakeEngine, carry_out, claim, finished, right, say, submit, work, wrong
from tests.worker import Worker
from workers.jobs import eval_runs

pytestmark = pytest.mark.django_db(transaction=True)


def test_every_attempt_is_judged_and_stored_as_a_rollout(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(build, build.task_set(held_out=8), samples=2)
    engine = carry_out(run, monkeypatch)
    assert (run.state, run.done, run.total) == (State.SUCCEEDED, 16, 16)
    assert engine.is_closed
    results = list(run.results.select_related("task", "trajectory"))
    assert len({(result.task_id, result.sample) for result in results}) == 16
    for result in results:
        assert (result.success, result.score, result.tokens_in, result.latency_ms) == (True, 1.0, 20, 5.0)
        assert result.trajectory is not None
        assert result.trajectory.source == Source.ROLLOUT
        assert result.trajectory.outcome == "success"
        assert result.trajectory.version == run.version
        assert result.trajectory.session_id == result.task.cluster
        assert result.trajectory.metadata["state"] == result.task.state
    assert run.summary["metrics"]["success"]["mean"] == 1.0
    assert run.summary["buckets"]["guards a success"]["tasks"] == 8


def test_log_probabilities_are_kept_of_what_may_be_trained_on_and_reach_a_dataset_of_attempts(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set = build.task_set(train=2, held_out=1)
    answers = {True: right, False: wrong}

    def told(request: ChatRequest) -> ChatResponse:
        answer = answers[request.seed % 2 == 0](request)
        if not request.tells_tokens:
            return answer
        return replace(answer, token_ids=(7, 8, 2), logprobs=(-0.12345678, 0.0, -1.5))

    held_out = carry_out(submit(build, task_set, samples=1), monkeypatch, told)
    assert not any(request.tells_tokens for request in held_out.asked)
    run = submit(build, task_set, split=Split.TRAIN, samples=6)
    asked = carry_out(run, monkeypatch, told).asked
    assert all(request.tells_tokens for request in asked)
    (result,) = run.results.all()[:1]
    assert result.trajectory is not None
    trace = traces_of([result.trajectory])[result.trajectory.pk]
    sampled = {"token_ids": [7, 8, 2], "logprobs": [-0.123457, 0.0, -1.5]}
    assert [step.sampling for step in trace.steps if step.kind == "assistant"] == [sampled]
    made = dataset_builder.build(
        name="tried", kind="scored", task_set=task_set, actor=Actor(build.cast.trainer), rollouts=run
    )
    with dataset_builder.open_rows(made) as file:
        rows = [json.loads(line) for line in file]
    assert [{name: row[name] for name in sampled} for row in rows] == [sampled] * len(rows)
    assert (made.recipe["scores"]["recorded"], made.recipe["scores"]["answers"]) == (len(rows), len(rows))
    greedy = submit(build, task_set, split=Split.TRAIN, samples=1, sampling={"temperature": 0.0})
    assert not any(request.tells_tokens for request in carry_out(greedy, monkeypatch, told).asked), "nothing is drawn"


def test_what_nobody_may_look_at_is_judged_and_not_kept(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(sealed=6)
    run = submit(build, task_set, split=Split.SEALED, is_final=True)
    carry_out(run, monkeypatch)
    assert (run.state, run.done) == (State.SUCCEEDED, 12)
    assert not run.results.exclude(success=True, trajectory=None).exists()
    assert not Trajectory.objects.exists()
    assert ledger.openings(task_set).times == 0
    assert run.summary == {}, "its sums stand with its candidate"
    with pytest.raises(Refused, match="whose rollouts nobody keeps"):
        run_rescores.submit(
            run=run, version=task_set.environment_version, actor=Actor(build.cast.builder), key=uuid.uuid4()
        )


def test_seeds_are_of_the_attempt_and_the_same_for_every_version(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(held_out=5)
    one = finished(build, monkeypatch, task_set=task_set, seed=7)
    other = finished(build, monkeypatch, task_set=task_set, seed=7, version=build.version(system_prompt="other"))
    seeds = [list(run.results.order_by("task", "sample").values_list("task", "sample", "seed")) for run in (one, other)]
    assert seeds[0] == seeds[1]
    assert len({seed for _, _, seed in seeds[0]}) == 10
    task = task_set.tasks.first()
    assert task is not None
    assert attempt_seed(one, task, 0) != attempt_seed(submit(build, task_set, seed=8), task, 0)


def test_a_request_that_fails_is_unscored_not_wrong(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: ChatRequest) -> ChatResponse:
        return ChatResponse(error="the server answered 500") if request.seed % 2 else right(request)

    run = finished(build, monkeypatch, answer, task_set=build.task_set(held_out=12), samples=2)
    unscored = run.results.filter(score=None)
    assert 0 < unscored.count() < 24
    assert run.state == State.SUCCEEDED
    assert set(unscored.values_list("success", "error")) == {(None, "not answered: the server answered 500")}
    assert run.summary["metrics"]["success"]["mean"] == 1.0
    assert run.summary["metrics"]["success"]["unscored"] == unscored.count()
    assert run.events.filter(level="warning", text__contains="unscored").exists()
    step = unscored.first().trajectory.steps.last()  # type: ignore[union-attr]
    assert step is not None
    assert step.error == "the server answered 500"


@pytest.mark.parametrize(("tokens", "said"), [(10, "100 tokens is spent: 480"), (None, "does not say how many tokens")])
def test_a_run_that_has_spent_its_budget_stops_and_keeps_what_it_has(
    build: Build, monkeypatch: pytest.MonkeyPatch, tokens: int | None, said: str
) -> None:
    run = submit(build, build.task_set(held_out=20), samples=1, budget={"tokens": 100})
    engine = carry_out(run, monkeypatch, lambda request: replace(right(request), tokens_out=tokens))
    assert (run.state, run.error_kind) == (State.CANCELLED, "budget")
    assert said in run.error
    assert run.results.count() == len(engine.asked) == 16, "nothing is asked ahead of a budget"


def test_a_verifier_that_raises_leaves_attempts_unscored(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        max_turns = 1

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def verifier(self, task: envs.Task) -> verifiers.Verify:
            def verify(trace: Any, target: Any) -> verifiers.Verdict:
                raise KeyError("the target has no day")

            return verifiers.guarded(verify) if task.id == first else self.inner.verifier(task)

    task_set = build.task_set(held_out=6)
    first = str(task_set.members.filter(split="held_out").select_related("task").order_by("task__number")[0].task)
    build_env = envs.build
    monkeypatch.setattr(envs, "build", lambda *args: Odd(build_env(*args)))
    run = finished(build, monkeypatch, task_set=task_set, samples=2)
    unscored = run.results.filter(score=None)
    assert [str(result.task) for result in unscored] == [first, first]
    assert "the verifier raised KeyError" in unscored[0].error
    estimate = run.summary["metrics"]["success"]
    assert (estimate["mean"], estimate["n"], estimate["unscored"]) == (1.0, 5, 2)


def test_an_environment_that_raises_breaks_one_attempt_alone(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(held_out=3)
    bad = task_set.tasks.filter(split="held_out").earliest("number")

    def respond(_: Any, task: envs.Task, messages: Any, seed: int) -> list[Any]:
        if task.prompt == bad.prompt:
            raise OverflowError("date value out of range")
        return []

    monkeypatch.setattr(ToolCallEnvironment, "respond", respond)
    run = submit(build, task_set, samples=2)
    carry_out(run, monkeypatch)
    assert (run.state, run.done) == (State.SUCCEEDED, 6)
    assert run.results.filter(success=True).count() == 4
    for result in run.results.filter(task=bad).select_related("trajectory"):
        assert (result.score, result.cause) == (None, "broken")
        assert result.error == "not answered: the environment raised OverflowError: date value out of range"
        assert result.trajectory is not None
        assert (result.trajectory.outcome, result.trajectory.steps.filter(status="error").count()) == (None, 1)


def test_an_environment_that_always_raises_leaves_everything_unscored(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(*_: Any) -> list[Any]:
        raise KeyError("world")

    monkeypatch.setattr(ToolCallEnvironment, "reset", reset)
    run = submit(build, build.task_set(held_out=2), samples=1, budget={"tokens": 100})  # nothing was asked of it
    engine = carry_out(run, monkeypatch)
    assert (run.state, engine.asked) == (State.SUCCEEDED, [])
    assert set(run.results.values_list("score", "error")) == {
        (None, "not answered: the environment raised KeyError: 'world'")
    }


def test_what_an_attempt_took_that_its_environment_broke_is_not_taken_for_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(*_: Any) -> list[Any]:
        raise OverflowError("date value out of range")

    monkeypatch.setattr(ToolCallEnvironment, "respond", respond)
    run = submit(build, build.task_set(held_out=20), samples=1, budget={"tokens": 100})
    carry_out(run, monkeypatch, lambda request: replace(right(request), tokens_out=None, latency_ms=9.0))
    assert (run.state, run.results.count()) == (State.CANCELLED, 16)
    assert "the server does not say how many tokens an answer takes" in run.error


def test_a_policy_that_answers_nothing_fails_the_run_and_stores_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submit(build)
    engine = carry_out(run, monkeypatch, lambda _: ChatResponse(error="the prompt has 9000 tokens too many"))
    assert (run.state, run.error_kind, run.done) == (State.FAILED, "engine", 0)
    assert "not one of the first 16 requests was answered; 16 times: the prompt has 9000 tokens too many" in run.error
    assert engine.is_closed
    assert not Trajectory.objects.filter(source=Source.ROLLOUT).exists()


def test_a_version_that_learnt_from_what_it_is_asked_is_found_out(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_set, version = build.task_set(train=3, held_out=3), build.version(system_prompt="learnt")
    before = finished(build, monkeypatch, task_set=task_set)
    _training_run(build, before, submit(build, task_set, version))
    later = build.task_set(train=0, held_out=0)
    TaskSetMember.objects.bulk_create(
        TaskSetMember(task_set=later, task=task, split=Split.HELD_OUT) for task in task_set.tasks.filter(split="train")
    )
    run = finished(build, monkeypatch, task_set=later, version=version)
    (event,) = run.events.filter(level="warning")
    assert "learnt from d@1: 3 of 3 held-out tasks of" in event.text
    assert trained_on([version], later)[version.pk].words.startswith(f"{version} was trained on 3 of these tasks")


def silent(request: ChatRequest) -> ChatResponse:
    return ChatResponse(error="the server answered 503", is_away=True)


def test_a_server_that_falls_silent_fails_the_run_which_goes_on_later(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_runs, "CHUNK", 12)
    run = submit(build, build.task_set(held_out=16), samples=2)
    asked: list[ChatRequest] = []

    def until(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        return right(request) if len(asked) <= 6 else silent(request)

    carry_out(run, monkeypatch, until)
    assert (run.state, run.error_kind, run.done) == (State.FAILED, "engine", 12)
    assert run.error == "not one of the last 12 requests was answered; 12 times: the server answered 503"
    resume(run=run, actor=Actor(build.cast.builder))
    engine = carry_out(run, monkeypatch)
    assert (run.state, run.done, len(engine.asked)) == (State.SUCCEEDED, 32, 26)
    assert run.summary["metrics"]["success"]["unscored"] == 0


def test_requests_that_are_refused_in_every_go_hold_no_run_up(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_runs, "CHUNK", 12)
    run = submit(build, build.task_set(held_out=16), samples=2)
    asked: list[ChatRequest] = []

    def until(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        return right(request) if len(asked) <= 12 else ChatResponse(error="the server answered 400")

    carry_out(run, monkeypatch, until)
    assert (run.state, run.done, run.results.filter(cause="not_answered").count()) == (State.SUCCEEDED, 32, 20)
    with pytest.raises(StaleState, match="its server was there for every attempt"):
        resume(run=run, actor=Actor(build.cast.builder))
    run.results.filter(sample=1).update(score=None, success=None, cause="away")
    resume(run=run, actor=Actor(build.cast.builder))
    carry_out(run, monkeypatch, lambda _: ChatResponse(error="the server answered 400"))
    assert (run.state, run.done) == (State.SUCCEEDED, 32), "what ended well ends well again"


def test_nothing_is_asked_again_of_a_run_on_which_something_rests(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_again(**fields: Any) -> EvalRun:
        run = finished(build, monkeypatch, task_set=task_set, samples=1, **fields)
        run.results.filter(task__number=run.results.earliest("pk").task.number).update(score=None, cause="away")
        return run

    task_set = build.task_set(held_out=4)
    baseline, rescored, counted = asked_again(), asked_again(), asked_again(budget={"tokens": 10**6})
    _training_run(build, baseline, submit(build, task_set, build.version(system_prompt="trained")))
    environment_version = task_set.environment_version
    run_rescores.submit(run=rescored, version=environment_version, actor=Actor(build.cast.builder), key=uuid.uuid4())
    for run, says in ((baseline, "is compared with it"), (rescored, "rescore"), (counted, "counts for its budget")):
        assert not can_resume(run)
        with pytest.raises(StaleState, match=says):
            resume(run=run, actor=Actor(build.cast.builder))
        run.refresh_from_db()
        assert (run.state, run.results.count()) == (State.SUCCEEDED, 4)
    EvalRun.objects.filter(pk=counted.pk).update(state=State.CANCELLED)
    counted.refresh_from_db()
    resume(run=counted, actor=Actor(build.cast.builder))
    assert counted.results.count() == 4, "it goes on, and knows what it spent"


def test_what_ended_well_is_given_no_budget(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(build, monkeypatch)
    Result.objects.filter(pk=run.results.earliest("pk").pk).update(score=None, success=None, cause="away")
    with pytest.raises(Refused, match="ended well; what is asked again"):
        resume(run=run, actor=Actor(build.cast.builder), budget={"minutes": 0.01})
    run.refresh_from_db()
    assert (run.state, run.budget) == (State.SUCCEEDED, {})


def test_what_is_asked_again_is_no_reason_to_forget_what_judges_said(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(build, monkeypatch)
    Result.objects.filter(pk=run.results.earliest("pk").pk).update(score=None, success=None, cause="away")
    JudgeMemory.objects.create(project=run.project, key="k", score=1.0, reason="fine")
    resume(run=run, actor=Actor(build.cast.builder))
    assert JudgeMemory.objects.exists()


def test_few_requests_that_nobody_answers_are_their_own_fault(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_runs, "CHUNK", 12)
    run = submit(build, build.task_set(held_out=8), samples=2)
    asked: list[ChatRequest] = []

    def until(request: ChatRequest) -> ChatResponse:
        asked.append(request)
        return right(request) if len(asked) <= 12 else silent(request)

    carry_out(run, monkeypatch, until)
    assert (run.state, run.results.filter(score=None).count()) == (State.SUCCEEDED, 4)


def test_what_nobody_answered_is_asked_again_and_nothing_else(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: ChatRequest) -> ChatResponse:
        return silent(request) if request.seed % 2 else right(request)

    run = finished(build, monkeypatch, answer, task_set=build.task_set(held_out=8), samples=2)
    unscored = run.results.filter(score=None)
    seeds = {result.pk: result.seed for result in run.results.all()}
    gone = set(unscored.values_list("pk", flat=True))
    bad = run.results.exclude(score=None).earliest("pk")
    Result.objects.filter(pk=bad.pk).update(score=None, success=None, cause="timeout")
    resume(run=run, actor=Actor(build.cast.builder))
    run.refresh_from_db()
    assert (run.state, run.summary, run.done) == (State.QUEUED, {}, 16 - len(gone))
    engine = carry_out(run, monkeypatch)
    assert (run.state, run.done, len(engine.asked)) == (State.SUCCEEDED, 16, len(gone))
    assert set(run.results.values_list("pk", flat=True)) >= set(seeds) - gone
    assert set(run.results.values_list("seed", flat=True)) == set(seeds.values())
    assert [result.pk for result in run.results.filter(score=None)] == [bad.pk]
    assert Trajectory.objects.filter(source=Source.ROLLOUT, outcome="success").count() == 16
    assert Trajectory.objects.filter(source=Source.ROLLOUT).count() == 16
    assert AuditEntry.objects.get(action="evals.resume").data["asked_again"] == len(gone)
    with pytest.raises(StaleState, match="its server was there for every attempt"):
        resume(run=run, actor=Actor(build.cast.builder))


def test_hostile_answers_are_stored_and_judged(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        json.dumps({"tool": "a\x00b", "arguments": {}}),
        '{"tool": "\\ud800", "arguments": {"\\u0000": "\\udfff"}}',
        '{"tool": "calendar.create_event", "arguments": {"person": NaN}}',
        "[" * 100_000,
        "\x00\x1b[31m",
        "",
    ]

    def answer(request: ChatRequest) -> ChatResponse:
        return ChatResponse(text=texts[request.seed % len(texts)], tokens_in=1, tokens_out=1)

    run = finished(build, monkeypatch, answer, task_set=build.task_set(held_out=20), samples=3)
    assert run.results.filter(success=False).count() == 60
    assert Trajectory.objects.filter(source=Source.ROLLOUT).count() == 60


def test_a_cancelled_run_keeps_what_it_has_and_goes_on_where_it_stood(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_runs, "CHUNK", 4)
    run = submit(build, build.task_set(held_out=6), samples=2)
    lease = claim(run)

    class Cancelling(FakeEngine):
        def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
            if self.asked:
                lease._cancelled.set()
            return super().chat(requests)

    monkeypatch.setattr(eval_runs, "open_version", lambda _: Cancelling(right))
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()
    assert (run.state, run.done, run.results.count(), run.summary) == (State.CANCELLED, 8, 8, {})

    before = set(run.results.values_list("pk", flat=True))
    run.requeue()
    engine = carry_out(run, monkeypatch)
    assert (run.state, run.done, len(engine.asked)) == (State.SUCCEEDED, 12, 4)
    assert before < set(run.results.values_list("pk", flat=True))


def test_a_cancelled_run_sends_nothing_more_and_keeps_what_was_answered(
    build: Build, monkeypatch: pytest.MonkeyPatch, server: "Server"
) -> None:
    run = submit(build, build.task_set(held_out=30), build.version(endpoint={**server.endpoint, "concurrency": 2}))
    lease = claim(run)
    server.after(5, lease._cancelled.set)
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    assert 5 <= run.done <= server.asked < 30
    assert run.results.filter(success=True).count() == run.results.count() == run.done, (
        "what was not sent has no result"
    )
    server.pause_s = 0.0
    run.requeue()
    work(run)
    assert (run.state, run.done, server.asked) == (State.SUCCEEDED, 60, 60)


def test_a_run_that_fails_sends_nothing_more(build: Build, monkeypatch: pytest.MonkeyPatch, server: "Server") -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(eval_runs, "CHUNK", 10)
    monkeypatch.setattr(eval_runs, "_store", broken)
    run = submit(build, build.task_set(held_out=30), build.version(endpoint={**server.endpoint, "concurrency": 2}))
    work(run)
    assert (run.state, run.error) == (State.FAILED, "the disk is full")
    while any(thread.name == "eval-asking" for thread in threading.enumerate()):
        threading.Event().wait(0.01)
    assert server.asked <= 14, "those of the next chunk that were on their way"


def test_a_run_whose_attempts_are_all_done_asks_nobody(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(build, monkeypatch)
    EvalRun.objects.filter(pk=run.pk).update(state=State.QUEUED, summary={})
    engine = carry_out(run, monkeypatch)
    assert not engine.asked
    assert run.summary["metrics"]["success"]["mean"] == 1.0


def test_an_owner_that_was_replaced_writes_nothing(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(build)
    lease = claim(run)

    class Replaced(FakeEngine):
        def chat(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
            EvalRun.objects.filter(pk=run.pk).update(fence=lease.fence + 1)
            return super().chat(requests)

    monkeypatch.setattr(eval_runs, "open_version", lambda _: Replaced(right))
    with lease:
        eval_runs.evaluate(lease)
    run.refresh_from_db()
    assert (run.state, run.done, run.results.count()) == (State.RUNNING, 0, 0)
    assert not Trajectory.objects.filter(source=Source.ROLLOUT).exists()


def test_another_revision_of_the_verifier_does_not_judge(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(build)
    monkeypatch.setattr(verifiers, "REVISION", 99)
    carry_out(run, monkeypatch)
    assert (run.state, run.error_kind) == (State.FAILED, "verifier_changed")
    assert "submit it anew" in run.error


def test_a_version_without_weights_says_so(build: Build) -> None:
    run = submit(build, version=build.version(weights=None))
    work(run)
    assert (run.state, run.error_kind) == (State.FAILED, "engine")
    assert "has no weights here" in run.error


def test_a_server_that_does_not_answer_says_so(build: Build) -> None:
    endpoint = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    run = submit(build, version=build.version(endpoint=endpoint))
    work(run)
    assert (run.state, run.error_kind) == (State.FAILED, "engine")
    assert "127.0.0.1:9" in run.error


def test_artifacts_that_are_damaged_or_gone_fail_the_run_with_the_file(build: Build, reference: Artifact) -> None:
    run = submit(build, version=build.version(weights=reference))
    blob = settings.HOME / "artifacts" / "blobs"
    shutil.rmtree(settings.HOME / "cache" / reference.digest, ignore_errors=True)
    name, entry = next((n, e) for n, e in reference.manifest.items() if n.endswith(".safetensors"))
    path = blob / entry["sha256"][:2] / entry["sha256"]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    work(run)
    assert (run.state, run.error_kind) == (State.FAILED, "artifact")
    assert f"{name} of model" in run.error
    assert "damaged" in run.error
    path.unlink()
    run.requeue()
    work(run)
    assert "missing from the storage" in run.error


def test_an_adapter_whose_shapes_do_not_fit_fails_the_run_with_the_tensor(
    build: Build, reference: Artifact, tmp_path: Path
) -> None:
    run = submit(build, version=build.version(weights=reference, adapter=_odd_adapter(tmp_path)))
    work(run)
    assert (run.state, run.error_kind) == (State.FAILED, "engine")
    assert "q_proj" in run.error
    assert "shape" in run.error


def test_a_real_policy_answers_reproducibly(build: Build, reference: Artifact) -> None:
    task_set = build.task_set(train=1, held_out=3)
    version = build.version(weights=reference, sampling={"temperature": 1.0, "top_p": 1.0, "max_tokens": 12})
    runs = []
    for _ in range(2):
        runs.append(submit(build, task_set, version))
        work(runs[-1])
        assert runs[-1].state == State.SUCCEEDED, runs[-1].error
    said = [
        [r.trajectory.steps.last().body["output"] for r in run.results.order_by("task", "sample")]  # type: ignore[union-attr]
        for run in runs
    ]
    assert said[0] == said[1]
    assert runs[0].results.filter(tokens_out=None).count() == 0


def test_a_candidate_comes_of_a_training_runs_evaluation_only(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task_set = build.task_set(held_out=8)
    baseline = finished(build, monkeypatch, wrong, task_set=task_set)
    assert not Candidate.objects.exists()
    run = submit(build, task_set, build.version(system_prompt="trained"))
    _training_run(build, baseline, run)
    carry_out(run, monkeypatch)
    assert run.state == State.SUCCEEDED
    candidate = Candidate.objects.get()
    assert (candidate.version_eval, candidate.baseline_eval) == (run, baseline)
    # Its worker died between the candidate and the end: whoever takes over finds it made.
    EvalRun.objects.filter(pk=run.pk).update(state=State.QUEUED)
    work(run)
    assert (run.state, Candidate.objects.count()) == (State.SUCCEEDED, 1)


def test_an_eval_stands_when_no_candidate_can_be_made_of_it(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = finished(build, monkeypatch, wrong)
    run = submit(build, baseline.task_set, build.version(system_prompt="trained"))
    _training_run(build, baseline, run)
    EvalRun.objects.filter(pk=baseline.pk).update(state=State.FAILED)
    carry_out(run, monkeypatch)
    assert run.state == State.SUCCEEDED
    assert run.events.filter(level="warning", text__contains="no candidate was made").exists()


@pytest.mark.worker
def test_a_killed_workers_run_is_taken_over_and_every_attempt_made_once(
    worker: Worker, start_worker: Any, build: Build, server: "Server"
) -> None:
    run = submit(build, build.task_set(held_out=40), build.version(endpoint=server.endpoint), samples=4)

    def has_some() -> bool:
        run.refresh_from_db()
        return run.done >= eval_runs.CHUNK

    worker.wait_until(has_some, "a first chunk is stored")
    worker.kill9()
    run.refresh_from_db()
    assert run.done < 160
    assert run.state == State.RUNNING
    server.pause_s = 0.0
    other = start_worker()
    other.finish(run)
    assert (run.state, run.attempt) == (State.SUCCEEDED, 2)
    attempts = Counter(run.results.values_list("task_id", "sample"))
    assert len(attempts) == 160
    assert set(attempts.values()) == {1}
    assert Trajectory.objects.filter(source=Source.ROLLOUT).count() == 160
    assert Result.objects.filter(trajectory=None).count() == 0
    assert run.summary["metrics"]["success"]["mean"] == 1.0
    assert run.events.filter(text__contains="went silent").exists()


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, settings: Any) -> None:
    """Importing torch on a busy machine outlasts the short lease that tests of real workers have."""
    if "worker" not in request.keywords:
        settings.JOB_LEASE_SECONDS = 60


class Server:
    """An OpenAI-compatible server that knows the answer to the builder's tasks, and takes its time."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s, self.asked = pause_s, 0
        self._after: tuple[int, Callable[[], object]] = (0, lambda: None)
        lock, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    outer.asked += 1
                    if outer.asked == outer._after[0]:
                        outer._after[1]()
                threading.Event().wait(outer.pause_s)
                text = say(body["messages"][-1]["content"].split()[1]).text
                answer = {
                    "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 20, "completion_tokens": 10},
                }
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def after(self, count: int, what: Callable[[], object]) -> None:
        """Do this when so many have asked."""
        self._after = (count, what)

    @property
    def endpoint(self) -> dict[str, Any]:
        base_url = f"http://127.0.0.1:{self.http.server_port}/v1"
        return {"kind": "openai", "base_url": base_url, "model": "m", "concurrency": 4}


@pytest.fixture
def server() -> Any:
    one = Server(pause_s=0.05)
    yield one
    one.http.shutdown()
    one.http.server_close()


@pytest.fixture
def reference(db: None) -> Artifact:
    return store(Path(settings.REFERENCE_POLICY), "model")


def _odd_adapter(directory: Path) -> Artifact:
    import torch
    from safetensors.torch import save_file

    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file(
        {f"{name}A.weight": torch.zeros(4, 7), f"{name}B.weight": torch.zeros(7, 4)},
        directory / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return store(directory, "adapter")


def _training_run(build: Build, baseline: EvalRun, evaluation: EvalRun) -> TrainingRun:
    dataset = Dataset.objects.create(
        project=build.cast.project,
        name="d",
        version=1,
        kind="sft",
        task_set=baseline.task_set,
        digest="0" * 64,
        rows=1,
        file="none",
        created_by=build.cast.builder,
    )
    return TrainingRun.objects.create(
        project=build.cast.project,
        created_by=build.cast.trainer,
        base=baseline.version,
        dataset=dataset,
        task_set=baseline.task_set,
        baseline=baseline,
        evaluation=evaluation,
        produced=evaluation.version,
        algorithm="sft",
        tuning={"mode": "full"},
        settings={},
        spec_digest=uuid.uuid4().hex,
        state=State.SUCCEEDED,
    )
