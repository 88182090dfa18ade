"""A storage that a worker and a cluster's machines both reach, by an fsspec URL, and the lay-out of runs in it.

    sources/<digest>/…      bases, adapters and reward models, put once; `sources/<digest>.json` names their files
    runs/<run>/<attempt>/   one job's own, so that a job which was taken for lost writes over nobody
        given/…             the run's directory as the job finds it; `given.json` names its files
        CANCEL              asks the job to save and stop
        made/events.jsonl/  what was appended, piece by piece, each named by its offset; so is trainer.log
        made/attempts/      samples that nobody has stored yet
        made/checkpoints/step-N/, made/best/step-N/, made/final/
        made.json           names these directories and their files, with the result; signed with the run's key

Names come last: what a file like `made.json` does not name is not whole yet. Whoever reads it compares each file's
SHA-256. `checkpoint.key` is never put there.
"""

import errno
import hashlib
import hmac
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import fsspec

from flywheel.core import digests
from workers.trainers.run import checkpoints

T = TypeVar("T")
Files = Mapping[str, Mapping[str, Any]]
"""`{relative name: {"sha256", "size"}}`"""
AWAY_S = 300.0
"""Time that a storage may be away before a run that wants it fails."""
RETRY_S = 2.0
TAILS = ("events.jsonl", "trainer.log")
"""Files of a run directory that only grow."""
TREE = re.compile(r"(?:checkpoints|best)/step-\d{1,9}|final")
"""Directories of a run that appear whole and do not change."""
KEY_VARIABLE = "FLYWHEEL_RUN_KEY"
"""The environment variable by which a job is told the key that signs its run's checkpoints, in hexadecimal digits."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WHOLE_AT_ONCE = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Protocols of object stores, where nobody sees half of an object, and a rename would be a copy."""


class StorageError(Exception):
    """The message says what went wrong. `may_pass`: whether it could work later without anybody's doing."""

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class Storage:
    """Files below a URL. Every method raises StorageError."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._reported("cannot be used"):
            self._files, self._root = fsspec.core.url_to_fs(url)
        protocols = self._files.protocol
        named = {protocols} if isinstance(protocols, str) else set(protocols)
        self._is_whole_at_once = bool(named & _WHOLE_AT_ONCE)

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        with self._reported(f"{name} cannot be read"):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                self._check_root()
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of the one that is there."""
        with self._writing(name) as path:
            self._files.pipe_file(path, content)

    def put(self, source: Path, name: str) -> None:
        """Copy a file of this machine there."""
        with self._writing(name) as path:
            self._files.put_file(str(source), path)

    def get(self, name: str, target: Path, entry: Mapping[str, Any] | None = None) -> None:
        """Copy a file to this machine, whole or not at all, and compare it with `entry`."""
        aside = target.with_name(f"{target.name}.part")
        with self._reported(f"{name} cannot be fetched"):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._path(name), str(aside))
            if entry is not None and checkpoints.entry_of(aside) != entry:
                aside.unlink()
                raise StorageError(f"{self.url}/{name} is not what its SHA-256 says: it was changed, or is damaged")
            checkpoints.fsync(aside)
            aside.rename(target)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        with self._reported(f"{name} cannot be looked at"):
            self._files.invalidate_cache()
            try:
                return int(self._files.info(self._path(name))["size"])
            except FileNotFoundError:
                self._check_root()
                return None

    def names(self, folder: str) -> list[str]:
        """Names of the files right in a folder, in order; none where there is no folder."""
        with self._reported(f"{folder} cannot be listed"):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                self._check_root()
                return []
        names = (str(path).rstrip("/").rpartition("/")[2] for path in found)
        return sorted(name for name in names if not name.endswith(".part"))

    def remove(self, name: str) -> None:
        """Remove a file or a folder with everything in it, if it is there."""
        with self._reported(f"{name} cannot be removed"):
            self._files.invalidate_cache()
            with suppress(FileNotFoundError):
                self._files.rm(self._path(name), recursive=True)

    def put_tree(self, source: Path, files: Files, folder: str) -> None:
        """Put the files of a directory that are not there yet."""
        for name, entry in files.items():
            if self.size(f"{folder}/{name}") != entry["size"]:
                self.put(source / name, f"{folder}/{name}")

    def get_tree(self, folder: str, files: Files, target: Path, until: float = float("inf")) -> bool:
        """Fetch the files that a directory lacks, until this time (monotonic). Answers whether it has all of them."""
        for name, entry in files.items():
            check_name(name)
            if (target / name).exists():
                continue
            if time.monotonic() > until:
                return False
            self.get(f"{folder}/{name}", target / name, entry)
        return True

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _writing(self, name: str) -> Iterator[str]:
        """The path to write to: another one that gets the name in the end, where half of a file could be seen."""
        path = self._path(name)
        with self._reported(f"{name} cannot be written"):
            if self._is_whole_at_once:
                yield path
                return
            self._check_root()
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            aside = f"{path}.{uuid.uuid4().hex[:8]}.part"
            try:
                yield aside
                self._files.mv(aside, path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm(aside)
                raise

    def _check_root(self) -> None:
        """A folder that is not mounted looks like an empty one, and would be made on this machine's own disk."""
        if not self._is_whole_at_once and not self._files.isdir(self._root):
            raise StorageError(f"{self.url} is no folder on this machine; mount or make it", may_pass=True)

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except ImportError as error:
            raise StorageError(f"{self.url} needs a Python package that this machine lacks: {error}") from error
        except Exception as error:  # each of fsspec's file systems has its own
            number, words = getattr(error, "errno", None), str(error) or type(error).__name__
            if number in _FULL:
                raise StorageError(f"{self.url}: {what}: the disk is full; make room and resume") from error
            lasting = isinstance(
                error,
                PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError | ValueError | TypeError,
            )
            is_unknown = "Credential" in type(error).__name__  # botocore and google-auth name them so
            why = "no credentials for it on this machine: " if is_unknown else ""
            raise StorageError(
                f"{self.url}: {what}: {why}{words[:300]}", may_pass=not lasting and not is_unknown
            ) from error


def check_name(name: str) -> None:
    """Raise StorageError for a name that leads out of its directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != name:
        raise StorageError(f"{name!r} is no name of a file in a run directory")


def sha256(content: bytes) -> str:
    """Hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def signed(key: bytes, made: Mapping[str, Any]) -> bytes:
    """The content of `made.json`."""
    return digests.canonical({**made, "hmac": _signature(key, made)})


def verified(key: bytes, content: bytes) -> dict[str, Any]:
    """Read what `made.json` says. Raises StorageError where the run's own job did not write it so."""
    try:
        made: dict[str, Any] = json.loads(content)
        signature = str(made.pop("hmac"))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise StorageError(f"made.json is damaged: {error}", may_pass=True) from error
    if not hmac.compare_digest(signature, _signature(key, made)):
        raise StorageError("made.json was not signed by this run's job: somebody else wrote to its storage")
    return made


def insist(act: Callable[[], T], told: Callable[[Exception], object], seconds: float | None = None) -> T:
    """Try until it works, or for these seconds. Raises StorageError."""
    deadline = time.monotonic() + (AWAY_S if seconds is None else seconds)
    while True:
        try:
            return act()
        except StorageError as error:
            if not error.may_pass or time.monotonic() > deadline:
                raise
            told(error)
        time.sleep(RETRY_S)


def _signature(key: bytes, made: Mapping[str, Any]) -> str:
    return hmac.new(key, digests.canonical(made), hashlib.sha256).hexdigest()
