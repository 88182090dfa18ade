"""Weights and tokenizers, content-addressed, in Django's storage.

Files lie as `blobs/ab/abcdef…` named by their SHA-256; an artifact is a manifest of names and hashes, named by the
manifest's digest. Only safetensors, JSON and text cross this border: no pickle is ever stored or read, and a chat
template, which is a program, is tried first.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path, PurePath
from typing import Any

from django.conf import settings
from django.core.files import File
from django.core.files.storage import default_storage

from flywheel.agents import chat_template
from flywheel.agents.models import Artifact, Version
from flywheel.core.digests import digest
from flywheel.edge.refusals import Refused

ALLOWED = {".safetensors", ".json", ".jinja", ".txt", ".model"}
"""`.model` is SentencePiece's vocabulary (a protobuf)."""
LEFT_OUT = {"LICENSE", "LICENCE", "NOTICE"}
HEADER_MAX = 100_000_000
"""Bytes of a safetensors header; the format's own limit."""


class ArtifactError(Refused):
    """The files are no artifact, or not what their digest says; the message names the file."""

    kind = "artifact"


def store(directory: Path, kind: str) -> Artifact:
    """Store the files of a directory (documentation is left out) and return their artifact; equal content is one.

    Raises ArtifactError for a file that is not allowed, is not what its name says, has a chat template that cannot be
    used, or cannot be stored.
    """
    files = _files(directory)
    for path in files:
        _check(path)
    if not any(path.suffix == ".safetensors" for path in files):
        raise ArtifactError(f"{directory.name}: no .safetensors file in it")
    manifest = _manifest(files)
    for path in files:
        _keep(path, manifest[path.name]["sha256"])
    artifact, _ = Artifact.objects.get_or_create(
        digest=digest(manifest),
        defaults={"manifest": manifest, "kind": kind, "size": sum(entry["size"] for entry in manifest.values())},
    )
    if artifact.kind != kind:
        raise ArtifactError(f"these files are stored already, as {artifact}; they cannot also be of kind {kind}")
    return artifact


def digest_of(directory: Path) -> str:
    """The digest that the directory's files have, or would have, as an artifact."""
    return digest(_manifest(_files(directory)))


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file() and not is_documentation(path))


def _manifest(files: list[Path]) -> dict[str, dict[str, Any]]:
    return {path.name: {"sha256": _sha256(path), "size": path.stat().st_size} for path in files}


def places(version: Version) -> dict[str, str]:
    """Where the version's weights and adapter are, as the spec of an engine names them; empty for what is not stored
    here. Raises ArtifactError."""
    stored = {"path": version.weights, "adapter": version.adapter}
    return {name: str(local(artifact)) for name, artifact in stored.items() if artifact}


def local(artifact: Artifact) -> Path:
    """A local directory with the artifact's files, verified once and then kept in the cache.

    Raises ArtifactError when a stored file is missing or not what its digest says.
    """
    place: Path = settings.HOME / "cache" / artifact.digest
    if _is_whole(place, artifact):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=place.parent, prefix=".making-"))
    try:
        for name, entry in artifact.manifest.items():
            _fetch(artifact, name, entry["sha256"], aside / name)
        if place.is_dir() and not _is_whole(place, artifact):
            os.replace(place, aside / ".damaged")
        os.replace(aside, place)
        shutil.rmtree(place / ".damaged", ignore_errors=True)
    except OSError:
        if not _is_whole(place, artifact):  # somebody else may have made it meanwhile, which is as good
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return place


def read(artifact: Artifact, name: str) -> bytes:
    """The content of one of the artifact's files, for those that are small. Raises ArtifactError when it is missing."""
    with opened(artifact, name) as source:
        content: bytes = source.read()
    return content


def missing(artifact: Artifact) -> list[str]:
    """The names of the artifact's files that the storage has lost."""
    return [name for name, entry in artifact.manifest.items() if not default_storage.exists(_blob(entry["sha256"]))]


def shapes(artifact: Artifact, name: str) -> dict[str, list[int]]:
    """The shape of each tensor in a safetensors file of the artifact. Raises ArtifactError when it is missing."""
    with opened(artifact, name) as source:
        header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    return {tensor: entry["shape"] for tensor, entry in header.items() if tensor != "__metadata__"}


def opened(artifact: Artifact, name: str) -> "File[Any]":
    """One of the artifact's files, to be read and closed. Raises ArtifactError when it is missing."""
    try:
        return default_storage.open(_blob(artifact.manifest[name]["sha256"]))
    except FileNotFoundError as error:
        raise ArtifactError(f"{name} of {artifact} is missing from the storage") from error


def _fetch(artifact: Artifact, name: str, sha256: str, target: Path) -> None:
    with opened(artifact, name) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())  # the rename must not outlive the content
    if _sha256(target) != sha256:
        raise ArtifactError(f"{name} of {artifact} is damaged: its content does not match its digest")


def _is_whole(place: Path, artifact: Artifact) -> bool:
    """Whether every file is there in its size; what is in them was checked when they were written."""
    try:
        return all((place / name).stat().st_size == entry["size"] for name, entry in artifact.manifest.items())
    except FileNotFoundError:
        return False


def is_documentation(path: PurePath) -> bool:
    """Whether a file is left out of an artifact."""
    return path.suffix == ".md" or path.name.startswith(".") or path.name in LEFT_OUT


def _check(path: Path) -> None:
    """Refuse a file that is not of a type that may be part of an artifact, whatever its name says."""
    if path.suffix not in ALLOWED:
        raise ArtifactError(f"{path.name}: only {', '.join(sorted(ALLOWED))} files can be part of an artifact")
    try:
        if path.suffix == ".safetensors":
            _check_safetensors(path)
        templates = _templates(path)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path.name}: not a {path.suffix[1:]} file: {error}") from error
    for template in templates:
        if problem := chat_template.problem(template):
            raise ArtifactError(f"{path.name}: the chat template {problem}")


def _templates(path: Path) -> list[str]:
    """The chat templates in a file: all of it, or what a tokenizer's settings hold, one or several with names.

    Raises ValueError and RecursionError for a file that is not what its name says.
    """
    if path.suffix == ".jinja":
        return [path.read_text(encoding="utf-8")]
    settings = json.loads(path.read_bytes()) if path.suffix == ".json" else None
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    named = [row.get("template") for row in found if isinstance(row, dict)] if isinstance(found, list) else [found]
    return [template for template in named if isinstance(template, str)]


def _check_safetensors(path: Path) -> None:
    """Its first 8 bytes say how long its JSON header is; the header, where each tensor ends. Raises ValueError."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_MAX, path.stat().st_size - 8):
            raise ValueError("its header is missing or cut off")
        header = json.loads(file.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"] if isinstance(header, dict) else []
    try:
        end = max(entry["data_offsets"][1] for entry in tensors)
    except (ValueError, TypeError, KeyError, IndexError):
        raise ValueError("its header names no tensors") from None
    if end != path.stat().st_size - 8 - length:
        raise ValueError(f"its header promises {end} bytes of tensors, it has {path.stat().st_size - 8 - length}")


def _keep(path: Path, sha256: str) -> None:
    name = _blob(sha256)
    if default_storage.exists(name):
        with default_storage.open(name) as stored:
            if hashlib.file_digest(stored, "sha256").hexdigest() == sha256:
                return
        default_storage.delete(name)  # a crash left half of it
    try:
        with path.open("rb") as content:
            default_storage.save(name, File(content))
    except OSError as error:
        default_storage.delete(name)
        raise ArtifactError(f"{path.name} cannot be stored: {error.strerror or error}") from error


def _blob(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
