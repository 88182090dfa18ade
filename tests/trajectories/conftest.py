from collections.abc import Iterator
from unittest import mock

import pytest

from flywheel.trajectories.ingest.onboarding import refused_requests


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The projects for which detectors were woken; no message leaves."""
    projects: list[int] = []
    monkeypatch.setattr("flywheel.trajectories.store.detector_wakeup.soon", projects.append)
    return projects


@pytest.fixture(autouse=True)
def _every_refusal_is_noted() -> Iterator[None]:
    """How often refusals are noted is limited for the process, and tests follow each other at once."""
    limits = {True: refused_requests._Limit(), False: refused_requests._Limit()}
    with mock.patch("flywheel.trajectories.ingest.onboarding.refused_requests._limits", limits):
        yield
