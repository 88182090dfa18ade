"""Checkpoints of a run directory: published whole or not at all, and only loaded when they verify.

A checkpoint is written aside, gets a manifest with the SHA-256 of each file, is fsynced and renamed to
`checkpoints/step-N`. Optimizer, scheduler and random state are pickles, so the manifest is signed (HMAC-SHA256) with a
key that only this run directory has (`checkpoint.key`, mode 0600): a checkpoint that this run did not write itself is
never unpickled. The final artifact holds no pickle at all.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flywheel.core import digests

PLACE = "checkpoints"
MANIFEST = "manifest.json"
KEY = "checkpoint.key"

_NEEDLESS = ("training_args.bin", "README.md")
"""What the libraries put into a checkpoint that no resume reads; the first is one pickle more."""
_REMOVED = ".removed-"


class Checkpoint(NamedTuple):
    step: int
    path: Path
    digest: str


class Rejected(NamedTuple):
    path: Path
    reason: str


def files_of(directory: Path, *, links: bool = False) -> dict[str, dict[str, Any]]:
    """`{relative name: {"sha256", "size"}}` of every file under a directory. Raises ValueError for unwanted links."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() and not links:
            raise ValueError(f"{path.name} is a link")
        if path.is_file():
            found[path.relative_to(directory).as_posix()] = entry_of(path)
    return found


def entry_of(path: Path) -> dict[str, Any]:
    """A file's `{"sha256", "size"}`."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": path.stat().st_size}


def digest_of(files: dict[str, dict[str, Any]]) -> str:
    """The identity of an artifact: the digest of `{relative name: sha256}`. How long or old a file is says nothing."""
    return digests.digest({name: entry["sha256"] for name, entry in files.items()})


def directory_digest(directory: Path) -> str:
    """The digest by which specs name a model or adapter directory (a hub cache holds links to its files)."""
    return digest_of(files_of(directory, links=True))


def publish(aside: Path, run: Path, step: int, spec_digest: str) -> Checkpoint:
    """Make what lies in `aside` the checkpoint of a step."""
    for name in _NEEDLESS:
        (aside / name).unlink(missing_ok=True)
    files = files_of(aside)
    manifest = {"step": step, "spec": spec_digest, "files": files}
    manifest["hmac"] = signature(run, digests.canonical(manifest))
    (aside / MANIFEST).write_bytes(digests.canonical(manifest))
    target = run / PLACE / f"step-{step}"
    move(aside, target)
    return Checkpoint(step, target, digest_of(files))


def newest(run: Path, spec_digest: str) -> tuple[Checkpoint | None, list[Rejected]]:
    """The newest checkpoint that verifies, and the newer ones that do not."""
    rejected: list[Rejected] = []
    for step, path in reversed(list(_steps(run))):
        try:
            return verify(run, path, step, spec_digest), rejected
        except (OSError, ValueError, KeyError, TypeError) as error:
            rejected.append(Rejected(path, str(error)))
    return None, rejected


def verify(run: Path, path: Path, step: int, spec_digest: str) -> Checkpoint:
    """The checkpoint of a step in `path`, if this run wrote it and nothing changed since.

    Raises OSError, ValueError, KeyError or TypeError.
    """
    manifest = json.loads((path / MANIFEST).read_bytes())
    signed = manifest.pop("hmac")
    if not hmac.compare_digest(signed, signature(run, digests.canonical(manifest))):
        raise ValueError("its manifest was not signed by this run")
    if manifest["spec"] != spec_digest:
        raise ValueError("it was made under another spec.json")
    if manifest["step"] != step:
        raise ValueError(f"its manifest is of step {manifest['step']}")
    files = files_of(path)
    files.pop(MANIFEST)
    changed = sorted(
        name for name in files.keys() | manifest["files"].keys() if files.get(name) != manifest["files"].get(name)
    )
    if changed:
        raise ValueError(f"{', '.join(changed)} changed, missing or added")
    return Checkpoint(step, path, digest_of(files))


def prune(run: Path, keep: int) -> None:
    for _, path in list(_steps(run))[:-keep]:
        remove(path)


def remove(directory: Path) -> None:
    """Remove a directory so that whoever reads it meanwhile finds all of it gone at once, never a part. What a crash
    left of another is swept."""
    for left in directory.parent.glob(f"{_REMOVED}*"):
        shutil.rmtree(left)
    aside = directory.with_name(f"{_REMOVED}{directory.name}")
    directory.rename(aside)
    shutil.rmtree(aside)


def move(aside: Path, target: Path) -> None:
    """Rename a directory into place so that a crash leaves all of it or nothing, replacing what was there."""
    for path in sorted(aside.rglob("*")):
        fsync(path)
    fsync(aside)
    target.parent.mkdir(exist_ok=True)
    if target.exists():
        remove(target)
    aside.rename(target)
    fsync(target.parent)


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def steps(run: Path) -> list[int]:
    """The steps of the checkpoints that are kept, the oldest first."""
    return [step for step, _ in _steps(run)]


def _steps(run: Path) -> Iterator[tuple[int, Path]]:
    directory = run / PLACE
    found = [path for path in directory.iterdir() if re.fullmatch(r"step-\d+", path.name)] if directory.is_dir() else []
    yield from sorted((int(path.name.removeprefix("step-")), path) for path in found)


def key_of(run: Path) -> bytes:
    """The key of a run directory, made where it has none. Raises OSError."""
    path = run / KEY
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        key = secrets.token_bytes(32)
        file.write(key)
        file.flush()
        os.fsync(descriptor)
    return key


def signature(run: Path, content: bytes) -> str:
    """The HMAC-SHA256 of some bytes under the run's key, in hexadecimal digits. Raises ValueError for a damaged key,
    and OSError."""
    key = key_of(run)
    if len(key) != 32:
        raise ValueError(f"{KEY} is damaged")
    return hmac.new(key, content, hashlib.sha256).hexdigest()
