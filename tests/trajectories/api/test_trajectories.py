"""Trajectories for programs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.trajectories.models import Batch, Source
from tests.conftest import Build, Cast

Keys = Callable[..., dict[str, str]]
URL = "/api/v1/trajectories"


@pytest.fixture
def get(client: Client, key: Keys) -> Callable[..., Any]:
    read = key("read")

    def ask(path: str, **query: Any) -> Any:
        return client.get(path, query, headers=read)

    return ask


def test_the_list_is_paged_newest_first(build: Build, get: Callable[..., Any]) -> None:
    made = [build.trajectory().trace_id for _ in range(7)]
    build.trajectory(source=Source.ROLLOUT)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = get(URL, limit=3, cursor=cursor).json()
        seen += [item["trace_id"] for item in page["items"]]
        cursor = page["next"]
    assert seen == made[::-1]


def test_the_list_speaks_the_bars_language(build: Build, get: Callable[..., Any]) -> None:
    version = build.version()
    row = build.trajectory(outcome="failed", version=version, agent=version.agent)
    build.trajectory(outcome="success")
    (item,) = get(URL, q="outcome:failed").json()["items"]
    assert (item["trace_id"], item["version"], item["agent"]) == (row.trace_id, version.number, version.agent.name)
    answer = get(URL, q="outcom:failed")
    assert answer.status_code == 400
    assert "Did you mean outcome?" in answer.json()["detail"]


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 1000}, {"limit": "x"}])
def test_a_limit_out_of_bounds_is_refused(cast: Cast, get: Callable[..., Any], query: dict[str, Any]) -> None:
    assert get(URL, **query).status_code == 422


def test_a_cursor_that_is_none_is_refused(cast: Cast, get: Callable[..., Any]) -> None:
    assert get(URL, cursor="nonsense").status_code == 400


def test_one_trajectory_with_its_steps(build: Build, get: Callable[..., Any]) -> None:
    row = build.trajectory()
    answer = get(f"{URL}/{row.trace_id}").json()
    assert answer["title"] == row.title
    assert [step["kind"] for step in answer["steps"]] == ["system", "user", "assistant"]
    assert answer["next_step"] is None
    page = get(f"{URL}/{row.trace_id}", start=1, limit=1).json()
    assert ([step["position"] for step in page["steps"]], page["next_step"]) == ([1], 2)


def test_other_projects_do_not_exist(cast: Cast, build: Build, get: Callable[..., Any]) -> None:
    row = build.trajectory(project=cast.elsewhere)
    answer = get(f"{URL}/{row.trace_id}")
    assert (answer.status_code, answer.json()) == (404, {"detail": f"there is no trajectory {row.trace_id}"})
    assert get(URL).json()["items"] == []


def test_the_ledger_is_read(cast: Cast, get: Callable[..., Any]) -> None:
    for project, received in ((cast.project, 1), (cast.project, 2), (cast.elsewhere, 3)):
        Batch.objects.create(
            project=project, format="otlp", received=received, inserted=received, updated=0, duplicate=0, rejected=0
        )
    first = get("/api/v1/batches", limit=1).json()
    assert [item["received"] for item in first["items"]] == [2]
    second = get("/api/v1/batches", limit=1, cursor=first["next"]).json()
    assert ([item["received"] for item in second["items"]], second["next"]) == ([1], None)


@pytest.mark.parametrize("path", [URL, f"{URL}/x", "/api/v1/batches"])
def test_an_ingest_key_reads_nothing(cast: Cast, client: Client, key: Keys, path: str) -> None:
    assert client.get(path, headers=key("ingest")).status_code == 403
    assert client.get(path).status_code == 401
