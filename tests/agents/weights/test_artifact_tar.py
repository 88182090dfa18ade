"""An artifact as a tar: what tar reads, at any place the same bytes, and not sent again to who has it."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from flywheel.agents import artifacts
from flywheel.agents.models import Artifact
from flywheel.agents.weights.artifact_tar import ArtifactTar, download
from flywheel.edge.refusals import Missing
from tests.agents.test_artifacts import blob, model

pytestmark = pytest.mark.django_db


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """One whose files fill no block, one block, and more than one."""
    return artifacts.store(model(tmp_path / "a", a__txt=b"x" * 512, b__txt=b"y" * 700, empty__txt=b""), "model")


def sent(artifact: Artifact, **headers: str) -> tuple[Any, bytes]:
    answer: Any = download(RequestFactory().get("/", headers=headers), artifact, "a.tar")
    return answer, b"".join(answer)


def test_tar_reads_every_file_in_one_folder(artifact: Artifact) -> None:
    _, content = sent(artifact)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {entry.name: archive.extractfile(entry) for entry in archive}
        found = {name: file.read() for name, file in members.items() if file}
    assert found == {f"model/{name}": artifacts.read(artifact, name) for name in artifact.manifest}


def test_every_part_is_that_part_of_the_whole(artifact: Artifact) -> None:
    answer, content = sent(artifact)
    assert (answer["Content-Length"], answer["ETag"]) == (str(len(content)), f'"{artifact.digest}"')
    tar = ArtifactTar(artifact)
    for start in (0, 1, 511, 512, 513, 1024, len(content) - 1, len(content), len(content) + 9):
        tar.seek(start)
        assert tar.read() == content[start:]
    answer, rest = sent(artifact, Range="bytes=1500-", If_Range=f'"{artifact.digest}"')
    assert (answer.status_code, rest) == (206, content[1500:])


def test_who_has_it_is_sent_nothing(artifact: Artifact) -> None:
    assert sent(artifact, If_None_Match=f'"{artifact.digest}"')[0].status_code == 304


def test_a_lost_file_is_told_before_anything_is_sent(artifact: Artifact) -> None:
    blob(artifact, "a.txt").unlink()
    with pytest.raises(Missing, match=r"a.txt of model .* is missing from the storage"):
        sent(artifact)
