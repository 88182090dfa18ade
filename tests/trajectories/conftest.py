import pytest


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The projects for which detectors were woken; no message leaves."""
    projects: list[int] = []
    monkeypatch.setattr("flywheel.trajectories.store.announce", projects.append)
    return projects
