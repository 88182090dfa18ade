"""Flywheel served for programs that are evaluated."""

import os
from pathlib import Path
from typing import Any

import pytest

from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway import upstream_connection as connections


@pytest.fixture
def served(live_server: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The address at which this process serves; the gateway records each call at once, on the thread that had it."""
    settings.GATEWAY_DIR = tmp_path / "gateway"
    monkeypatch.setitem(os.environ, "FLYWHEEL_URL", live_server.url)
    monkeypatch.setattr(recording.recorder, "put", lambda journal: recording.recorder.record([journal]))
    yield live_server.url
    connections.forget()
