"""Versions of a hub's weights as workers make them, from a hub of this machine."""

from pathlib import Path

import pytest
from django.conf import settings

from flywheel.accounts.actors import Actor
from flywheel.agents.models import HubVersion
from flywheel.agents.version_content import VersionContent
from flywheel.agents.weights import hub_versions
from flywheel.agents.weights.hub_versions import HubSource
from flywheel.edge.jobs import State
from tests.agents.test_registration_hub import COMMIT, Hub, hub
from tests.conftest import Build, Cast
from workers.jobs.weights import hub_downloads

__all__ = ["hub"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_version_is_made_of_what_was_fetched_at_a_commit_and_a_missing_model_is_told(
    hub: str, build: Build, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = build.version()
    monkeypatch.setenv("FLYWHEEL_HUB", hub)

    def fetched(name: str) -> HubVersion:
        job, _ = hub_versions.request(
            agent=like.agent, actor=Actor(cast.builder), source=HubSource(name), content=VersionContent.of(like)
        )
        lease = HubVersion.claim(job.pk)
        assert lease is not None
        with lease:
            hub_downloads.fetch(lease)
        job.refresh_from_db()
        return job

    job = fetched("own/tiny")
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    version = job.version
    assert version is not None
    assert version.weights is not None
    assert set(version.weights.manifest) == {"model.safetensors", "config.json", "chat_template.jinja"}
    assert (version.system_prompt, version.note) == (like.system_prompt, f"own/tiny at {COMMIT[:12]}")
    assert not [path for path in Hub.asked if path.endswith((".bin", ".py", "onnx/config.json"))]
    job = fetched("own/other")
    assert (job.state, job.error_kind, job.version) == (State.FAILED, "hub", None)
    assert job.error.startswith("own/other cannot be fetched from http://127.0.0.1:")
    assert not list(Path(settings.RUNS_DIR).glob("hub-*"))
