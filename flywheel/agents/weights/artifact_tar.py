"""An artifact as one tar: a folder `model/` with its files, which `tar -x` unpacks and transformers and PEFT load.

The tar is nowhere stored. Its bytes follow from the artifact's manifest and files alone, so that the artifact's digest
is its ETag and a part of it can be read at any place.
"""

import io
import tarfile
from bisect import bisect_right
from typing import IO, Any, NamedTuple

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.agents.weights.partial_downloads import attachment, settled_answer
from flywheel.edge.refusals import Missing

FOLDER = "model"


class _Piece(NamedTuple):
    start: int
    size: int
    content: bytes | str
    """Bytes as they are, or the name of the file that has them."""


class ArtifactTar(io.RawIOBase):
    """The tar, to be read and sought like a file. Reading raises ArtifactError for a file that the storage has lost."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._pieces: list[_Piece] = []
        self._size = self._at = 0
        for name, entry in sorted(artifact.manifest.items()):
            about = tarfile.TarInfo(f"{FOLDER}/{name}")
            about.size = entry["size"]
            self._add(about.tobuf(tarfile.GNU_FORMAT))
            self._add(name, entry["size"])
            self._add(bytes(-entry["size"] % tarfile.BLOCKSIZE))
        self._add(bytes(2 * tarfile.BLOCKSIZE))
        self._starts = [piece.start for piece in self._pieces]
        self._open: tuple[str, IO[bytes]] | None = None

    def _add(self, content: bytes | str, size: int | None = None) -> None:
        piece = _Piece(self._size, len(content) if size is None else size, content)
        if piece.size:
            self._pieces.append(piece)
            self._size += piece.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        if self._at >= self._size:
            return 0
        piece = self._pieces[bisect_right(self._starts, self._at) - 1]
        inside = self._at - piece.start
        most = min(len(buffer), piece.size - inside)
        found = self._read(piece.content, inside, most)
        if not found:
            raise artifacts.ArtifactError(f"{piece.content!r} of {self._artifact} is shorter than its size")
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _read(self, content: bytes | str, inside: int, most: int) -> bytes:
        if isinstance(content, bytes):
            return content[inside : inside + most]
        if self._open is None or self._open[0] != content:
            self._let_go()
            self._open = content, artifacts.opened(self._artifact, content)
        file = self._open[1]
        file.seek(inside)
        return file.read(most)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if opened := getattr(self, "_open", None):
            opened[1].close()
        self._open = None


def download(request: HttpRequest, artifact: Artifact, filename: str) -> HttpResponseBase:
    """The artifact's tar as a stream, or the part that is asked for; 304 where the client has it. Raises Missing where
    the storage has lost a file."""
    etag = f'"{artifact.digest}"'
    if (settled := settled_answer(request, etag)) is not None:
        return settled
    if lost := artifacts.missing(artifact):
        raise Missing(f"{lost[0]} of {artifact} is missing from the storage")
    return attachment(request, ArtifactTar(artifact), filename=filename, etag=etag, content_type="application/x-tar")
