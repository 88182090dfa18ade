"""Pipelines by API: launched once for a key, followed, decided at the gate."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.training.models import Pipeline
from flywheel.training.pipelines import pipeline_steps
from tests.training.conftest import Room
from tests.training.pipelines.conftest import Line

pytestmark = pytest.mark.django_db
Call = Callable[..., Any]
PATH = "/api/v1/training-pipelines"


@pytest.fixture
def call(client: Client, key: Callable[..., dict[str, str]]) -> Call:
    headers = key("read", "train")

    def go(path: str, body: Any = None, status: int = 200) -> Any:
        sent = (
            client.get(path, headers=headers)
            if body is None
            else client.post(path, body, content_type="application/json", headers=headers)
        )
        assert sent.status_code == status, sent.content
        return sent.json()

    return go


def sent(room: Room, **gate: float) -> dict[str, Any]:
    usual = {"task_set": str(room.task_set), "override_reason": "a test"}
    return {
        "key": str(uuid.uuid4()),
        "base": str(room.base),
        "stages": [
            {**usual, "algorithm": "sft", "settings": {"steps": 7, "validation_share": 0.34}},
            {**usual, "algorithm": "grpo", "settings": {"steps": 5}, "gate": gate},
        ],
    }


def test_a_pipeline_is_launched_once_followed_and_let_on(room: Room, call: Call) -> None:
    line, body = Line(room), sent(room, min_success=0.6)
    made = call(PATH, body, 201)
    assert call(PATH, body) == made
    first, second = made["stages"]
    assert (made["state"], made["at"], made["base"]) == ("running", 1, str(room.base))
    assert (first["algorithm"], first["gate"], len(first["runs"])) == ("sft", {}, 1)
    assert (second["algorithm"], second["gate"], second["runs"], second["entry"]) == (
        "grpo",
        {"min_success": 0.6},
        [],
        None,
    )
    run = call(f"/api/v1/training-runs/{first['runs'][0]}")
    assert (run["pipeline"], run["stage"]) == (made["id"], 1)
    version = line.end(line.run(Pipeline.objects.get()), success=0.4, n=20, parts={})
    pipeline_steps.sweep()
    now = call(f"{PATH}/{made['id']}")
    assert (now["state"], now["stages"][0]["produced"]) == ("at_gate", str(version))
    assert now["stages"][1]["entry"] == {
        "run": run["id"],
        "checks": [
            {
                "name": "min_success",
                "label": "validation success",
                "limit": 0.6,
                "share": 0.4,
                "n": 20,
                "holds": False,
            }
        ],
        "let_on": None,
    }
    assert call(f"{PATH}/{made['id']}/resume", {}, 409)["detail"] == f"p-{made['id']} is stopped at the gate"
    on = call(f"{PATH}/{made['id']}/let-on", {"reason": "hard tasks"})
    assert (on["state"], on["at"], on["stages"][1]["entry"]["let_on"]["reason"]) == ("running", 2, "hard tasks")
    assert call(f"{PATH}/{made['id']}/stop", {})["state"] == "stopped"
    assert call(f"{PATH}/{made['id']}/resume", {})["state"] == "running"
    assert call(f"{PATH}/{made['id']}/end", {})["state"] == "ended"
    assert [each["id"] for each in call(PATH)["items"]] == [made["id"]]


def test_errors_name_the_stage_and_its_field(room: Room, call: Call) -> None:
    body = sent(room)
    body["stages"][1]["task_set"] = "mail@"
    assert call(PATH, body, 422)["detail"].startswith("stages.2.task_set: 'mail@' is not of the form set@version")
    body = sent(room)
    body["stages"][1]["settings"] = {"steps": "many"}
    assert call(PATH, body, 422)["detail"].startswith("stages.2.settings.steps: 'many' is not a whole number")
    assert not Pipeline.objects.exists()
