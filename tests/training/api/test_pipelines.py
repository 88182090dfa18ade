"""Pipelines by API: launched once for a key, followed, decided at the gate."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.agents.models import Version
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
        "eval": None,
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


def test_it_begins_with_a_new_prompt(room: Room, call: Call) -> None:
    line, body = Line(room), sent(room)
    prompt = {"algorithm": "prompt", "task_set": str(room.task_set), "seed": 2}
    body["stages"] = [{**prompt, "system_prompt": "Check the day."}, {**body["stages"][0], "gate": {"min_success": 1}}]
    made = call(PATH, body, 201)
    first, second = made["stages"]
    draft = Version.objects.get(system_prompt="Check the day.")
    assert (first["algorithm"], first["draft"], first["produced"]) == ("prompt", str(draft), str(draft))
    assert (first["dataset"], first["runs"], first["settings"]) == (None, [], {"samples": 4, "validation_share": 0.2})
    assert (second["draft"], second["evals"], second["dataset"]) == (None, [], "mail-sft@1")
    evals = line.evals(Pipeline.objects.get())
    assert first["evals"] == [run.pk for run in evals]
    for run in evals:
        line.answer(run, (False,))
    pipeline_steps.sweep()
    now = call(f"{PATH}/{made['id']}")
    entry = now["stages"][1]["entry"]
    assert (now["state"], entry["run"], entry["eval"]) == ("at_gate", None, evals[0].pk)
    assert call(f"{PATH}/{made['id']}/retry", {})["stages"][0]["attempt"] == 2
    again = {**body, "key": str(uuid.uuid4()), "stages": [{**prompt, "draft": str(draft)}, body["stages"][1]]}
    assert call(PATH, again, 201)["stages"][0]["draft"] == str(draft)


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        ({"system_prompt": "a\x00b"}, "stages.1.system_prompt"),
        ({"draft": "assistant@99"}, "stages.1.draft"),
        ({"system_prompt": "New.", "settings": {"samples": 0}}, "stages.1.settings.samples"),
    ],
)
def test_errors_of_a_prompt_name_its_field(room: Room, call: Call, stage: dict[str, Any], field: str) -> None:
    body = sent(room)
    body["stages"][0] = {"algorithm": "prompt", "task_set": str(room.task_set), **stage}
    assert call(PATH, body, 422)["detail"].startswith(field)
    assert not Pipeline.objects.exists()
