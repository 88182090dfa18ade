"""A search for a prompt by API: started once, read with every proposal, stopped, resumed, its best tried."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.edge.jobs import State
from flywheel.training.models import FixTrial, PromptSearch
from tests.conftest import SYSTEM
from tests.training.fixes.conftest import BETTER, BUCKET, Desk, desk
from tests.training.fixes.test_draft_search import WRITER, finished

__all__ = ["desk"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def call(client: Client, key: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    headers = key("read", "build")

    def go(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        address = f"/api/v1/prompt-searches{path}"
        more = {"content_type": "application/json"} if method == "post" else {}
        response = getattr(client, method)(address, body or {}, headers=headers, **more)
        assert response.status_code == status, response.content
        return response.json()

    return go


def test_it_is_started_once_for_a_key_stopped_and_resumed(desk: Desk, call: Callable[..., Any]) -> None:
    wanted = {
        "key": str(uuid.uuid4()),
        "bucket": BUCKET,
        "version": str(desk.parent),
        "task_set": str(desk.task_set),
        "endpoint": WRITER,
        "proposals": 2,
    }
    search = call("post", "", wanted, 202)
    assert call("post", "", wanted)["id"] == search["id"]
    assert (search["state"], search["most_proposals"], search["trial"]) == ("queued", 2, None)
    assert call("post", f"/{search['id']}/cancel")["state"] == "cancelled"
    assert call("post", f"/{search['id']}/resume")["state"] == "queued"
    assert [row["id"] for row in call("get", "")["items"]] == [search["id"]]
    wrong = wanted | {"key": str(uuid.uuid4()), "attempts": 1}
    assert call("post", "", wrong, 422)["detail"].startswith("attempts: 1 is not between")


def test_every_proposal_is_read_with_its_scores_and_the_best_is_tried(desk: Desk, call: Callable[..., Any]) -> None:
    search = finished(desk)
    page = call("get", f"/{search.pk}/proposals?limit=2")
    assert [row["place"] for row in page["items"]] == [3, 2]
    rest = call("get", f"/{search.pk}/proposals?limit=2&cursor={page['next']}")
    better, own = rest["items"]
    assert (better["text"], better["mean"], better["n"], better["unscored"]) == (BETTER, 1.0, 2, 1)
    assert [row["score"] for row in better["scores"]].count(None) == 1
    assert (own["text"], own["place"], rest["next"]) == (SYSTEM, 0, None)
    assert "proposals: 9 is no proposal" in call("post", f"/{search.pk}/try", {"proposals": [9]}, 422)["detail"]
    tried = call("post", f"/{search.pk}/try", {"proposals": [1]})
    assert tried["trial"] == FixTrial.objects.get().pk
    PromptSearch.objects.update(state=State.FAILED)
    assert "is tried already" in call("post", f"/{search.pk}/resume", status=409)["detail"]
