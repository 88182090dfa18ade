"""Weights and tokenizers, content-addressed, in Django's storage.

Files lie as `blobs/ab/abcdef…` named by their SHA-256; an artifact is a manifest of names and hashes, named by the
manifest's digest. Only safetensors, JSON and text cross this border: no pickle is ever stored or read.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from django.conf import settings
from django.core.files import File
from django.core.files.storage import default_storage

from flywheel.agents.models import Artifact
from flywheel.core.digests import digest

ALLOWED = {".safetensors", ".json", ".jinja", ".txt", ".model"}
"""`.model` is SentencePiece's vocabulary (a protobuf)."""


class ArtifactError(ValueError):
    """The files are no artifact, or not what their digest says; the message names the file."""


def store(directory: Path, kind: str) -> Artifact:
    """Store the files of a directory (documentation is left out) and return their artifact; equal content is one.

    Raises ArtifactError for a file type that is not allowed.
    """
    files = sorted(p for p in directory.iterdir() if p.is_file() and p.suffix != ".md" and not p.name.startswith("."))
    for path in files:
        if path.suffix not in ALLOWED:
            raise ArtifactError(f"{path.name}: only {', '.join(sorted(ALLOWED))} files can be part of an artifact")
    if not any(path.suffix == ".safetensors" for path in files):
        raise ArtifactError(f"{directory.name}: no .safetensors file in it")
    manifest = {path.name: {"sha256": _sha256(path), "size": path.stat().st_size} for path in files}
    for path in files:
        _keep(path, manifest[path.name]["sha256"])
    artifact, _ = Artifact.objects.get_or_create(
        digest=digest(manifest),
        defaults={"manifest": manifest, "kind": kind, "size": sum(entry["size"] for entry in manifest.values())},
    )
    return artifact


def local(artifact: Artifact) -> Path:
    """A local directory with the artifact's files, verified once and then kept in the cache.

    Raises ArtifactError when a stored file is not what its digest says.
    """
    place = settings.HOME / "cache" / artifact.digest
    if place.is_dir():
        return Path(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=place.parent, prefix=".making-"))
    try:
        for name, entry in artifact.manifest.items():
            with default_storage.open(_blob(entry["sha256"])) as source, (aside / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            if _sha256(aside / name) != entry["sha256"]:
                raise ArtifactError(f"{name} of {artifact} is damaged: its content is not what its digest says")
        os.replace(aside, place)
    except FileNotFoundError as error:
        raise ArtifactError(f"a file of {artifact} is missing from the storage: {error.filename}") from error
    except OSError:
        if not place.is_dir():  # somebody else may have made it meanwhile, which is as good
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Path(place)


def _keep(path: Path, sha256: str) -> None:
    name = _blob(sha256)
    if default_storage.exists(name):
        with default_storage.open(name) as stored:
            if hashlib.file_digest(stored, "sha256").hexdigest() == sha256:  # type: ignore[arg-type]
                return
        default_storage.delete(name)  # a crash left half of it
    with path.open("rb") as content:
        default_storage.save(name, File(content))


def _blob(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
