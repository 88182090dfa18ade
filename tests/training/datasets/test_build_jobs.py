"""Datasets that a worker builds: whole or not at all, whatever is in the file and whoever dies."""

import io
import json
import uuid
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import Lease, State
from flywheel.environments.models import Split
from flywheel.training.datasets import build_jobs, dataset_files
from flywheel.training.models import Dataset, DatasetBuild
from flywheel.trajectories.import_export import uploads
from tests.training.conftest import Room
from workers.jobs.training import dataset_builds

pytestmark = pytest.mark.django_db(transaction=True)


def chat(asked: str, said: str = "Done.") -> str:
    talk = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return json.dumps({"messages": talk})


HELD_OUT = "Cancel my lunch with Bako on tuesday"
FILE = "\n".join(
    [line for number in range(10) for line in (chat(f"Question {number}?"), "{broken")]
    + [chat("question 3?"), chat(HELD_OUT), chat("<script>alert(1)</script>\u202e")]
)


def submitted(room: Room, content: str = FILE, **fields: Any) -> DatasetBuild:
    project, trainer = room.cast.project, room.cast.trainer
    kept = uploads.keep(project, trainer, "talks.jsonl", io.BytesIO(content.encode()))
    return build_jobs.submit_upload(
        project=project,
        name="talks",
        upload=kept,
        card={"licence": "MIT"},
        actor=Actor(trainer),
        key=fields.pop("key", uuid.uuid4()),
        **fields,
    )


def work(job: DatasetBuild) -> DatasetBuild:
    lease = DatasetBuild.claim(job.pk)
    assert isinstance(lease, Lease)
    with lease:
        dataset_builds.build(lease)
    job.refresh_from_db()
    return job


def files(room: Room) -> int:
    return len(list(uploads._directory(room.cast.project).glob("*")))


def test_good_rows_are_taken_and_the_others_listed(room: Room) -> None:
    room.build.task(Split.SEALED, prompt=HELD_OUT)
    job = submitted(room)
    assert not Dataset.objects.exists()
    work(job)
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    made = job.dataset
    assert made is not None
    assert (made.rows, made.recipe["problem_count"], made.recipe["duplicates"]) == (11, 10, 1)
    assert made.recipe["measured"] == {"count": 1, "first": ["line 22"]}
    assert job.problems[0]["at"] == "line 2"
    assert made.contamination_checks.count() == 1
    assert files(room) == 0


class Killed(BaseException):
    """What ends a process without a word."""


@pytest.mark.parametrize("step", ["store", "freeze", "near"])
def test_who_takes_over_builds_one_whole_dataset(room: Room, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    job = submitted(room)
    lease = DatasetBuild.claim(job.pk)
    assert lease is not None

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(dataset_files, step, killed)
        with pytest.raises(Killed):
            dataset_builds.build(lease)
    assert not Dataset.objects.exists()
    DatasetBuild.objects.update(lease_until="2020-01-01T00:00:00Z")
    assert work(job).state == State.SUCCEEDED
    assert [made.rows for made in Dataset.objects.all()] == [12]
    assert files(room) == 0


def test_nothing_is_left_of_one_that_is_cancelled(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_builds, "TOLD_EVERY_S", 0)
    job = submitted(room)
    lease = DatasetBuild.claim(job.pk)
    assert lease is not None
    lease._cancelled.set()
    with lease:
        dataset_builds.build(lease)
    job.refresh_from_db()
    assert (job.state, Dataset.objects.count(), files(room)) == (State.CANCELLED, 0, 0)
    waiting = submitted(room)
    waiting.cancel(Actor(room.cast.trainer))
    build_jobs.sweep()
    assert files(room) == 0


def test_a_file_without_a_row_says_why(room: Room) -> None:
    job = work(submitted(room, "{broken"))
    assert (job.state, files(room)) == (State.FAILED, 0)
    assert "no row of the file can be taken" in job.error


def test_a_double_click_builds_one(room: Room) -> None:
    key = uuid.uuid4()
    assert submitted(room, key=key) == submitted(room, key=key)
    assert files(room) == 2
