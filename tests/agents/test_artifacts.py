"""What may be stored as weights, and that what comes back is what was stored."""

import json
import os
from pathlib import Path

import pytest
from django.conf import settings
from django.core.files.storage import default_storage

from flywheel.agents.artifacts import ArtifactError, local, store
from flywheel.agents.models import Artifact

pytestmark = pytest.mark.django_db


def safetensors(values: bytes = b"\0\0\0\0", **changes: object) -> bytes:
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, len(values)], **changes}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


def model(directory: Path, **files: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors").write_bytes(safetensors(os.urandom(4)))
    (directory / "config.json").write_text("{}")
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_bytes(content)
    return directory


def blob(artifact: Artifact, name: str) -> Path:
    sha256 = artifact.manifest[name]["sha256"]
    return Path(settings.HOME / "artifacts" / "blobs" / sha256[:2] / sha256)


def test_equal_content_is_one_artifact_and_documentation_is_no_part_of_it(tmp_path: Path) -> None:
    place = model(tmp_path / "a")
    one = store(place, "model")
    (place / "README.md").write_text("about")
    (place / "LICENSE").write_text("Apache")
    (place / ".gitattributes").write_text("x")
    assert store(place, "model") == one
    assert set(one.manifest) == {"model.safetensors", "config.json"}
    assert one.size == sum(entry["size"] for entry in one.manifest.values())
    with pytest.raises(ArtifactError, match="cannot also be of kind adapter"):
        store(place, "adapter")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("pytorch_model.bin", b"PK", "pytorch_model.bin: only .jinja, .json"),
        ("training_args.pt", b"PK", "training_args.pt: only"),
        (
            "extra.safetensors",
            b"\x80\x04pickle",
            "extra.safetensors: not a safetensors file: its header is missing or cut off",
        ),
        ("extra.safetensors", b"", "its header is missing or cut off"),
        ("extra.safetensors", (10).to_bytes(8, "little") + b"not json!!", "not a safetensors file"),
        ("extra.safetensors", (2).to_bytes(8, "little") + b"{}", "names no tensors"),
        ("extra.safetensors", (2).to_bytes(8, "little") + b"[]", "names no tensors"),
        ("extra.safetensors", safetensors() + b"x", "promises 4 bytes of tensors, it has 5"),
        ("extra.safetensors", safetensors()[:-1], "promises 4 bytes of tensors, it has 3"),
        ("tokenizer.json", b"{", "tokenizer.json: not a json file"),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json: not a json file"),
        ("chat_template.jinja", b"{% if", "chat_template.jinja: the chat template does not compile: line 1"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: not a jinja file"),
        ("tokenizer_config.json", b'{"chat_template": "{% if"}', "tokenizer_config.json: the chat template does not"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "default", "template": "ok"}, {"name": "tools", "template": "{% if"}]}',
            "tokenizer_config.json: the chat template does not compile",
        ),
    ],
)
def test_what_is_not_what_it_says_is_refused_with_the_file(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    place = model(tmp_path / "a")
    (place / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=says):
        store(place, "model")
    assert not Artifact.objects.exists()


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"no \.safetensors file"):
        store(tmp_path, "model")


def test_the_local_copy_is_verified_and_made_again_when_a_file_is_cut_off(tmp_path: Path) -> None:
    artifact = store(model(tmp_path / "a"), "model")
    place = local(artifact)
    assert (place / "model.safetensors").read_bytes() == (tmp_path / "a" / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(b"")  # as a power cut leaves it
    assert local(artifact) == place
    assert (place / "model.safetensors").stat().st_size == artifact.manifest["model.safetensors"]["size"]
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]
    assert not list(place.parent.glob(".making-*"))


def test_damage_and_loss_are_told_with_the_file(tmp_path: Path) -> None:
    artifact = store(model(tmp_path / "a"), "model")
    path = blob(artifact, "model.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=r"model\.safetensors of model .* is damaged"):
        local(artifact)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"model\.safetensors of model .* is missing from the storage"):
        local(artifact)
    store(tmp_path / "a", "model")
    assert local(artifact).is_dir()


def test_half_a_file_that_a_crash_left_is_replaced(tmp_path: Path) -> None:
    place = model(tmp_path / "a")
    artifact = store(place, "model")
    blob(artifact, "model.safetensors").write_bytes(b"half")
    store(place, "model")
    assert local(artifact).is_dir()


def test_a_full_disk_leaves_nothing_half_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, content: object) -> str:
        path = Path(default_storage.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    place = model(tmp_path / "a")
    monkeypatch.setattr(default_storage, "save", full)
    with pytest.raises(ArtifactError, match=r"\.\w+ cannot be stored: No space left on device"):
        store(place, "model")
    monkeypatch.undo()
    assert not Artifact.objects.exists()
    assert local(store(place, "model")).is_dir()
