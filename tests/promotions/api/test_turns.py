"""Turns for programs."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.environments.models import Task
from flywheel.promotions.models import Candidate, Watch
from tests.conftest import Build, Cast
from tests.promotions.conftest import agent, candidate, evaluated
from tests.promotions.turns.test_drafts import failed
from tests.promotions.turns.test_turn_bounds import promoted

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db
TURNS = "/api/v1/agents/assistant/turns"
NEXT = "/api/v1/agents/assistant/next-turn"


def test_turns_their_stations_and_their_lists(
    cast: Cast, candidate: Candidate, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    promotion, headers = promoted(candidate, cast), key("read")
    listed = client.get(TURNS, headers=headers).json()
    assert [(row["number"], row["begun_by"], row["ended_by"]) for row in listed["items"]] == [
        (2, promotion.pk, None),
        (1, None, promotion.pk),
    ]
    first = client.get(f"{TURNS}/1", headers=headers).json()
    counts = {row["key"]: row["count"] for row in first["stations"]}
    assert (counts["comparisons"], counts["evals"], counts["moves"]) == (1, 2, 2)
    page = client.get(f"{TURNS}/1?station=evals&limit=1", headers=headers).json()
    assert [row["ref"] for row in page["items"]] == [str(max(candidate.version_eval_id, candidate.baseline_eval_id))]
    assert page["next"]
    assert client.get(f"{TURNS}/9", headers=headers).json() == {
        "detail": "assistant has no turn 9; its turns are 1 to 2"
    }
    assert client.get(f"{TURNS}/1?station=x", headers=headers).status_code == 404


def test_a_turn_says_how_the_version_that_ended_it_is_watched(
    cast: Cast, candidate: Candidate, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    promotion, headers = promoted(candidate, cast), key("read")
    unwatched = client.get(f"{TURNS}/1", headers=headers).json()
    assert (unwatched["watch"], unwatched["is_rolled_back"]) == (None, False)
    found = {"session": 31, "evidence": 60_000.0, "at": "2026-11-05T10:00:00+00:00", "did": "reopened"}
    row = Watch.objects.create(
        promotion=promotion, agent=candidate.agent, claims={"unsafe": 0.01, "bucket:wrong_tool": 0.02}, sessions=40,
        broken={"bucket:wrong_tool": found}, read_to=timezone.now(),
    )  # fmt: skip
    watch = client.get(f"{TURNS}/1", headers=headers).json()["watch"]
    assert (watch["state"], watch["sessions"], watch["claims"]) == ("running", 40, row.claims)
    assert datetime.fromisoformat(watch["began_at"]) - row.began_at < timedelta(seconds=1)
    [broken] = watch["broken"]
    assert (broken["signal"], broken["session"], broken["did"]) == ("bucket:wrong_tool", 31, "reopened")
    assert client.get(f"{TURNS}/2", headers=headers).json()["watch"] is None


def test_a_draft_is_started_and_frozen(
    cast: Cast, build: Build, client: Client, key: Callable[..., dict[str, str]]
) -> None:
    build.task_set(train=1, held_out=1)
    failed(cast, build, "Ines")
    failed(cast, build, "Bare", corrected=None)
    headers = key("read", "build", by=cast.builder)
    assert client.get(NEXT, headers=headers).json() == {
        "turn": 1, "since": None, "environment": "mail", "tasks": [], "left_out": [], "frozen": 0, "uncorrected": 1,
        "taskless": 1, "back": [],
    }  # fmt: skip
    started = [client.post(NEXT, {}, "application/json", headers=headers).json() for _ in range(2)]
    assert [(each["made"], each["left"], each["draft"]["taskless"]) for each in started] == [(1, 0, 0), (0, 0, 0)]
    Task.objects.update(is_proved=True)
    [task] = client.get(NEXT, headers=headers).json()["tasks"]
    frozen = client.post(f"{NEXT}/freeze", {"name": "mail"}, "application/json", headers=headers)
    assert frozen.status_code == 201
    assert frozen.json()["task_set"].startswith("mail@")
    draft = client.get(NEXT, headers=headers).json()
    assert (draft["tasks"], draft["frozen"]) == ([], 1)
    assert task["number"] == Task.objects.exclude(failure=None).get().number
    refused = client.post(NEXT, {"environment": "none"}, "application/json", headers=headers)
    assert (refused.status_code, refused.json()["detail"]) == (
        404,
        "no environment 'none' takes failures of assistant; create one that does",
    )
