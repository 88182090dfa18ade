"""Versions of a hub's weights as they are asked for: only where the operator allows one, and checked beforehand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.agents import artifacts
from flywheel.agents.models import HubVersion
from flywheel.edge.jobs import State
from tests.agents.test_artifacts import model
from tests.conftest import Build, Cast
from tests.pages import page_of

pytestmark = pytest.mark.django_db
HUB = "http://127.0.0.1:9"


def test_a_person_has_weights_fetched_for_the_version_that_the_form_says(
    build: Build, cast: Cast, sign_in: Callable[[User], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = build.version()
    page, client = reverse("agents:new_version", args=["acme", version.agent.name]), sign_in(cast.builder)
    asked = {
        "base_model": "tiny", "kind": "transformers", "weights": "hub", "hub_name": "own/tiny", "tools": "[]",
        "system_prompt": "Do.", "temperature": "1", "top_p": "1", "max_tokens": "64",
    }  # fmt: skip
    assert client.post(page, asked).status_code == 422, "no hub is allowed, so the form has no such choice"
    assert "Name on the hub" not in page_of(client.get(page))
    monkeypatch.setenv("FLYWHEEL_HUB", HUB)
    assert "fetch from http://127.0.0.1:9" in page_of(client.get(page))
    refused = client.post(page, asked | {"hub_name": "own/../tiny"})
    assert (refused.status_code, "expected owner/name" in page_of(refused)) == (422, True)
    assert not HubVersion.objects.exists()
    answer: Any = client.post(page, asked)
    job = HubVersion.objects.get()
    assert answer["Location"] == reverse("agents:hub_version", args=["acme", job.pk])
    assert (job.name, job.revision, job.content["system_prompt"], job.version) == ("own/tiny", "main", "Do.", None)
    assert "waiting for a worker" in page_of(client.get(answer["Location"]))
    HubVersion.objects.update(state=State.FAILED, error="<b>gone</b>")
    assert "&lt;b&gt;gone" in page_of(client.get(answer["Location"]))
    HubVersion.objects.update(state=State.SUCCEEDED, version=version)
    there: Any = client.get(answer["Location"])
    assert there["Location"] == reverse("agents:version", args=["acme", version.agent.name, version.number])


def test_a_program_has_weights_fetched(
    build: Build, client: Client, key: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = build.version(weights=artifacts.store(model(tmp_path / "m"), "model"))
    place = f"/api/v1/agents/{version.agent.name}/versions/hub"

    def post(**body: Any) -> Any:
        return client.post(place, {"name": "own/tiny", **body}, content_type="application/json", headers=key("build"))

    refused = post()
    assert (refused.status_code, "the operator sets FLYWHEEL_HUB" in refused.json()["detail"]) == (422, True)
    monkeypatch.setenv("FLYWHEEL_HUB", HUB)
    for body, said in (
        ({"name": "https://x/y"}, "name: expected owner/name"),
        ({"revision": "../x"}, "revision: expected a commit, branch or tag"),
        ({"kind": "adapter", "base_model": "tiny"}, "like: is missing: the version whose weights the adapter goes on"),
        ({"like": 99}, "like: "),
    ):
        assert said in post(**body).json()["detail"]
    mine = "11111111-2222-4333-8444-555555555555"
    made, again = post(like=version.number, kind="adapter", key=mine), post(like=version.number, key=mine)
    assert (made.status_code, again.status_code, made.json()["id"]) == (201, 200, again.json()["id"])
    job = HubVersion.objects.get()
    assert (job.kind, job.weights, job.content["base_model"]) == ("adapter", version.weights, version.base_model)
    found = client.get(f"{place}/{job.pk}", headers=key("read")).json()
    assert (found["state"], found["version"]) == ("queued", None)
