"""Merged weights as they are asked for: once for a base and its adapter, by page and by API."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.agents import artifacts
from flywheel.agents.models import MergedWeights, Version
from flywheel.agents.weights import merged_weights
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.training.models import TrainingRun
from tests.agents.test_artifacts import model
from tests.conftest import Build, Cast
from tests.edge.test_jobs import training_run
from tests.pages import page_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def version(build: Build, tmp_path: Path) -> Version:
    """A version with an adapter."""
    weights = artifacts.store(model(tmp_path / "base"), "model")
    adapter = artifacts.store(model(tmp_path / "adapter"), "adapter")
    return build.version(weights=weights, adapter=adapter)


def finish(job: MergedWeights, tmp_path: Path) -> None:
    artifact = artifacts.store(model(tmp_path / "merged"), "model")
    MergedWeights.objects.filter(pk=job.pk).update(state=State.SUCCEEDED, artifact=artifact, lost=0.84)


def test_one_base_and_adapter_are_merged_once(build: Build, version: Version, cast: Cast, tmp_path: Path) -> None:
    actor = Actor(cast.builder)
    job, is_new = merged_weights.merge(version, actor)
    other = build.version(version.agent, system_prompt="Other.", weights=version.weights, adapter=version.adapter)
    assert (is_new, merged_weights.merge(other, actor)) == (True, (job, False))
    assert merged_weights.merge(other, actor, "float32")[1], "of another type it is another one"
    MergedWeights.objects.filter(pk=job.pk).update(state=State.FAILED, error="no memory")
    again, is_new = merged_weights.merge(version, actor)
    assert (again.state, again.error, is_new) == (State.QUEUED, "", False)
    finish(job, tmp_path)
    part = {part.name: part for part in merged_weights.parts_of(other)}["merged"]
    assert part.artifact is not None
    actions = list(AuditEntry.objects.filter(action__contains="merge").values_list("action", flat=True))
    assert sorted(actions) == ["agents.merge_weights", "agents.merge_weights", "agents.resume_merge"]


def test_what_has_no_adapter_is_not_merged(build: Build, version: Version, cast: Cast) -> None:
    plain = build.version(version.agent, system_prompt="Plain.", weights=version.weights)
    assert [part.name for part in merged_weights.parts_of(plain)] == ["weights"]
    with pytest.raises(Refused, match="has no adapter, so there is nothing to merge"):
        merged_weights.merge(plain, Actor(cast.builder))
    assert merged_weights.parts_of(build.version(version.agent, endpoint={"kind": "openai"})) == []


def test_a_person_merges_and_downloads(
    build: Build, version: Version, cast: Cast, sign_in: Callable[[User], Client], tmp_path: Path
) -> None:
    place = [cast.project.slug, version.agent.name, version.number]
    page, client = reverse("agents:version", args=place), sign_in(cast.builder)
    assert page_of(client.get(page)).count(">Merge</button>") == 2
    assert "QLoRA" not in page_of(client.get(page))
    TrainingRun.objects.filter(pk=training_run(build).pk).update(produced=version, tuning={"mode": "qlora", "rank": 1})
    assert "it is merged into the unquantized base" in page_of(client.get(page))
    assert client.post(reverse("agents:merge", args=[*place, "base"])).status_code == 302
    fragment = client.get(reverse("agents:downloads", args=place))
    assert (fragment.status_code, "being merged" in page_of(fragment)) == (200, True)
    download = reverse("agents:download", args=[*place, "merged"])
    assert client.get(download).status_code == 404
    job = MergedWeights.objects.get()
    MergedWeights.objects.update(state=State.FAILED, error="<b>no room</b>")
    assert "&lt;b&gt;no room" in page_of(client.get(reverse("agents:downloads", args=place)))
    finish(job, tmp_path)
    fragment = client.get(reverse("agents:downloads", args=place))
    assert (fragment.status_code, "84.0% of the changed weights" in page_of(fragment)) == (286, True)
    assert download in page_of(fragment)
    answer: Any = client.get(download)
    assert answer["Content-Disposition"] == f'attachment; filename="{version.agent.name}-{version.number}-merged.tar"'
    assert len(b"".join(answer)) == int(answer["Content-Length"])


def test_a_program_merges_and_follows(
    version: Version, client: Client, key: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    place = f"/api/v1/agents/{version.agent.name}/versions/{version.number}"

    def post(**body: str) -> Any:
        return client.post(f"{place}/merge", body, content_type="application/json", headers=key("build"))

    assert (post().status_code, post().status_code) == (201, 200)
    assert post(dtype="int8").status_code == 422
    finish(MergedWeights.objects.get(), tmp_path)
    rows = client.get(f"{place}/downloads", headers=key("read")).json()
    assert [(row["part"], row["state"], row["lost"]) for row in rows] == [
        ("weights", "", None), ("adapter", "", None), ("merged", "succeeded", 0.84), ("merged-float32", "", None),
    ]  # fmt: skip
    answer: Any = client.get(f"{place}/downloads/merged.tar", headers={**key("read"), "If-None-Match": "x"})
    assert (answer.status_code, answer["ETag"]) == (200, f'"{rows[2]["artifact"]["digest"]}"')
    answer.close()
