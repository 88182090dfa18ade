"""The trials in short; `python -m tests.chaos` runs them as long as you like."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import clients, full, kills, malformed, repeats
from tests.chaos.installation import ROOT, Installation

pytestmark = pytest.mark.xdist_group("chaos")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("chaos"), with_worker=False, with_grpc=True) as running:
        yield running


def assert_sound(finding: dict[str, Any]) -> None:
    assert not finding["violations"], json.dumps(finding, indent=1)


@pytest.mark.worker
def test_kills_lose_nothing(tmp_path: Path) -> None:
    """In an installation of its own, with a worker to be killed."""
    with Installation(tmp_path) as hurt:
        finding = kills.trial(hurt, kills=6, seed=1, every_s=1.0)
    assert_sound(finding)
    assert sum(finding["kills"].values()) == 6
    assert finding["acknowledged spans"] > 100


def test_order_and_repetition_over_several_senders_change_nothing(installation: Installation) -> None:
    assert_sound(repeats.trial(installation, seeds=[1, 2, 3]))


def test_a_database_that_may_not_write_refuses_for_now(installation: Installation) -> None:
    finding = full.read_only(installation)
    assert_sound(finding)
    assert finding["answers"]["503"] >= full.REQUESTS_BESIDE


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_refuses_for_now() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--full"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "DATABASE_URL"},
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_malformed_bodies_are_refused_and_their_siblings_kept(installation: Installation) -> None:
    assert_sound(malformed.trial(installation, is_short=True))


def test_who_dawdles_holds_nobody_up(installation: Installation) -> None:
    assert_sound(malformed.slow(installation, seconds=2.0))


@pytest.mark.parametrize("name", clients.PYTHON)
def test_a_client_that_loses_its_answer_is_stored_once(installation: Installation, name: str) -> None:
    assert_sound(clients.trial(installation, name))


@pytest.mark.skipif(bool(clients.without_javascript()), reason=clients.without_javascript())
def test_a_client_in_javascript_that_loses_its_answer_is_stored_once(installation: Installation) -> None:
    assert_sound(clients.trial(installation, "javascript"))
