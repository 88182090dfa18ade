"""A run's data is compared with what measures it before its trainer starts: refused, stopped, taken over."""

from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import LeaseLost, State
from flywheel.environments.models import Split, Task
from flywheel.training.datasets import contamination_checks
from flywheel.training.datasets.dataset_builder import build as dataset
from flywheel.training.models import ContaminationCheck, TrainingRun
from tests.conftest import Build, Cast
from tests.workers.jobs.training.test_training_runs import Launch, carry_out, launched, page, version  # noqa: F401
from workers.jobs.training import leak_watch, training_runs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is launched has more rows than anybody waits for."""
    monkeypatch.setattr(contamination_checks, "AT_ONCE", 1)


@pytest.fixture
def run(large: None, launched: Launch, build: Build, cast: Cast) -> TrainingRun:  # noqa: F811
    """A run that was launched on rows which nobody has compared yet."""
    base, task_set = version(build), build.task_set(train=4, held_out=3)
    task_set.tasks.filter(split=Split.TRAIN).update(bucket="wrong_tool")
    rows = dataset(name="mail", kind="sft", task_set=task_set, version=base, actor=Actor(cast.trainer))
    assert not ContaminationCheck.objects.exists()
    return launched(base=base, task_set=task_set, dataset=rows)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[TrainingRun]:
    """The runs whose trainer would have been started, none of which is."""
    runs: list[TrainingRun] = []
    monkeypatch.setattr(training_runs, "prepare", lambda _, place: place.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(training_runs, "_follow_until_done", lambda _, run, *__: runs.append(run))
    monkeypatch.setattr(training_runs, "_keep", lambda lease, *_: lease.finish(State.SUCCEEDED))
    return runs


def contaminate(run: TrainingRun) -> None:
    """Let a held-out task ask and want what a train task does."""
    one = run.task_set.tasks.filter(split=Split.TRAIN).earliest("number")
    held_out = run.task_set.tasks.filter(split=Split.HELD_OUT).earliest("number")
    Task.objects.filter(pk=held_out.pk).update(prompt=one.prompt, target=one.target)


def test_contaminated_data_never_starts_a_trainer(
    run: TrainingRun,
    started: list[TrainingRun],
    page: Callable[[TrainingRun], str],  # noqa: F811
) -> None:
    contaminate(run)
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "contamination")
    assert run.error.startswith(f"1 of 3 held-out tasks of {run.task_set} are in the training data: ")
    assert run.error.endswith("retire the tasks on one side and freeze the set again; the data is mail@1")
    assert "nobody can override this" in page(run)
    run.resume(Actor(run.created_by))
    carry_out(run)
    assert (run.state, run.error_kind) == (State.FAILED, "contamination")
    assert not started
    assert not run.directory.exists()


def test_what_was_compared_once_is_not_compared_again(
    run: TrainingRun, started: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(run)
    assert (run.state, len(started)) == (State.SUCCEEDED, 1), run.error
    assert run.events.filter(text__contains="nothing forbids to train").exists()
    check = ContaminationCheck.objects.get(dataset=run.dataset)
    TrainingRun.objects.filter(pk=run.pk).update(state=State.CANCELLED)
    run.resume(Actor(run.created_by))
    monkeypatch.setattr(contamination_checks, "check", lambda *_: pytest.fail("compared again"))
    assert carry_out(run).state == State.SUCCEEDED, run.error
    assert (len(started), ContaminationCheck.objects.get(dataset=run.dataset)) == (2, check)


def test_a_run_is_cancelled_while_it_compares_and_compares_anew_when_it_is_resumed(
    run: TrainingRun, started: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leak_watch, "LOOK_EVERY_S", 0.0)
    lease = TrainingRun.claim(run.pk)
    assert lease is not None
    with lease:
        lease._cancelled.set()
        training_runs.train(lease)
    run.refresh_from_db()
    assert (run.state, run.message) == (State.CANCELLED, leak_watch.COMPARING)
    assert not started
    assert not ContaminationCheck.objects.exists()
    run.resume(Actor(run.created_by))
    assert carry_out(run).state == State.SUCCEEDED, run.error
    assert (len(started), run.message) == (1, "")


def test_who_takes_over_while_it_compares_trains_and_the_former_owner_does_not(
    run: TrainingRun, started: list[TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leak_watch, "LOOK_EVERY_S", 0.0)
    silent = TrainingRun.claim(run.pk)
    assert silent is not None
    TrainingRun.objects.filter(pk=run.pk).update(lease_until=run.created_at)
    rows = contamination_checks._rows

    def taken_over(data: Any) -> Any:
        """At the first row that the silent owner reads, another carries the run out."""
        monkeypatch.setattr(contamination_checks, "_rows", rows)
        carry_out(run)
        silent._lost.set()
        yield from rows(data)

    monkeypatch.setattr(contamination_checks, "_rows", taken_over)
    with pytest.raises(LeaseLost):
        leak_watch.refusal(silent, run)
    run.refresh_from_db()
    assert (run.state, run.attempt, len(started)) == (State.SUCCEEDED, 2, 1), run.error
    assert ContaminationCheck.objects.filter(dataset=run.dataset).count() == 1
