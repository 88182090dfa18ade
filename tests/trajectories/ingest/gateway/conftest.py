"""A gateway before a server of the test's own."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ApiKey
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.trajectories.ingest.gateway import recorder as recording
from flywheel.trajectories.ingest.gateway import routing
from flywheel.trajectories.ingest.gateway import upstream_connection as connections
from flywheel.trajectories.ingest.gateway.arms import arm_choice
from flywheel.trajectories.ingest.gateway.journals import journal as journals
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.ingest.gateway.routing import Route
from tests.conftest import Cast
from tests.trajectories.ingest.gateway.calls import Headers
from tests.trajectories.ingest.upstream import Upstream, serve


def at_once(meet: Callable[[], Route]) -> Future[Route]:
    """A unit meets its arm on the test's own thread and connection."""
    met: Future[Route] = Future()
    met.set_result(meet())
    return met


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serve() as server:
        yield server
        connections.forget()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> list[Journal]:
    """Journals are recorded at once, on the test's own thread and connection."""
    settings.GATEWAY_DIR = tmp_path / "gateway"
    put: list[Journal] = []

    def record(journal: Journal) -> None:
        put.append(journal)
        recording.recorder.record([journal])

    monkeypatch.setattr(recording.recorder, "put", record)
    monkeypatch.setattr(routing, "_known", type(routing._known)())
    monkeypatch.setattr(routing, "_away_until", 0.0)
    monkeypatch.setattr(routing, "TRUSTED_S", 0.0)
    monkeypatch.setattr(arm_choice, "submit", at_once)
    monkeypatch.setattr(journals, "YOUNG_S", 0.0)
    return put


@pytest.fixture
def gate(cast: Cast, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Headers:
    """Headers of a key for a project whose upstream is the fake one."""
    monkeypatch.setenv("TEST_API_KEY", "sk-upstream")
    monkeypatch.setenv("TEST_API_KEY_HOSTS", "127.0.0.1")
    set_upstream(project=cast.project, actor=Actor(cast.admin), base_url=upstream.url, api_key_env="TEST_API_KEY")
    _, text = ApiKey.make(cast.project, "gateway", ["gateway"], cast.admin)
    return {"authorization": f"Bearer {text}"}
