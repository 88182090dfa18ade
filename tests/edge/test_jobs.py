"""What the rows promise, without a worker: one job per click, one owner, and no write by an owner of before."""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, InboxEntry, Notice
from flywheel.edge import job_queue, jobs
from flywheel.edge.jobs import MAX_ATTEMPTS, Cancelled, Job, Lease, LeaseLost, StaleState, State
from flywheel.evals.models import EvalRun
from flywheel.system import broker
from flywheel.training.models import Dataset, TrainingRun
from tests.conftest import Build
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(build: Build) -> Callable[..., EvalRun]:
    fields: dict[str, Any] = {
        "project": build.cast.project,
        "actor": Actor(build.cast.builder),
        "version": build.version(),
        "task_set": build.task_set(train=1, held_out=1),
        "verifier_digest": "0" * 64,
    }

    def go(key: uuid.UUID | None = None, **more: Any) -> EvalRun:
        return EvalRun.submit(key=key or uuid.uuid4(), **fields, **more)[0]

    return go


@pytest.fixture
def lease(submit: Callable[..., EvalRun]) -> Lease:
    taken = EvalRun.claim(submit().pk)
    assert taken is not None
    return taken


def silence(lease: Lease) -> None:
    """Let the row look as if its owner had not been heard of for a lease."""
    EvalRun.objects.filter(pk=lease.job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def url_of(page: str, job: Job) -> str:
    return reverse(page, args=[job.project.slug, job.pk])


def in_threads(count: int, act: Callable[[], Any]) -> list[Any]:
    """Do it in so many threads at the same moment."""
    gate = threading.Barrier(count)

    def one(_: int) -> Any:
        try:
            gate.wait()
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_thirty_identical_clicks_make_one_job(submit: Callable[..., EvalRun]) -> None:
    key = uuid.uuid4()
    made = in_threads(30, lambda: submit(key).pk)
    assert len(set(made)) == 1
    assert EvalRun.objects.count() == 1


def test_one_of_many_claims_wins(submit: Callable[..., EvalRun]) -> None:
    pk = submit().pk
    won = [lease for lease in in_threads(12, lambda: EvalRun.claim(pk)) if lease]
    assert len(won) == 1
    job = EvalRun.objects.get(pk=pk)
    assert (job.fence, job.attempt, job.state) == (won[0].fence, 1, State.RUNNING)


def test_one_of_many_takeovers_wins(lease: Lease) -> None:
    silence(lease)
    won = [taken for taken in in_threads(12, lambda: EvalRun.claim(lease.job.pk)) if taken]
    assert len(won) == 1
    assert won[0].fence == lease.fence + 1
    assert "went silent" in won[0].job.events.get().text


def test_a_live_owner_is_left_alone(lease: Lease) -> None:
    assert EvalRun.claim(lease.job.pk) is None


def test_an_owner_of_before_cannot_write(lease: Lease) -> None:
    silence(lease)
    taken = EvalRun.claim(lease.job.pk)
    assert taken is not None
    writes: list[Callable[[], None]] = [
        lambda: lease.progress(7),
        lambda: lease.log("late"),
        lambda: lease.finish(State.SUCCEEDED),
        lambda: lease.give_back(),
    ]
    for write in writes:
        with pytest.raises(LeaseLost):
            write()
    assert lease.lost
    taken.progress(1)
    job = EvalRun.objects.get(pk=lease.job.pk)
    assert (job.done, job.state, job.fence) == (1, State.RUNNING, taken.fence)


def test_a_guard_inside_another_commits_and_fails_with_it(lease: Lease) -> None:
    def fail() -> NoReturn:
        with lease.guard():
            lease.progress(7)
            raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        fail()
    assert EvalRun.objects.get(pk=lease.job.pk).done == 0
    with lease.guard():
        lease.progress(8)
        lease.progress(9)
    assert EvalRun.objects.get(pk=lease.job.pk).done == 9
    EvalRun.objects.filter(pk=lease.job.pk).update(fence=lease.fence + 1)
    with pytest.raises(LeaseLost), lease.guard():
        pytest.fail("the next guard looks again")


def test_an_owner_that_stops_inside_a_write_does_not_block_its_successor(lease: Lease) -> None:
    silence(lease)
    entered, leave = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def hang() -> None:
        try:
            with lease.guard():
                EvalRun.objects.filter(pk=lease.job.pk).update(done=99)
                entered.set()
                leave.wait(PATIENCE_S)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=hang)
    thread.start()
    entered.wait()
    assert EvalRun.claim(lease.job.pk) is None, "the row is locked"
    wait_for(lambda: EvalRun.claim(lease.job.pk), "the row is free again")
    leave.set()
    thread.join()
    assert isinstance(errors[0], DatabaseError)
    assert EvalRun.objects.get(pk=lease.job.pk).done == 0


