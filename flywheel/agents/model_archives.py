"""Weights in an archive: a ZIP, or a tar, compressed or not.

An archive comes from outside, so its names are only names: each file is written under the last part of its own into one
new directory. Links, devices, two files of one name and what is no part of an artifact are refused before anything is
written, and what is written is counted, whatever the archive says of its sizes.
"""

import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Protocol

from flywheel.agents import artifacts
from flywheel.agents.artifacts import ArtifactError
from flywheel.agents.models import Artifact
from flywheel.system.zip_directories import open_zip

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")
MAX_BYTES = 512 * 1024 * 1024
"""Of an upload; larger models come by `manage.py add_version`."""
UNPACKED_MAX_BYTES = 2 * MAX_BYTES
"""Weights hardly get smaller by packing."""
ENTRIES_MAX = 1000
"""Of an archive, folders and what is left out included."""
DIRECTORY_MAX = 1024 * ENTRIES_MAX
"""Bytes of the directory at a ZIP's end, where its entries are named."""
HEADER_MAX = 64 * 1024
"""Bytes of what a tar says of one entry beside its block; tarfile reads it into memory."""
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
CHUNK = 1024 * 1024
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RuntimeError)
"""RuntimeError is how zipfile refuses an encrypted file, and a method of packing that it does not know."""


class TooLarge(ArtifactError):
    status = 413


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Member(NamedTuple):
    path: str
    size: int
    is_file: bool
    is_directory: bool
    open: Callable[[], Any]


def store_archive(source: Readable, kind: str) -> Artifact:
    """Store the files of an archive, which is read once, as an artifact of this kind. Raises ArtifactError, TooLarge
    where more than MAX_BYTES come."""
    with tempfile.TemporaryDirectory(prefix="flywheel-upload-") as place, tempfile.TemporaryFile() as aside:
        received = 0
        while chunk := source.read(CHUNK):
            received += len(chunk)
            if received > MAX_BYTES:
                limit = MAX_BYTES // 1024**2
                raise TooLarge(f"more than {limit} MB; store a model of that size with manage.py add_version")
            aside.write(chunk)
        aside.seek(0)
        directory = Path(place) / "archive"
        directory.mkdir()
        unpack(aside, directory)
        return artifacts.store(directory, kind)


def unpack(source: BinaryIO, directory: Path, most: int = UNPACKED_MAX_BYTES) -> None:
    """Write an archive's files into an empty directory, at most so many bytes in all. Raises ArtifactError."""
    with ExitStack() as stack:
        try:
            members = _members(source, stack, most)
            left = most
            for member in members:
                left -= _write(member, directory / PurePosixPath(member.path).name, left, most)
        except _BROKEN as error:
            raise ArtifactError(f"the archive cannot be read: {error}") from error


def _members(source: BinaryIO, stack: ExitStack, most: int) -> list[_Member]:
    """The files to write. Raises ArtifactError for an archive in which anything else is."""
    if zipfile.is_zipfile(source):
        found = _in_zip(stack.enter_context(open_zip(source, DIRECTORY_MAX)))
    else:
        source.seek(0)
        try:
            archive = tarfile.open(fileobj=source, mode="r:*", tarinfo=_Entry)  # noqa: SIM115 the stack closes it
        except tarfile.ReadError as error:
            raise ArtifactError("it is neither a ZIP nor a tar archive") from error
        found = _in_tar(stack.enter_context(archive))
    members: dict[str, _Member] = {}
    total = 0
    for count, member in enumerate(found, 1):
        total += member.size
        if total > most or count > ENTRIES_MAX:
            raise ArtifactError(f"the archive unpacks to more than {most // 1024**2} MB, or than {ENTRIES_MAX} entries")
        if member.is_directory:
            continue
        path = PurePosixPath(member.path)
        if path.is_absolute() or ".." in path.parts or "\\" in member.path or "\0" in member.path:
            raise ArtifactError(f"{member.path[:100]!r}: a path inside the archive is wanted")
        if not member.is_file:
            raise ArtifactError(f"{path.name[:100]}: is a link or a device; only files are taken")
        if artifacts.is_documentation(path):
            continue
        if path.suffix not in artifacts.ALLOWED:
            allowed = ", ".join(sorted(artifacts.ALLOWED))
            raise ArtifactError(f"{path.name[:100]}: only {allowed} files can be part of an artifact")
        if path.name in members:
            raise ArtifactError(f"{path.name[:100]}: is there twice; the files of one model are wanted, in one folder")
        members[path.name] = member
    return list(members.values())


class _Entry(tarfile.TarInfo):
    """An entry of a tar that says only so much of itself."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Entry":
        found = super().frombuf(buf, encoding, errors)
        if found.type in _HEADERS and found.size > HEADER_MAX:
            raise tarfile.TarError(f"an entry has {found.size} bytes of names and notes")
        return found


def _in_zip(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for entry in archive.infolist():
        mode = entry.external_attr >> 16
        is_file = not stat.S_IFMT(mode) or stat.S_ISREG(mode)
        yield _Member(entry.filename, entry.file_size, is_file, entry.is_dir(), partial(archive.open, entry))


def _in_tar(archive: tarfile.TarFile) -> Iterator[_Member]:
    for entry in archive:
        yield _Member(entry.name, entry.size, entry.isreg(), entry.isdir(), partial(archive.extractfile, entry))


def _write(member: _Member, target: Path, left: int, most: int) -> int:
    """Write a file, at most so many bytes; return how many they were. Raises ArtifactError."""
    written = 0
    with member.open() as content, target.open("xb") as file:
        while chunk := content.read(CHUNK):
            written += len(chunk)
            if written > left:
                raise ArtifactError(f"the archive unpacks to more than {most // 1024**2} MB")
            file.write(chunk)
    return written
