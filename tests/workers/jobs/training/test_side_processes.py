"""Directories of what is done beside a run: each owner's is its own."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.edge.jobs import Lease
from flywheel.training.models import TokenPreview
from workers.jobs.training import side_processes


@pytest.fixture
def owners(tmp_path: Path, settings: Any) -> list[Lease]:
    settings.RUNS_DIR = tmp_path
    return [Lease(TokenPreview(pk=7), fence=fence, asked_at=0.0) for fence in (1, 2)]


def test_an_owner_that_comes_back_leaves_its_successors_directory(owners: list[Lease]) -> None:
    first, second = (side_processes.directory(owner, "preview") for owner in owners)
    with first as left:
        left.mkdir()
        with second as place:
            place.mkdir()
            assert not left.exists(), "what was left lying is swept"
            first.__exit__(None, None, None)
            assert place.exists()
        assert not place.exists()
