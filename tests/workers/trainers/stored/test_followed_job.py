"""What comes back of a job, piece by piece, whoever follows it and however often."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.workers.trainers.cast import Directory
from workers.trainers.run import checkpoints
from workers.trainers.stored import followed_job, run_storage
from workers.trainers.stored.followed_job import FollowedJob
from workers.trainers.stored.run_storage import Storage, StorageError

FOLDER = "runs/r/a1-ff"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "storage").mkdir()
    return Storage(f"file://{tmp_path}/storage")


@pytest.fixture
def run(tmp_path: Path) -> Directory:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "weight").write_text("w")
    return Directory(tmp_path / "r", tmp_path / "base")


@pytest.fixture
def job(storage: Storage, run: Directory) -> FollowedJob:
    found = FollowedJob(storage, "r", run.path)
    found.take(FOLDER)
    return found


def make(storage: Storage, key: bytes, *trees: str, result: Any = None, content: str = "of {}") -> dict[str, Any]:
    """What a job does that has made these directories."""
    made: dict[str, Any] = {}
    for tree in trees:
        said = content.format(tree).encode()
        storage.write(f"{FOLDER}/made/{tree}/weights", said)
        made[tree] = {"weights": {"sha256": hashlib.sha256(said).hexdigest(), "size": len(said)}}
    storage.write(f"{FOLDER}/made.json", run_storage.signed(key, {"trees": made, "result": result}))
    return made


def test_pieces_are_joined_from_wherever_an_owner_died(storage: Storage, run: Directory) -> None:
    pieces = [b'{"event": "a"}\n', b'{"event": "b"}\n{"event": "c"}\n', b'{"event": "d"}\n']
    whole, events = b"".join(pieces), run.path / "events.jsonl"
    for died_at in range(len(whole) + 1):
        start = 0
        for piece in pieces:
            storage.write(f"{FOLDER}/made/events.jsonl/{start:015d}", piece)
            start += len(piece)
        events.write_bytes(whole[:died_at])
        job = FollowedJob(storage, "r", run.path)
        job.take(FOLDER)
        assert job.follow()
        assert events.read_bytes() == whole


def test_a_directory_that_is_removed_while_it_is_fetched_is_left_out(
    storage: Storage, job: FollowedJob, run: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(storage, job.key, "checkpoints/step-2")
    get = storage.get

    def late(name: str, *more: Any) -> None:
        storage.remove(f"{FOLDER}/made/checkpoints/step-2")
        make(storage, job.key, "checkpoints/step-4")
        get(name, *more)

    with monkeypatch.context() as slow:
        slow.setattr(storage, "get", late)
        assert not job.follow()
    assert job.follow()
    assert run.steps_kept == [4]


def test_a_file_that_is_missing_is_an_error(storage: Storage, job: FollowedJob) -> None:
    make(storage, job.key, "checkpoints/step-2")
    storage.remove(f"{FOLDER}/made/checkpoints/step-2")
    with pytest.raises(StorageError, match="cannot be fetched"):
        job.follow()


def test_as_many_checkpoints_stay_as_where_it_trains_and_one_best(
    storage: Storage, job: FollowedJob, run: Directory
) -> None:
    for step in (2, 4, 6):
        make(storage, job.key, f"checkpoints/step-{step}", f"best/step-{step}")
        assert job.follow()
    assert run.steps_kept == [4, 6]
    assert [path.name for path in (run.path / "best").iterdir()] == ["step-6"]


def test_a_step_that_came_again_replaces_the_first(storage: Storage, job: FollowedJob, run: Directory) -> None:
    make(storage, job.key, "checkpoints/step-2", content="first {}")
    assert job.follow()
    make(storage, job.key, "checkpoints/step-2", content="again {}")
    assert job.follow()
    assert (run.path / "checkpoints" / "step-2" / "weights").read_text() == "again checkpoints/step-2"


def test_much_is_fetched_bit_by_bit_and_the_result_comes_last(
    storage: Storage, job: FollowedJob, run: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_job, "AT_ONCE_S", -1.0)
    made = make(storage, job.key, "final", result={"status": "completed"})
    assert not job.follow()
    assert not (run.path / "result.json").exists()
    monkeypatch.undo()
    assert job.follow()
    assert (run.result, checkpoints.files_of(run.path / "final")) == ({"status": "completed"}, made["final"])


@pytest.mark.parametrize("tree", ["../final", "data", "checkpoints/step-2/..", "/tmp/x"])
def test_a_directory_that_no_run_makes_is_refused(tree: str, storage: Storage, job: FollowedJob) -> None:
    storage.write(f"{FOLDER}/made.json", run_storage.signed(job.key, {"trees": {tree: {}}, "result": None}))
    with pytest.raises(StorageError, match="is no directory that a run makes"):
        job.follow()


def test_a_folder_of_an_earlier_attempt_is_not_brought_again(job: FollowedJob) -> None:
    job.take("runs/r/a10-00")
    assert [job.is_new(f"runs/r/a{number}-00") for number in (9, 10, 11)] == [False, True, True]
    assert not job.is_new("runs/another/a12-00")
    with pytest.raises(StorageError, match="is no folder of r"):
        job.take("runs/r/../x/a1-00")


def test_a_base_without_a_digest_or_another_than_it_says_is_not_given(job: FollowedJob, run: Directory) -> None:
    (run.path.parent / "base" / "weight").write_text("another")
    with pytest.raises(StorageError, match="is not what its digest"):
        job.give("a1")
    run.spec["base"]["digest"] = ""
    run.save()
    with pytest.raises(StorageError, match="has no digest"):
        job.give("a1")


def test_half_a_line_is_cut_before_it_is_given(storage: Storage, job: FollowedJob, run: Directory) -> None:
    (run.path / "events.jsonl").write_bytes(b'{"event": "a"}\n{"ev')
    job.give("a2")
    assert (run.path / "events.jsonl").read_bytes() == b'{"event": "a"}\n'
    assert storage.read(f"{job.folder}/given/events.jsonl") == b'{"event": "a"}\n'
    assert FollowedJob(storage, "r", run.path).folder == job.folder
