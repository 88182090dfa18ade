"""The storage between a worker and a cluster: files whole or not at all, and errors that say what is wrong."""

import errno
from pathlib import Path
from typing import Any

import pytest

from workers.trainers.run import checkpoints
from workers.trainers.stored import run_storage
from workers.trainers.stored.run_storage import Storage, StorageError


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "storage").mkdir()
    return Storage(f"file://{tmp_path}/storage")


def test_a_tree_goes_there_and_comes_back(storage: Storage, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "in").mkdir(parents=True)
    (source / "in" / "a b").write_text("one")
    (source / "two").write_text("two")
    files = checkpoints.files_of(source)
    storage.put_tree(source, files, "tree")
    assert storage.names("tree") == ["in", "two"]
    assert storage.get_tree("tree", files, target)
    assert checkpoints.files_of(target) == files
    storage.remove("tree")
    storage.remove("tree")
    assert (storage.read("tree/two"), storage.size("tree/two"), storage.names("tree")) == (None, None, [])


def test_a_file_that_was_put_by_half_has_no_name(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(source: str, target: str) -> None:
        Path(target).write_text("ha")
        raise OSError(errno.EIO, "gone")

    (tmp_path / "file").write_text("half")
    monkeypatch.setattr(storage._files, "put_file", half)
    with pytest.raises(StorageError, match=r"x/file cannot be written: .*gone") as failed:
        storage.put(tmp_path / "file", "x/file")
    assert failed.value.may_pass
    assert storage.names("x") == []


def test_a_file_that_was_changed_does_not_arrive(storage: Storage, tmp_path: Path) -> None:
    storage.write("file", b"one")
    entry = {"sha256": run_storage.sha256(b"two"), "size": 3}
    with pytest.raises(StorageError, match="file is not what its SHA-256 says") as failed:
        storage.get("file", tmp_path / "in" / "file", entry)
    assert not failed.value.may_pass
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", ".", "a//b", "./a"])
def test_a_name_does_not_lead_out_of_its_directory(name: str, storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is no name of a file"):
        storage.get_tree("tree", {name: {"sha256": "", "size": 1}}, tmp_path / "target")


class NoCredentialsError(Exception):
    """As botocore names it."""


@pytest.mark.parametrize(
    ("error", "words", "may_pass"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full; make room and resume", False),
        (PermissionError("Access Denied"), "x cannot be read: Access Denied", False),
        (NoCredentialsError("Unable to locate credentials"), "no credentials for it on this machine", False),
        (TimeoutError("timed out"), "x cannot be read: timed out", True),
        (ConnectionError(), "x cannot be read: ConnectionError", True),
    ],
)
def test_an_error_says_what_is_wrong_and_whether_it_may_pass(
    error: Exception, words: str, may_pass: bool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(storage._files, "cat_file", fails)
    with pytest.raises(StorageError) as failed:
        storage.read("x")
    assert words in str(failed.value)
    assert failed.value.may_pass is may_pass


def test_a_folder_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}/mount")
    for act in (lambda: storage.read("x"), lambda: storage.write("x", b""), lambda: storage.names("x")):
        with pytest.raises(StorageError, match="mount is no folder on this machine; mount or make it") as failed:
            act()
        assert failed.value.may_pass
    assert list(tmp_path.iterdir()) == []


def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_storage, "RETRY_S", 0.0)
    problems = [StorageError("away", may_pass=True), StorageError("away", may_pass=True)]
    told: list[Exception] = []

    def act() -> str:
        if problems:
            raise problems.pop()
        return "done"

    assert run_storage.insist(act, told.append) == "done"
    assert len(told) == 2
    problems.append(StorageError("no"))
    with pytest.raises(StorageError, match="no"):
        run_storage.insist(act, told.append)


def test_only_the_holder_of_the_key_says_what_was_made() -> None:
    made = {"trees": {"final": {"a": {"sha256": "0" * 64, "size": 1}}}, "result": None}
    content = run_storage.signed(b"k" * 32, made)
    assert run_storage.verified(b"k" * 32, content) == made
    with pytest.raises(StorageError, match="was not signed by this run's job"):
        run_storage.verified(b"j" * 32, content)
    with pytest.raises(StorageError, match="damaged"):
        run_storage.verified(b"k" * 32, content[:-3])
