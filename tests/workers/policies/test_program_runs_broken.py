"""Evals of programs where something goes wrong on our side: threads, workers, judging, budgets and cancelled runs."""

import re
import signal
import time
from collections import Counter
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.agents.models import AttemptKey, AttemptSpan
from flywheel.edge.jobs import State
from flywheel.evals.attempts import attempt_lifecycle
from flywheel.evals.attempts.attempt_lifecycle import ANSWERED
from flywheel.evals.attempts.attempt_tools import environment_of
from flywheel.evals.models import EvalRun, ProgramAttempt
from flywheel.evals.models.runs import BUDGET_CHUNK
from flywheel.evals.runs.submission import resume
from tests.conftest import Build
from tests.evals import fake
from tests.evals.attempts.test_attempt_lifecycle import waiting
from tests.evals.conftest import served
from tests.evals.fake import submit
from tests.evals.programs import CODE, program_version, serve_program, status_of
from tests.waiting import wait_for
from tests.worker import Worker
from tests.workers.policies.test_program_runs import worked
from workers.jobs import eval_runs
from workers.policies import program_runs

__all__ = ["served"]

pytestmark = pytest.mark.django_db(transaction=True)


def fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("the disk is full")


def finished(_: Any) -> Any:
    return {"output": "Done."}


def test_what_a_thread_raises_fails_the_run_which_can_go_on(
    build: Build, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_program(finished) as program:
        run = submit(build, build.task_set(held_out=1), program_version(build, url=program.url))
        with monkeypatch.context() as patched:
            patched.setattr(attempt_lifecycle, "answer", fails)
            fake.work(run)
        assert (run.state, run.error) == (State.FAILED, "the disk is full")
        resume(run=run, actor=Actor(build.cast.builder))
        fake.work(run)
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 2)


def test_answers_outlive_a_judging_that_failed(build: Build, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_program(finished) as program:
        run = submit(build, build.task_set(held_out=2), program_version(build, url=program.url))
        with monkeypatch.context() as patched:
            patched.setattr(eval_runs, "_store", fails)
            fake.work(run)
        assert (run.state, run.results.count()) == (State.FAILED, 0)
        assert set(run.attempts.values_list("state", "output")) == {("answered", "Done.")}
        resume(run=run, actor=Actor(build.cast.builder))
        fake.work(run)
    assert (run.state, run.results.count(), len(program.seen)) == (State.SUCCEEDED, 4, 4)


def test_what_a_worker_claimed_that_is_gone_is_given_again(
    build: Build, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runs, "EXPIRE_S", 0.0)

    def does(_: Any) -> Any:
        if len(program.seen) == 1:
            row = ProgramAttempt.objects.select_related("run__version").filter(state="waiting").latest("pk")
            assert attempt_lifecycle.claim(row)
            ProgramAttempt.objects.filter(pk=row.pk).update(lease_until=timezone.now())
            connections.close_all()
        return {"output": "Done."}

    with serve_program(does) as program:
        run = submit(build, build.task_set(held_out=4), program_version(build, url=program.url, concurrency=1))
        fake.work(run)
    assert (run.state, run.results.filter(score=0.0).count()) == (State.SUCCEEDED, 8)


@pytest.mark.worker
def test_after_a_kill_another_worker_goes_on_and_no_answer_is_made_twice(
    build: Build, served: str, worker: Worker, start_worker: Any
) -> None:
    def does(_: Any) -> Any:
        time.sleep(0.1)
        return {"output": "Done."}

    with serve_program(does) as program:
        version = program_version(build, url=program.url, concurrency=2)
        run = submit(build, build.task_set(held_out=40), version, samples=2)
        worker.wait_until(lambda: _stopped_between(worker, run), "it has results and answers that wait to be judged")
        worker.kill9()
        kept = set(run.results.values_list("pk", flat=True))
        assert len(kept) < 80
        start_worker().finish(run)
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 80)
    assert kept <= set(run.results.values_list("pk", flat=True))
    again = Counter(work["attempt"] for work in program.seen)
    assert set(again.values()) == {1}, "an attempt that is given again is another one to its program"
    assert len(program.seen) <= 80 + version.endpoint["concurrency"] * program_runs.AHEAD