def test_an_owner_knows_by_the_clock_that_it_was_silent_too_long(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lease.lost
    now = time.monotonic()
    monkeypatch.setattr("flywheel.edge.jobs.time.monotonic", lambda: now + 1.7)
    assert lease.lost
    monkeypatch.undo()
    assert lease.lost, "once lost it stays lost"


def test_a_lease_is_renewed_while_the_work_goes_on(lease: Lease) -> None:
    with lease:
        time.sleep(2.6)
        assert not lease.lost
        assert EvalRun.claim(lease.job.pk) is None
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.SUCCEEDED


def test_a_short_outage_of_the_database_costs_nothing(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, failures = Lease._renew, iter([True])  # of two, the third try may come too late on a busy machine

    def flaky(self: Lease) -> None:
        if next(failures, False):
            raise OperationalError("server closed the connection unexpectedly")
        renew(self)

    monkeypatch.setattr(Lease, "_renew", flaky)
    with lease:
        time.sleep(1.8)
        assert not lease.lost
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.SUCCEEDED


def test_a_long_outage_gives_the_job_back_and_never_calls_it_done(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: Lease) -> NoReturn:
        raise OperationalError("no route to host")

    monkeypatch.setattr(Lease, "_renew", away)
    with lease:
        wait_for(lambda: lease.lost, "the lease is lost")
    job = EvalRun.objects.get(pk=lease.job.pk)
    assert (job.state, job.attempt, job.owner) == (State.QUEUED, 1, "")


def test_a_body_that_stops_for_a_lost_lease_gives_back_what_is_still_its_own(lease: Lease) -> None:
    with lease:
        raise LeaseLost("the clock said so")
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.QUEUED
    second = EvalRun.claim(lease.job.pk)
    assert second is not None
    silence(second)
    third = EvalRun.claim(lease.job.pk)
    assert third is not None
    with second:
        raise LeaseLost("another owner has it")
    job = EvalRun.objects.get(pk=lease.job.pk)
    assert (job.state, job.fence) == (State.RUNNING, third.fence)


def test_a_database_error_in_the_work_is_tried_again_and_named_in_the_end(submit: Callable[..., EvalRun]) -> None:
    pk = submit().pk
    for _ in range(jobs.MAX_ATTEMPTS):
        lease = EvalRun.claim(pk)
        assert lease is not None
        with lease:
            raise OperationalError("no space left on device")
    assert EvalRun.claim(pk) is None
    job = EvalRun.objects.get(pk=pk)
    assert (job.state, job.error_kind) == (State.FAILED, "worker_lost")
    assert "lost 3 times" in job.error
    assert "no space left on device" in job.error


def test_a_failure_is_kept_with_its_reason_and_kind(lease: Lease) -> None:
    class NoSuchModel(Exception):
        kind = "model_not_found"

    with lease:
        raise NoSuchModel("model 'tiny-2' is not there; 'tiny' is")
    job = EvalRun.objects.get(pk=lease.job.pk)
    assert (job.state, job.error_kind) == (State.FAILED, "model_not_found")
    assert job.error == "model 'tiny-2' is not there; 'tiny' is"
    assert job.finished_at is not None


def test_whoever_started_an_eval_is_told_of_its_failure_alone(submit: Callable[..., EvalRun]) -> None:
    for error in (Cancelled(), None, RuntimeError("out of paper")):
        lease = EvalRun.claim(submit().pk)
        assert lease is not None
        with suppress(RuntimeError), lease:
            if error:
                raise error
    (entry,) = InboxEntry.objects.select_related("notice")
    run = EvalRun.objects.get(state=State.FAILED)
    assert (entry.user, entry.notice.event, entry.notice.url) == (
        run.created_by,
        "run.failed",
        url_of("evals:run", run),
    )


def test_a_job_whose_worker_is_lost_too_often_tells_of_it_too(lease: Lease) -> None:
    EvalRun.objects.update(lease_until=timezone.now() - timedelta(hours=1), attempt=MAX_ATTEMPTS)
    assert EvalRun.claim(lease.job.pk) is None
    assert Notice.objects.get().title == f"Eval {lease.job.pk} failed"


@pytest.mark.parametrize(("end", "event"), [(State.SUCCEEDED, "run.ended"), (State.FAILED, "run.failed")])
def test_whoever_launched_a_run_is_told_of_its_end(build: Build, end: State, event: str) -> None:
    run = training_run(build)
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        lease.finish(end)
    (entry,) = InboxEntry.objects.select_related("notice")
    assert (entry.user, entry.notice.event, entry.notice.url) == (run.created_by, event, url_of("training:run", run))
    assert entry.notice.title == f"Training run {run} {end}"


def test_an_end_that_is_not_written_down_is_not_told(lease: Lease) -> None:
    EvalRun.objects.update(fence=99)
    with pytest.raises(LeaseLost):
        lease.finish(State.FAILED)
    assert not Notice.objects.exists()


def test_a_worker_told_to_stop_gives_the_job_back_without_counting_an_attempt(lease: Lease) -> None:
    lease.progress(3, 10)
    with pytest.raises(SystemExit), lease:
        raise SystemExit("stop")
    job = EvalRun.objects.get(pk=lease.job.pk)
    assert (job.state, job.attempt, job.done) == (State.QUEUED, 0, 3)
    again = EvalRun.claim(job.pk)
    assert again is not None
    assert again.fence > lease.fence


def test_a_stopped_worker_ends_a_job_that_was_to_be_cancelled(lease: Lease) -> None:
    lease.job.ask_to_end()
    with pytest.raises(SystemExit), lease:
        raise SystemExit("stop")
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.CANCELLED


def test_a_queued_job_is_cancelled_at_once_and_never_runs(submit: Callable[..., EvalRun]) -> None:
    job = submit()
    job.ask_to_end()
    job.refresh_from_db()
    assert job.state == State.CANCELLED
    assert EvalRun.claim(job.pk) is None
    with pytest.raises(StaleState):
        job.ask_to_end()


def test_a_job_whose_owner_died_is_cancelled_at_once_and_the_owner_cannot_come_back(lease: Lease) -> None:
    silence(lease)
    lease.job.ask_to_end()
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.CANCELLED
    with pytest.raises(LeaseLost):
        lease.progress(1)


def test_a_running_job_hears_of_its_cancellation(lease: Lease) -> None:
    with lease:
        lease.job.ask_to_end()
        lease.go_on()
        wait_for(lambda: lease.cancelled, "the job hears of it")
        lease.go_on()
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.CANCELLED


def test_an_owner_that_dies_after_a_cancellation_leaves_a_cancelled_job(lease: Lease) -> None:
    lease.job.ask_to_end()
    silence(lease)
    assert EvalRun.claim(lease.job.pk) is None
    assert EvalRun.objects.get(pk=lease.job.pk).state == State.CANCELLED


def test_a_failed_job_goes_back_into_the_queue_once(lease: Lease) -> None:
    with lease:
        raise ValueError("no")
    job = EvalRun.objects.get(pk=lease.job.pk)
    job.requeue()
    with pytest.raises(StaleState):
        job.requeue()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.error, job.finished_at) == (State.QUEUED, 0, "", None)


def test_a_kind_with_a_verb_of_its_own_is_not_resumed_past_it(submit: Callable[..., EvalRun], build: Build) -> None:
    """What an eval's resume looks at stands in `submission.resume`."""
    job = submit().cancel(Actor(build.cast.builder))
    assert job.state == State.CANCELLED
    with pytest.raises(NotImplementedError):
        job.resume(Actor(build.cast.builder))
    assert EvalRun.objects.get(pk=job.pk).state == State.CANCELLED


def test_a_new_job_is_written_down_once(submit: Callable[..., EvalRun]) -> None:
    key = uuid.uuid4()
    jobs_made = {submit(key, entry="evals.submit", about={"attempts": 4}) for _ in range(2)}
    entry = AuditEntry.objects.get(action="evals.submit")
    assert {(entry.subject, entry.data["attempts"])} == {(str(job), 4) for job in jobs_made}


def test_one_trainer_holds_a_slot_and_the_next_waits_for_it(build: Build) -> None:
    first, second = (training_run(build) for _ in range(2))
    lease = TrainingRun.claim(first.pk)
    assert lease is not None
    assert TrainingRun.claim(second.pk) is None
    assert job_queue.claim_next() is None
    second.refresh_from_db()
    waits = f"it waits for the CPU slot of {socket.gethostname()}; none free"
    assert (second.state, second.message, second.attempt) == (State.QUEUED, waits, 0)
    lease.finish(State.SUCCEEDED)
    taken = job_queue.claim_next()
    assert taken is not None
    assert taken.job == second


def test_whoever_ends_a_job_takes_the_one_that_waits_longest(submit: Callable[..., EvalRun], build: Build) -> None:
    older, newer, training = submit(), submit(), training_run(build)
    TrainingRun.objects.filter(pk=training.pk).update(created_at=timezone.now() - timedelta(hours=1))
    taken = [lease.job for lease in iter(job_queue.claim_next, None)]
    assert taken == [training, older, newer]


def test_the_sweeper_wakes_for_what_waits_and_for_what_lost_its_owner(
    submit: Callable[..., EvalRun], lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    monkeypatch.setattr("flywheel.edge.jobs.Job.nudge", lambda job: woken.append(job.pk))
    waiting = submit()
    woken.clear()
    assert job_queue.sweep() == 0, "it was announced just now, and the other has an owner"
    EvalRun.objects.filter(pk=waiting.pk).update(nudged_at=timezone.now() - timedelta(seconds=6))
    silence(lease)
    assert job_queue.sweep() == 2
    assert set(woken) == {waiting.pk, lease.job.pk}
    assert job_queue.sweep() == 1, "the one that waits was announced; the other is still without an owner"


def test_the_sweeper_does_not_wait_for_a_job_that_somebody_holds(submit: Callable[..., EvalRun]) -> None:
    held, free = submit(), submit()
    EvalRun.objects.update(nudged_at=timezone.now() - timedelta(minutes=1))
    with psycopg.connect(broker.conninfo()) as stopped:
        stopped.execute("SELECT FROM evals_evalrun WHERE id = %s FOR UPDATE", [held.pk])
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '1s'")
        try:
            assert job_queue.sweep() == 1
        finally:
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")
    free.refresh_from_db()
    assert free.nudged_at > timezone.now() - timedelta(seconds=50)
    assert job_queue.sweep() == 1, "the held one is announced as soon as it is free"


def test_many_waiting_jobs_cost_few_messages(submit: Callable[..., EvalRun], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        submit()
    EvalRun.objects.update(nudged_at=timezone.now() - timedelta(minutes=1))
    woken: list[int] = []
    monkeypatch.setattr("flywheel.edge.jobs.Job.nudge", lambda job: woken.append(job.pk))
    assert job_queue.sweep() == 10
    assert len(woken) == job_queue.WAKE_UPS_AT_ONCE
    EvalRun.objects.update(created_at=timezone.now() - timedelta(hours=1))
    EvalRun.objects.update(nudged_at=timezone.now() - timedelta(seconds=30))
    assert job_queue.sweep() == 0, "after long waiting they are announced once a minute"


@pytest.mark.worker
def test_a_broker_that_is_away_does_not_turn_a_saved_row_into_an_error(
    submit: Callable[..., EvalRun], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.BROKER_URL = "amqp://127.0.0.1:1//"
    broker.app.cache_clear()
    try:
        job = submit()
    finally:
        broker.app().close()
        broker.app.cache_clear()
    assert EvalRun.objects.get(pk=job.pk).state == State.QUEUED
    assert "the broker does not answer" in caplog.text


def training_run(build: Build, **settings: Any) -> TrainingRun:
    task_set = build.task_set(train=1, held_out=1)
    dataset, _ = Dataset.objects.get_or_create(
        project=build.cast.project,
        name="rows",
        version=1,
        defaults={
            "kind": Dataset.Kind.SFT,
            "task_set": task_set,
            "digest": "0" * 64,
            "rows": 1,
            "file": "rows.jsonl",
            "created_by": build.cast.trainer,
        },
    )
    return TrainingRun.submit(
        key=uuid.uuid4(),
        project=build.cast.project,
        actor=Actor(build.cast.trainer),
        base=build.version(),
        dataset=dataset,
        task_set=task_set,
        algorithm="sft",
        tuning={"mode": "full"},
        settings=settings,
        spec_digest="0" * 64,
    )[0]
