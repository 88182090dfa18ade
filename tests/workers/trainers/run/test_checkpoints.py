"""Checkpoints are whole, signed and verified, without any training."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.trainers.run import checkpoints


def publish(run: Path, step: int, spec: str = "s") -> checkpoints.Checkpoint:
    aside = run / f"aside-{step}"
    (aside / "deep").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "training_args.bin", "deep/rng.pth"):
        (aside / name).write_text(f"{name} {step}")
    return checkpoints.publish(aside, run, step, spec)


def test_the_newest_by_number(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        publish(tmp_path, step)
    found, rejected = checkpoints.newest(tmp_path, "s")
    assert found
    assert (found.step, rejected) == (10, [])
    assert not (found.path / "training_args.bin").exists()
    assert not list(tmp_path.glob("aside-*"))


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        publish(tmp_path, step)
    checkpoints.prune(tmp_path, 2)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-9", "step-10"}


def test_what_is_removed_is_gone_at_once_and_a_crash_leaves_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (2, 4, 6):
        publish(tmp_path, step)

    def crash(directory: Path) -> None:
        (directory / checkpoints.MANIFEST).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr("shutil.rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.prune(tmp_path, 2)
    assert checkpoints.steps(tmp_path) == [4, 6]
    publish(tmp_path, 2)  # again, by who went on from an earlier one
    checkpoints.prune(tmp_path, 1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-6"]


def test_a_step_can_be_published_again(tmp_path: Path) -> None:
    publish(tmp_path, 2)
    (tmp_path / "checkpoints/step-2/optimizer.pt").write_text("damaged")
    publish(tmp_path, 2)
    found, _ = checkpoints.newest(tmp_path, "s")
    assert found


def test_the_key_is_private(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    assert stat.S_IMODE((tmp_path / "checkpoint.key").stat().st_mode) == 0o600


def _change(path: Path) -> None:
    (path / "optimizer.pt").write_text("other")


def _remove(path: Path) -> None:
    (path / "deep/rng.pth").unlink()


def _add(path: Path) -> None:
    (path / "pytorch_model.bin").write_text("pickle")


def _link(path: Path) -> None:
    (path / "optimizer.pt").unlink()
    os.symlink("/etc/hostname", path / "optimizer.pt")


def _unsign(path: Path) -> None:
    (path / "manifest.json").unlink()


def _other_key(path: Path) -> None:
    (path.parent.parent / "checkpoint.key").write_bytes(b"k" * 32)


def _no_key(path: Path) -> None:
    (path.parent.parent / "checkpoint.key").unlink()


def _resign(path: Path) -> None:
    """As one would who copies a checkpoint of another run in, manifest and all."""
    other = path.parent.parent / "other"
    other.mkdir()
    publish(other, 2)
    for name in ("model.safetensors", "optimizer.pt", "manifest.json"):
        (other / "checkpoints/step-2" / name).rename(path / name)


def _rename(path: Path) -> None:
    path.rename(path.with_name("step-3"))


@pytest.mark.parametrize("harm", [_change, _remove, _add, _link, _unsign, _other_key, _no_key, _resign, _rename])
def test_what_does_not_verify_is_not_used(harm: Callable[[Path], None], tmp_path: Path) -> None:
    publish(tmp_path, 2)
    harm(tmp_path / "checkpoints/step-2")
    found, rejected = checkpoints.newest(tmp_path, "s")
    assert found is None
    assert len(rejected) == 1


def test_another_spec(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    publish(tmp_path, 2, "t")
    found, rejected = checkpoints.newest(tmp_path, "s")
    assert found
    assert found.step == 1
    assert rejected[0].reason == "it was made under another spec.json"


def test_the_digest_is_of_names_and_content(tmp_path: Path) -> None:
    first = publish(tmp_path, 1).path
    again = tmp_path / "again"
    again.mkdir()
    for path in first.iterdir():
        path.rename(again / path.name)
    before = checkpoints.directory_digest(again)
    os.utime(again / "optimizer.pt", (0, 0))
    assert checkpoints.directory_digest(again) == before
    (again / "optimizer.pt").rename(again / "optimizer2.pt")
    assert checkpoints.directory_digest(again) != before