def _stopped_between(worker: Worker, run: EvalRun) -> bool:
    """Stop the worker where it stands; it goes on unless some answers are judged and others not yet."""
    worker.signal_all(signal.SIGSTOP)
    if run.results.count() >= program_runs.SILENT and run.attempts.filter(state=ANSWERED).exists():
        return True
    worker.signal_all(signal.SIGCONT)
    return False


def test_an_attempt_that_waits_for_its_model_calls_is_looked_at_without_its_spans(build: Build) -> None:
    [made] = attempt_lifecycle.claim_some(waiting(build), CODE, 1)
    attempt_lifecycle.answer(made.attempt, "Done.")
    AttemptKey.objects.update(calls=1)
    key, now = AttemptKey.objects.get(), timezone.now()
    AttemptSpan.objects.create(key=key, span_id="a", is_own=True, started_at=now, content={})
    EvalRun.objects.update(state=State.QUEUED)
    run = EvalRun.objects.get()
    with fake.claim(run) as lease:
        runs = program_runs.ProgramRuns(lease, run, environment_of(made.attempt), [(made.attempt.task, 0)])
        with CaptureQueriesContext(connection) as queries:
            runs._gather()
    assert runs._ready == []
    assert not any('"content"' in query["sql"] for query in queries)


def test_nothing_runs_ahead_of_a_budget(build: Build, served: str) -> None:
    ahead: list[int] = []

    def does(_: Any) -> Any:
        ahead.append(len(program.seen) - run.results.count())
        connections.close_all()
        return {"output": "Done."}

    with serve_program(does) as program:
        version = program_version(build, url=program.url, concurrency=16)
        run = submit(build, build.task_set(held_out=40), version, samples=1, budget={"minutes": 60})
        fake.work(run)
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 40)
    assert max(ahead) <= BUDGET_CHUNK


def test_a_program_that_is_not_there_is_asked_for_the_first_few_alone(build: Build, served: str) -> None:
    version = program_version(build, url="http://127.0.0.1:1/run", timeout_s=1.0)
    run = submit(build, build.task_set(held_out=40), version, samples=1)
    fake.work(run)
    told = re.search(r"not one of the first (\d+) attempts", run.error)
    assert told is not None, run.error
    assert program_runs.SILENT <= int(told[1]) < 2 * program_runs.SILENT


def test_the_key_of_an_attempt_ends_with_its_run(build: Build, served: str) -> None:
    version = program_version(build, "http://127.0.0.1:9/v1", way="pull")
    run = submit(build, build.task_set(held_out=1), version, samples=1)
    claims: list[attempt_lifecycle.Claim] = []

    def has_claimed() -> bool:
        claims.extend(attempt_lifecycle.claim_some(version.agent, CODE, 1))
        return bool(claims)

    def ask(work: dict[str, Any]) -> tuple[int, int]:
        body = {"model": "tiny", "messages": []}
        model = status_of(f"{work['base_url']}/chat/completions", body, work["api_key"])
        return model, status_of(f"{work['tools_url']}/email_send", {"to": "Bako"}, work["api_key"])

    with worked(run):
        wait_for(has_claimed, "an attempt waits")
        work = claims.pop().to_json(served)
        run.cancel(Actor(build.cast.builder))
        assert ask(work) == (401, 410)
    run.refresh_from_db()
    assert run.state == State.CANCELLED
    resume(run=run, actor=Actor(build.cast.builder))
    with worked(run):
        wait_for(has_claimed, "it waits again")
        assert ask(work) == (401, 404)
        attempt_lifecycle.answer(claims[0].attempt, "Done.")
    run.refresh_from_db()
    assert (run.state, run.results.count()) == (State.SUCCEEDED, 1)
