"""Archives, and those that want to do harm."""

import io
import json
import zipfile
from typing import Any

import pytest

from flywheel.trajectories.formats.files import file_limits
from flywheel.trajectories.formats.values.hostile_json import FormatError
from tests.trajectories.formats.exports import chat, first_messages, of_bytes


def archive(**members: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return target.getvalue()


SAMPLE = json.dumps({"id": 1, "epoch": 1, "input": "Hi", "target": "x", "messages": chat("Hi")["messages"]}).encode()
HEADER = json.dumps({"eval": {"task": "t", "model": "m", "run_id": "r"}}).encode()


def test_an_archive_without_zstandard_is_read_by_the_standard_library() -> None:
    (found,) = of_bytes(archive(**{"header.json": HEADER, "samples/1_epoch_1.json": SAMPLE}))
    assert found.at == "samples/1_epoch_1.json"
    assert found.trace is not None
    assert (found.trace.agent, found.trace.version) == ("t", "m")


def test_names_in_an_archive_are_only_names(tmp_path: Any) -> None:
    names = ["samples/../../../etc/passwd.json", "/samples/x.json", "samples/" + "x" * 500 + ".json"]
    found = of_bytes(archive(**dict.fromkeys(names, SAMPLE)))
    assert len(first_messages(found)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_zip_bomb_costs_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "VALUE_MAX", 1_000_000)
    found = of_bytes(archive(**{"samples/a.json": b" " * 100_000_000, "samples/b.json": SAMPLE}))
    assert first_messages(found) == ["Hi"]
    assert "unpacks to more than" in found[0].error


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (archive(**{"a.txt": b"x"}), "no Inspect log"),
        (archive(**{"[Content_Types].xml": b"x"}), "save the sheet as CSV"),
        (archive(**{"samples/a.json": SAMPLE})[:-30], "zip: "),
        (b"PK\x03\x04" + b"\x00" * 50, "zip: "),
    ],
)
def test_an_archive_that_cannot_be_read_says_why(content: bytes, told: str) -> None:
    with pytest.raises(FormatError, match=told):
        of_bytes(content)
