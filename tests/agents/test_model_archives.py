"""Weights in an archive: what comes out is what a directory gives, and nothing else comes out."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from flywheel.accounts.models import User
from flywheel.agents import artifacts, model_archives
from flywheel.agents.artifacts import ArtifactError
from flywheel.agents.models import Artifact, Version
from tests.agents.test_artifacts import model, safetensors
from tests.conftest import Build, Cast
from tests.system.test_zip_directories import named

pytestmark = pytest.mark.django_db
Files = dict[str, bytes]
GOOD: Files = {"model.safetensors": safetensors(), "config.json": b"{}"}


def zipped(files: Files) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return sink.getvalue()


def tarred(files: Files, *more: tarfile.TarInfo) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for entry in more:
            archive.addfile(entry)
    return sink.getvalue()


def link(kind: bytes, name: str = "tokenizer.json") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "/etc/passwd"
    return entry


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_is_the_artifact_of_its_files(pack: Callable[[Files], bytes], tmp_path: Path) -> None:
    place = model(tmp_path / "m", model__safetensors=GOOD["model.safetensors"])
    inside = {f"checkpoint/{name}": content for name, content in GOOD.items()}
    found = model_archives.store_archive(io.BytesIO(pack({**inside, "checkpoint/README.md": b"about"})), "model")
    assert found == artifacts.store(place, "model")


def encrypted() -> bytes:
    content = bytearray(zipped(GOOD))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + offset] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no archive", "it is neither a ZIP nor a tar archive"),
        (zipped({**GOOD, "pytorch_model.bin": b"x"}), "pytorch_model.bin: only .jinja, .json"),
        (zipped({**GOOD, "modeling_own.py": b"x"}), "modeling_own.py: only"),
        (named(30_000), "its directory has 1,560,000 bytes, 1,024,000 are allowed: too many entries"),
        (zipped({**GOOD, "../up.json": b"{}"}), "'../up.json': a path inside the archive is wanted"),
        (tarred({**GOOD, "/root/up.json": b"{}"}), "'/root/up.json': a path inside"),
        (tarred(GOOD, link(tarfile.SYMTYPE)), "tokenizer.json: is a link or a device"),
        (tarred(GOOD, link(tarfile.LNKTYPE)), "tokenizer.json: is a link or a device"),
        (tarred(GOOD, link(tarfile.CHRTYPE)), "tokenizer.json: is a link or a device"),
        (zipped({**GOOD, "a/config.json": b"{}"}), "config.json: is there twice"),
        (tarred(GOOD)[:-40], "the archive cannot be read"),
        (encrypted(), "the archive cannot be read: .*encrypted"),
        (zipped({"config.json": b"{}"}), "no .safetensors file in it"),
    ],
)
def test_what_is_no_archive_of_weights_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        model_archives.store_archive(io.BytesIO(content), "model")
    assert not Artifact.objects.exists()


def test_what_grows_on_unpacking_is_stopped_also_where_it_lies_about_its_size(tmp_path: Path) -> None:
    content = zipped({"model.safetensors": b"\0" * 3_000_000})
    with pytest.raises(ArtifactError, match="unpacks to more than 1 MB"):
        model_archives.unpack(io.BytesIO(content), tmp_path, most=2**20)
    assert not list(tmp_path.iterdir())
    true, false = (size.to_bytes(4, "little") for size in (3_000_000, 100))
    with pytest.raises(ArtifactError):
        model_archives.unpack(io.BytesIO(content.replace(true, false)), tmp_path, most=2**20)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2**20


def folders(count: int) -> list[tarfile.TarInfo]:
    found = [tarfile.TarInfo(f"folder-{number}") for number in range(count)]
    for entry in found:
        entry.type = tarfile.DIRTYPE
    return found


def test_entries_that_hold_nothing_are_counted_and_long_headers_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="or than 1000 entries"):
        model_archives.unpack(io.BytesIO(tarred(GOOD, *folders(999))), tmp_path)
    model_archives.unpack(io.BytesIO(tarred(GOOD, *folders(998))), tmp_path)
    noted = tarfile.TarInfo("tokenizer.json")
    noted.pax_headers = {"comment": "x" * 100_000}
    with pytest.raises(ArtifactError, match=r"cannot be read: an entry has 1000\d\d bytes of names and notes"):
        model_archives.unpack(io.BytesIO(tarred(GOOD, noted)), tmp_path)


def test_a_version_is_made_of_an_archive_by_api(
    build: Build, cast: Cast, client: Client, key: Callable[..., object]
) -> None:
    like = build.version()
    write, address = key("read", "build", by=cast.builder), "/api/v1/agents/assistant/versions/upload"

    def send(query: str, content: bytes) -> tuple[int, dict[str, object]]:
        answer = client.post(address + query, content, content_type="application/octet-stream", headers=write)  # type: ignore[arg-type]
        return answer.status_code, answer.json()

    status, made = send("?like=1&base_model=own", tarred(GOOD))
    assert (status, made["base_model"], made["number"], made["parent"]) == (201, "own", 2, 1)
    assert Version.objects.get(number=2).system_prompt == like.system_prompt
    assert send("?like=1&base_model=own", zipped(GOOD))[0] == 200, "the same files make no other version"
    assert send("?like=1", zipped({**GOOD, "x.py": b""}))[0] == 422
    status, refused = send("", zipped(GOOD))
    assert (status, refused["detail"].split(":")[0]) == (422, "base_model")  # type: ignore[attr-defined]
    adapter = {"adapter_model.safetensors": safetensors(), "adapter_config.json": b"{}"}
    status, made = send("?like=2&kind=adapter", zipped(adapter))
    assert status == 201
    assert made["adapter"]
    assert made["weights"]


def test_too_large_an_upload_is_refused_before_it_is_kept(
    build: Build, cast: Cast, client: Client, key: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    build.version()
    monkeypatch.setattr(model_archives, "MAX_BYTES", 100)
    answer = client.post(
        "/api/v1/agents/assistant/versions/upload?like=1",
        zipped(GOOD),
        content_type="application/zip",
        headers=key("build", by=cast.builder),  # type: ignore[arg-type]
    )
    assert answer.status_code == 413
    assert "manage.py add_version" in answer.json()["detail"]


def test_a_version_is_made_of_an_archive_in_the_browser(
    build: Build, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    build.version()
    client = sign_in(cast.builder)
    fields = {"base_model": "own", "kind": "transformers", "tools": "[]", "temperature": "1", "top_p": "1"}
    sent = {
        **fields,
        "max_tokens": "64",
        "weights": "upload",
        "weights_files": SimpleUploadedFile("m.ZIP", zipped(GOOD)),
    }
    answer = client.post("/p/acme/agents/assistant/versions/new/", sent)
    assert answer.status_code == 302, answer.content.decode()[:2000]
    weights = Version.objects.get(number=2).weights
    assert weights is not None
    assert set(weights.manifest) == set(GOOD)
