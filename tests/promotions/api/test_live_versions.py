"""What is live, for programs that poll."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.actors import Actor
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, MergedWeights, Version
from flywheel.agents.weights import merged_weights
from flywheel.edge.jobs import State
from flywheel.promotions.live_version import make_first, roll_back
from flywheel.promotions.models import Promotion
from tests.agents.test_artifacts import model
from tests.conftest import Build, Cast

Keys = Callable[..., dict[str, str]]
pytestmark = pytest.mark.django_db
URL = "/api/v1/agents/assistant/live"


@pytest.fixture
def version(build: Build, tmp_path: Path, cast: Cast) -> Version:
    found = build.version(
        weights=artifacts.store(model(tmp_path / "base"), "model"),
        adapter=artifacts.store(model(tmp_path / "adapter"), "adapter"),
    )
    make_first(agent=found.agent, version=found, actor=Actor(cast.approver), reason="first")
    return found


def test_a_program_fetches_weights_when_they_are_new(
    version: Version, client: Client, key: Keys, cast: Cast, tmp_path: Path
) -> None:
    read = key("read")
    answer = client.get(URL, headers=read)
    assert version.weights is not None
    assert version.adapter is not None
    place = "/api/v1/agents/assistant/versions/1/downloads"
    parts = [
        {"part": "weights", "digest": version.weights.digest, "url": f"{place}/weights.tar"},
        {"part": "adapter", "digest": version.adapter.digest, "url": f"{place}/adapter.tar"},
    ]
    first = answer.json()
    since = first.pop("since")
    assert since.startswith(Promotion.objects.get().created_at.isoformat()[:19])
    assert first == {
        "agent": "assistant",
        "version": "assistant@1",
        "digest": version.digest,
        "generation": 1,
        "downloads": parts,
    }
    assert answer["ETag"].startswith('"1-')
    known = {**read, "If-None-Match": answer["ETag"]}
    again = client.get(URL, headers=known)
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", answer["ETag"])
    for part in parts:
        download: Any = client.get(part["url"], headers=read)
        assert (download.status_code, download["ETag"]) == (200, f'"{part["digest"]}"')
        assert b"".join(download.streaming_content)
        assert client.get(part["url"], headers={**read, "If-None-Match": download["ETag"]}).status_code == 304

    merged_weights.merge(version, Actor(cast.builder))
    assert client.get(URL, headers=known).status_code == 304, "there is nothing to download yet"
    MergedWeights.objects.update(artifact=artifacts.store(model(tmp_path / "merged"), "model"), state=State.SUCCEEDED)
    changed = client.get(URL, headers=known)
    assert (changed.status_code, changed.json()["downloads"][-1]["url"]) == (200, f"{place}/merged.tar")


def test_a_move_and_the_way_back_change_the_answer(
    version: Version, client: Client, key: Keys, build: Build, cast: Cast
) -> None:
    tags = [client.get(URL, headers=key("read"))["ETag"]]
    plain = build.version(endpoint={"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"})
    Agent.objects.update(live=plain, generation=2)
    answer = client.get(URL, headers={**key("read"), "If-None-Match": tags[0]})
    tags.append(answer["ETag"])
    said = answer.json()
    assert (said["version"], said["generation"], said["downloads"]) == ("assistant@2", 2, [])
    agent = Agent.objects.get()
    roll_back(agent=agent, to=version, actor=Actor(cast.approver), reason="worse", generation=agent.generation)
    tags.append(client.get(URL, headers={**key("read"), "If-None-Match": tags[0]})["ETag"])
    assert [tag.split("-")[0] for tag in tags] == ['"1', '"2', '"3']


def test_it_is_one_query(version: Version, client: Client, key: Keys, django_assert_num_queries: Any) -> None:
    read = key("read")
    assert client.get("/api/v1/agents/nobody/live", headers=read).status_code == 404
    with django_assert_num_queries(1):
        assert client.get(URL, headers=read).status_code == 200


def test_an_agent_without_a_live_version_says_so(build: Build, client: Client, key: Keys) -> None:
    build.agent()
    said = client.get(URL, headers=key("read")).json()
    assert (said["version"], said["digest"], said["since"], said["downloads"]) == (None, None, None, [])


@pytest.mark.parametrize("name", ["nobody", "%00", "a%2Fb", "assistant@1", "x" * 3000])
def test_an_agent_that_is_not_there_is_404(name: str, version: Version, client: Client, key: Keys) -> None:
    assert client.get(f"/api/v1/agents/{name}/live", headers=key("read")).status_code in (400, 404)


def test_a_key_of_another_project_or_scope_learns_nothing(
    version: Version, client: Client, key: Keys, cast: Cast
) -> None:
    assert client.get(URL, headers=key("gateway")).status_code == 403
    assert client.get(URL).status_code == 401
