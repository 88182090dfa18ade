"""The worker's side of a run whose trainer shares only a storage with it: gives the job its directory, and brings back
what the job makes, so that the run's directory here is as if the trainer worked in it. No Django."""

import json
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from flywheel.core import digests
from workers.trainers.run import checkpoints, kept_attempts, run_directory, run_spec
from workers.trainers.run.run_spec import Source, Spec
from workers.trainers.stored import run_storage
from workers.trainers.stored.run_storage import Files, Storage, StorageError
from workers.trainers.weights import best_weights

REMEMBERED = "ray.json"
"""File of a run directory with the folder of its last job."""
AT_ONCE_S = 2.0
"""Time that weights are fetched before events are looked at again; a file that was begun is fetched to its end."""


class FollowedJob:
    """The last job of a run directory. `folder` is the job's own in the storage; empty before there is one."""

    def __init__(self, storage: Storage, run: str, place: Path) -> None:
        self.storage, self.run, self.place = storage, run, place
        self.folder = _remembered(place)
        self._mark = uuid.uuid4().hex[:8]
        self._at: dict[str, int] = {}
        """How far each file that only grows is here."""
        self._here: set[str] = set()
        """Digests of the directories that were made and are here."""
        self._has_asked = False

    @property
    def key(self) -> bytes:
        """The key with which the run's checkpoints are signed, and by which a job shows that it is the run's."""
        return checkpoints.key_of(self.place)

    def take(self, folder: str) -> None:
        """Follow the job of this folder from now on."""
        if not self._number(folder):
            raise StorageError(f"{folder!r} is no folder of {self.run}")
        if folder == self.folder:
            return
        aside = self.place / f"{REMEMBERED}.aside"
        aside.write_text(json.dumps({"folder": folder}))
        aside.rename(self.place / REMEMBERED)
        self.folder, self._has_asked = folder, False
        self._at.clear()
        self._here.clear()

    def is_new(self, folder: str) -> bool:
        """Whether this is the folder of the last job or of a later one: what others appended has been written over."""
        return self._number(folder) >= max(1, self._number(self.folder))

    def give(self, attempt: str) -> str:
        """Put what a job needs, in a folder that is this job's alone, and take that. Returns the SHA-256 of what names
        the files. Raises StorageError, TrainingError where the spec cannot be read, and OSError."""
        _cut_torn_line(self.place / "events.jsonl")
        spec = run_spec.read(self.place, run_spec.ANY_TRAINER)
        for source in spec.sources:
            self._give_source(source)
        folder, files = f"runs/{self.run}/{attempt}-{self._mark}", self._needed(spec)
        content = digests.canonical(files)
        self.storage.put_tree(self.place, files, f"{folder}/given")
        self.storage.write(f"{folder}/given.json", content)
        self.take(folder)
        return run_storage.sha256(content)

    def follow(self) -> bool:
        """Bring what is new here. Answers whether everything is here that the job has told of so far. Raises
        StorageError and OSError."""
        until = time.monotonic() + AT_ONCE_S
        if not self.folder:
            return True
        if not self._has_asked and (self.place / "CANCEL").exists():
            self.ask_to_stop()
        content = self.storage.read(f"{self.folder}/made.json")  # before the rest, which is then complete if this is
        for name in run_storage.TAILS:
            self._append(name)
        self._fetch_attempts()
        if content is None:
            return True
        made = run_storage.verified(self.key, content)
        if not self._fetch_trees(made["trees"], until):
            return False
        if made["result"] is not None:
            aside = self.place / "result.json.aside"
            aside.write_bytes(digests.canonical(made["result"]))
            aside.rename(self.place / "result.json")
        return True

    def ask_to_stop(self) -> None:
        """Have the job save and stop."""
        self.storage.write(f"{self.folder}/CANCEL", b"save and stop\n")
        self._has_asked = True

    def leave(self) -> bool:
        """The same of a job that is taken for lost. Should it live, it is asked to stop."""
        if not self._has_asked:
            self.ask_to_stop()
        return self.follow()

    def forget(self) -> None:
        """Remove what a job that is over, and of which everything is here, has in the storage."""
        if self.folder:
            self.storage.remove(self.folder)
            (self.place / REMEMBERED).unlink(missing_ok=True)
            self.folder = ""

    def _number(self, folder: str) -> int:
        """The attempt whose folder this is; 0 for none of this run."""
        found = re.fullmatch(rf"runs/{re.escape(self.run)}/a(\d+)-\w+", folder)
        return int(found[1]) if found else 0

    def _append(self, name: str) -> None:
        """Bring the pieces that a file lacks. An owner that died may have left half of one: it is written again."""
        path, folder = self.place / name, f"{self.folder}/made/{name}"
        if name not in self._at:
            size = path.stat().st_size if path.exists() else 0
            starts = [int(piece) for piece in self.storage.names(folder) if piece.isdigit()]
            self._at[name] = max((start for start in starts if start <= size), default=size)
        while (piece := self.storage.read(f"{folder}/{self._at[name]:015d}")) is not None:
            path.touch()
            with path.open("r+b") as file:
                file.seek(self._at[name])
                file.write(piece)
            self._at[name] += len(piece)

    def _fetch_attempts(self) -> None:
        folder = f"{self.folder}/made/{kept_attempts.FOLDER}"
        for name in self.storage.names(folder):
            if kept_attempts.NAME.fullmatch(name):
                self.storage.get(f"{folder}/{name}", self.place / kept_attempts.FOLDER / name)
                self.storage.remove(f"{folder}/{name}")

    def _fetch_trees(self, trees: dict[str, Files], until: float) -> bool:
        """Bring the directories that are not here, the newest first, as far as there is time."""
        for name in trees:
            if run_storage.TREE.fullmatch(name) is None:
                raise StorageError(f"{name!r} is no directory that a run makes")
        for name in sorted(trees, key=_step, reverse=True):
            digest = digests.digest([name, trees[name]])
            if digest in self._here:
                continue
            target = self.place / name
            if not (target.is_dir() and checkpoints.files_of(target) == trees[name]):
                aside = self.place / run_directory.WORK / f"stored-{digest[:16]}"
                try:
                    if not self.storage.get_tree(f"{self.folder}/made/{name}", trees[name], aside, until):
                        return False
                except StorageError:
                    if self._is_made(name):
                        raise
                    return False  # removed meanwhile, as newer ones came
                checkpoints.move(aside, target)
                self._drop_old(target)
            self._here.add(digest)
        return True

    def _is_made(self, name: str) -> bool:
        content = self.storage.read(f"{self.folder}/made.json")
        return content is not None and name in run_storage.verified(self.key, content)["trees"]

    def _drop_old(self, new: Path) -> None:
        """Remove what the trainer removes where it works."""
        if new.parent.name == checkpoints.PLACE:
            keep = run_spec.read(self.place, run_spec.ANY_TRAINER).settings["keep_checkpoints"]
            checkpoints.prune(self.place, keep)
        elif new.parent.name == best_weights.PLACE:
            for other in new.parent.iterdir():
                if other != new:
                    shutil.rmtree(other)

    def _needed(self, spec: Spec) -> dict[str, dict[str, Any]]:
        """The files of the directory from which a trainer goes on."""
        resumed, _ = checkpoints.newest(self.place, spec.digest)
        names = [self.place / name for name in ("spec.json", *run_storage.TAILS)]
        folders = [self.place / "data", self.place / best_weights.PLACE, *([resumed.path] if resumed else [])]
        files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
        found = [path for path in (*names, *files) if path.exists()]
        return {path.relative_to(self.place).as_posix(): checkpoints.entry_of(path) for path in found}

    def _give_source(self, source: Source) -> None:
        """Put a model or adapter, unless it is there. Files come first, what names them last."""
        folder = f"sources/{source.digest}"
        if not re.fullmatch("[0-9a-f]{64}", source.digest):
            raise StorageError(f"{source.path} has no digest in spec.json, by which a job would find it")
        if self.storage.size(f"{folder}.json") is not None:
            return
        files = checkpoints.files_of(source.path, links=True)
        if checkpoints.digest_of(files) != source.digest:
            raise StorageError(f"{source.path} is not what its digest {source.digest} says: it was changed")
        self.storage.put_tree(source.path, files, folder)
        self.storage.write(f"{folder}.json", digests.canonical(files))


def _step(name: str) -> int:
    """The step of a directory's name; `final` comes first of all."""
    return int(name.rpartition("-")[2]) if "-" in name else 10**9


def _remembered(place: Path) -> str:
    try:
        return str(json.loads((place / REMEMBERED).read_bytes())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _cut_torn_line(events: Path) -> None:
    """The trainer would, so that offsets here and there would differ."""
    if not events.exists():
        return
    with events.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
