"""A run on a cluster's machine that shares only a storage with its worker: fetched, trained, and put there meanwhile.

    python -m workers.trainers.stored.stored_job --storage URL --folder runs/RUN/ATTEMPT --given SHA256 MODULE

The trainer is the same as anywhere, on a directory of this machine that is removed in the end (TMPDIR says where). If
this process dies, the trainer leaves at once. It ends with the trainer's exit code, or where the storage is the problem
with EXIT_STORAGE and a line that begins with NOTICE. No Django.
"""

import argparse
import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workers.processes import model_process
from workers.trainers.run import checkpoints, kept_attempts, run_directory, run_spec
from workers.trainers.run.run_failures import TrainingError
from workers.trainers.stored import run_storage
from workers.trainers.stored.run_storage import Files, Storage, StorageError

EXIT_STORAGE = 66
NOTICE = "flywheel: "
LOOK_EVERY_S = 1.0
PIECE = 8_000_000
"""Bytes of what was appended that are put at once."""
CODE = Path(__file__).parents[3]
SCRATCH = "flywheel-job-"


class StoredJob:
    """One attempt: its directory here, and its folder in the storage."""

    def __init__(self, storage: Storage, folder: str, scratch: Path) -> None:
        self.storage, self.folder = storage, folder
        self.place, self.sources = scratch / "run", scratch / "sources"
        self._put: dict[str, int] = {}
        """Bytes of each file that only grows which are in the storage."""
        self._given: frozenset[str] = frozenset()
        """Directories that the worker has."""
        self._trees: dict[str, Files] = {}
        """Directories that were made and are in the storage, with their files."""
        self._key = b""
        self._is_away = False
        self._refused: StorageError | None = None
        self._over = threading.Event()

    def fetch(self, given: str, key: bytes) -> None:
        """Make the run's directory here, and what its spec names. Raises StorageError and TrainingError."""
        content = self.storage.read(f"{self.folder}/given.json")
        if content is None or run_storage.sha256(content) != given:
            problem = "is not there" if content is None else "is not what its SHA-256 says"
            raise StorageError(f"{self.storage.url}/{self.folder}/given.json {problem}")
        self.storage.get_tree(f"{self.folder}/given", json.loads(content), self.place)
        self._key, self._given = key, frozenset(self._steps())
        (self.place / checkpoints.KEY).touch(0o600)
        (self.place / checkpoints.KEY).write_bytes(key)
        self._put = {name: _size(self.place / name) for name in run_storage.TAILS}
        for source in run_spec.read(self.place, run_spec.ANY_TRAINER).sources:
            self._fetch_source(source.digest)

    def train(self, module: str, processes: int) -> int:
        """Run the trainer to its end, while what it makes is put into the storage. Returns its exit code. Raises
        StorageError where the storage does not take what it made."""
        trainer = self._start(module, processes)
        signal.signal(signal.SIGTERM, lambda *_: _end(trainer))
        keeper = threading.Thread(target=self._keep_trees, daemon=True)
        keeper.start()
        while trainer.poll() is None:
            self._trying(self._keep_small)
            if self._refused is not None:
                os.killpg(trainer.pid, signal.SIGKILL)  # or it would go on in vain
                trainer.wait()
                raise self._refused
            time.sleep(LOOK_EVERY_S)
        self._over.set()
        keeper.join()
        for act in (self._keep_small, functools.partial(self.keep_trees, is_over=True)):
            run_storage.insist(act, self._report)
        return trainer.returncode

    def keep_trees(self, *, is_over: bool = False) -> None:
        """Put the checkpoints that are new, the newest first; in the end weights and result. Raises StorageError."""
        found, result = self._steps(), self.place / "result.json"
        ended = json.loads(result.read_bytes()) if is_over and result.exists() else None
        if ended is not None and (self.place / run_directory.FINAL).is_dir():
            found.append(run_directory.FINAL)
        for name in reversed(found):
            if name not in self._trees and name not in self._given and (files := self._put_tree(name)):
                self._trees[name] = files
                self._tell(None)
        gone = sorted(self._trees.keys() - set(found))
        for name in gone:
            del self._trees[name]
        if gone or ended is not None:
            self._tell(ended)
        for name in gone:
            self.storage.remove(f"{self.folder}/made/{name}")

    def _steps(self) -> list[str]:
        """Directories of checkpoints and weights, the newest last."""
        named = (path.relative_to(self.place).as_posix() for path in self.place.glob("*/step-*"))
        return sorted(filter(run_storage.TREE.fullmatch, named), key=lambda name: int(name.rpartition("-")[2]))

    def _put_tree(self, name: str) -> Files | None:
        """The files of a directory, which are in the storage now; None where the trainer removed some meanwhile."""
        tree = self.place / name
        try:
            files = checkpoints.files_of(tree)
            self.storage.put_tree(tree, files, f"{self.folder}/made/{name}")
        except (OSError, StorageError):
            if tree.is_dir():
                raise
            return None
        return files if all((tree / each).exists() for each in files) else None

    def _tell(self, result: dict[str, Any] | None) -> None:
        made = {"trees": self._trees, "result": result}
        self.storage.write(f"{self.folder}/made.json", run_storage.signed(self._key, made))

    def _keep_small(self) -> None:
        """Put what was appended, and samples; take note of the asking to stop."""
        for name in run_storage.TAILS:
            while self._put_piece(name):
                pass
        for _, path in kept_attempts.waiting(self.place):
            self.storage.put(path, f"{self.folder}/made/{kept_attempts.FOLDER}/{path.name}")
            path.unlink()
        if not (self.place / "CANCEL").exists() and self.storage.size(f"{self.folder}/CANCEL") is not None:
            (self.place / "CANCEL").touch()

    def _put_piece(self, name: str) -> bool:
        path, start = self.place / name, self._put[name]
        if _size(path) <= start:
            return False
        with path.open("rb") as file:
            file.seek(start)
            piece = file.read(PIECE)
        if name.endswith(".jsonl"):  # half a line may yet be taken back
            piece = piece[: piece.rfind(b"\n") + 1]
        if not piece:
            return False
        self.storage.write(f"{self.folder}/made/{name}/{start:015d}", piece)
        self._put[name] += len(piece)
        return True

    def _keep_trees(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._trying(self.keep_trees)

    def _trying(self, act: Callable[[], None]) -> None:
        """A storage that is away for a while does not stop the training."""
        try:
            act()
        except (OSError, StorageError) as error:
            if isinstance(error, StorageError) and not error.may_pass:
                self._refused = error
            elif not self._is_away:
                self._report(error)
            self._is_away = True
        else:
            self._is_away = False

    def _report(self, problem: Exception) -> None:
        print(f"{problem}; trying again", flush=True)

    def _fetch_source(self, digest: str) -> None:
        folder = f"sources/{digest}"
        content = self.storage.read(f"{folder}.json")
        if content is None:
            raise StorageError(f"{self.storage.url}/{folder}.json is not there")
        try:
            files = json.loads(content)
            if checkpoints.digest_of(files) != digest:
                raise StorageError(f"{self.storage.url}/{folder}.json is not what its name says")
            self.storage.get_tree(folder, files, self.sources / digest)
        except StorageError as error:
            if error.may_pass:
                raise
            raise StorageError(
                f"{error}. Remove {folder}.json and {folder} there and resume: they are put again"
            ) from None

    def _start(self, module: str, processes: int) -> subprocess.Popen[bytes]:
        told = {
            run_spec.SOURCES: str(self.sources),
            "FLYWHEEL_SUPERVISED": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with (self.place / "trainer.log").open("ab") as output:
            return subprocess.Popen(
                run_directory.command(module, self.place, processes),
                cwd=CODE,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=model_process.environment("FLYWHEEL_SANDBOX_WITHOUT") | told,
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out the job that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("storage", "folder", "given"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("module")
    asked = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with _scratch() as scratch:
            key = bytes.fromhex(os.environ.pop(run_storage.KEY_VARIABLE))
            job = StoredJob(Storage(asked.storage), asked.folder, scratch)
            run_storage.insist(lambda: job.fetch(asked.given, key), job._report)
            code = job.train(asked.module, asked.processes)
            return code if code >= 0 else 128 - code
    except (StorageError, TrainingError, OSError) as error:
        print(f"{NOTICE}on {socket.gethostname()}: {error}", flush=True)
        return EXIT_STORAGE


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A directory of this process's own. Those of jobs that were killed, which have weights in them, are removed."""
    for other in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            _own(other)
            shutil.rmtree(other)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True) as name:
        with contextlib.suppress(OSError):  # a file system without locks: then nobody sweeps it
            _own(Path(name))
        yield Path(name)


def _own(scratch: Path) -> None:
    """Hold a directory for the life of this process. Raises OSError where another one does."""
    fcntl.flock(os.open(scratch, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _end(trainer: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGTERM)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
