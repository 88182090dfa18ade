"""Training by API: the same verbs as the pages, named errors, pages by cursor."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import AuditEntry
from flywheel.core import recipes
from flywheel.edge.jobs import State
from flywheel.environments.models import Split
from flywheel.server.api import api
from flywheel.training.models import TrainingRun
from tests.training.conftest import Room, right

pytestmark = pytest.mark.django_db
Keys = Callable[..., dict[str, str]]


@pytest.fixture
def call(client: Client, key: Keys) -> Callable[..., Any]:
    headers = key("read", "train")

    def go(method: str, path: str, body: Any = None, status: int = 200, **query: Any) -> Any:
        address = f"/api/v1/{path}"
        if method == "get":
            response = client.get(address, query, headers=headers)
        else:
            response = client.post(address, body or {}, content_type="application/json", headers=headers)
        assert response.status_code == status, response.content
        return response.json()

    return go


def body(room: Room, **fields: Any) -> dict[str, Any]:
    return {
        "base": str(room.base),
        "task_set": str(room.task_set),
        "algorithm": "sft",
        "override_reason": "a test",
        **fields,
    }


def test_a_run_is_launched_once_for_its_key(room: Room, call: Callable[..., Any]) -> None:
    sent = body(room, key=str(uuid.uuid4()), settings={"steps": 9})
    run = call("post", "training-runs", sent, 201)
    assert call("post", "training-runs", sent)["id"] == run["id"]
    assert (run["state"], run["steps"], run["base"]) == ("queued", 9, str(room.base))
    assert AuditEntry.objects.get(action="training.launch").through.startswith("key ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"base": "assistant@9"}, "base: assistant has no version 9"),
        ({"task_set": "mail@"}, "task_set: 'mail@' is not of the form set@version"),
        ({"settings": {"steps": "many"}}, "settings.steps: 'many' is not a whole number"),
        ({"override_reason": ""}, "override_reason: the evidence supports no fix yet"),
        ({"dataset": "mail@4"}, "dataset: there is no dataset mail@4"),
        ({"dataset": "mail@"}, "dataset: 'mail@' is not of the form name@version"),
        ({"rollouts": 99}, "rollouts: there is no eval run 99"),
        ({"tuning": {"mode": "lora", "rank": 1000}}, "tuning.rank: 1000 is not a whole number from 1 to 512"),
    ],
)
def test_errors_name_the_field(room: Room, call: Callable[..., Any], fields: dict[str, Any], said: str) -> None:
    answer = call("post", "training-runs", body(room, **fields), 422)
    assert answer["detail"].startswith(said)
    assert not TrainingRun.objects.exists()


def test_a_run_is_followed_cancelled_and_resumed(room: Room, call: Callable[..., Any]) -> None:
    run = room.launch()
    room.measured(run, 5, loss=float)
    room.asked(run, {0: 0.25})
    path = f"training-runs/{run.pk}"
    page = call("get", f"{path}/points", after=1, limit=3)
    assert [point["step"] for point in page["items"]] == [2, 3, 4]
    assert [point["step"] for point in call("get", f"{path}/points", after=page["next"])["items"]] == [5]
    values = call("get", f"{path}/points", kind="eval")["items"][0]["values"]
    assert (values["success"], values["usd"]) == (0.25, None)
    run.events.create(text="checkpoint at step 5")
    assert call("get", f"{path}/events")["items"][0]["text"] == "checkpoint at step 5"
    assert call("post", f"{path}/cancel")["state"] == "cancelled"
    assert call("post", f"{path}/cancel", status=409)["detail"] == "the job is over already"
    assert call("post", f"{path}/resume")["state"] == "queued"


def test_runs_are_listed_by_cursor_and_state(room: Room, call: Callable[..., Any]) -> None:
    runs = [room.launch() for _ in range(3)]
    TrainingRun.objects.filter(pk=runs[0].pk).update(state=State.FAILED)
    first = call("get", "training-runs", limit=2)
    rest = call("get", "training-runs", limit=2, cursor=first["next"])
    assert [run["id"] for run in first["items"] + rest["items"]] == [run.pk for run in reversed(runs)]
    assert rest["next"] is None
    assert [run["id"] for run in call("get", "training-runs", state="failed")["items"]] == [runs[0].pk]


def test_datasets_are_built_listed_and_read(room: Room, call: Callable[..., Any]) -> None:
    rollouts = room.evaluated(lambda task, _: right(task).replace(": ", ":  "), split=Split.TRAIN)
    sent = {"name": "fixes", "kind": "sft", "task_set": str(room.task_set), "rollouts": rollouts.pk}
    made = call("post", "datasets", sent, 201)
    assert (made["version"], made["rows"], made["recipe"]["from_rollouts"]) == (1, 12, 6)
    assert call("get", "datasets")["items"] == [made]
    assert call("get", "datasets/fixes/1") == made
    page = call("get", "datasets/fixes/1/rows", start=10, limit=5)
    assert (len(page["items"]), page["next"]) == (2, None)
    assert call("post", "datasets", {**sent, "name": "No Name"}, 422)["detail"].startswith("name: ")
    assert call("get", "datasets/fixes/2", status=404)["detail"] == "there is no dataset fixes@2"


def test_the_ladder_is_asked_and_remembered(room: Room, call: Callable[..., Any]) -> None:
    said = call("post", "recommendations", {"version": str(room.base), "task_set": str(room.task_set)})
    assert {rung["fix"] for rung in said["ladder"]} >= {"prompt", "sft", "rlvr"}
    assert said["eval_run"] == room.baseline.pk
    assert call("get", "recommendations")["items"][0]["id"] == said["id"]


def test_other_projects_and_weaker_keys_get_nothing(room: Room, client: Client, key: Keys) -> None:
    run = room.launch()
    elsewhere = key("read", "train", by=room.cast.stranger, project=room.cast.elsewhere)
    reading = key("read")
    assert client.get(f"/api/v1/training-runs/{run.pk}", headers=elsewhere).status_code == 404
    assert client.get("/api/v1/training-runs", headers=elsewhere).json()["items"] == []
    for path in ("training-runs", f"training-runs/{run.pk}/cancel", "datasets", "recommendations"):
        sent = client.post(f"/api/v1/{path}", body(room), content_type="application/json", headers=reading)
        assert sent.status_code == 403
    assert client.get("/api/v1/training-runs").status_code == 401


@pytest.mark.parametrize(
    ("path", "inside", "others"),
    [
        ("training-runs", (), set()),
        ("training-runs/forecast", (), set()),
        ("training-sweeps", (), set()),
        ("training-pipelines", ("stages",), {"prompt"}),
        ("token-previews", (), {""}),
    ],
)
def test_the_description_has_a_request_for_each_algorithm(path: str, inside: tuple[str, ...], others: set[str]) -> None:
    """Its discriminator leads from the algorithm to its own settings."""
    described = api.get_openapi_schema()
    schemas = described["components"]["schemas"]
    asked = described["paths"][f"/api/v1/{path}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    for name in inside:
        asked = schemas[asked["$ref"].rpartition("/")[2]]["properties"][name]["items"]
    assert asked["discriminator"]["propertyName"] == "algorithm"
    refs = asked["discriminator"]["mapping"]
    assert refs.keys() == {*recipes.ALGORITHMS, *others}
    for algorithm in recipes.ALGORITHMS:
        properties = schemas[refs[algorithm].rpartition("/")[2]]["properties"]
        assert properties["algorithm"]["const"] == algorithm
        assert properties["settings"]["properties"].keys() == recipes.defaults(algorithm).keys()


def test_tuning_is_described_by_its_mode_and_refused_where_a_field_is_of_another(
    room: Room, call: Callable[..., Any]
) -> None:
    schemas = api.get_openapi_schema()["components"]["schemas"]
    for name, of in (("Launch_sft", "tuning"), ("RunOut", "tuning"), ("PipelineStageOut", "tuning")):
        described = schemas[name]["properties"][of]
        union = next((each for each in described.get("anyOf", []) if "discriminator" in each), described)
        assert union["discriminator"]["mapping"].keys() == {"full", "lora", "qlora"}
    assert schemas["AdapterTuning"]["properties"]["rank"]["default"] == 8
    for tuning in ({"mode": "full", "rank": 8}, {"mode": "whole"}, {"mode": "lora", "rank": "8"}, {"rank": 8}):
        (wrong,) = call("post", "training-runs", body(room, tuning=tuning), 422)["detail"]
        assert "tuning" in wrong["loc"]
    made = call("post", "training-runs", body(room, tuning={"mode": "lora", "rank": 4}), 201)
    assert made["tuning"] == {"mode": "lora", "rank": 4, "alpha": 16}


def test_an_unknown_algorithm_and_a_foreign_setting_are_named(room: Room, call: Callable[..., Any]) -> None:
    (wrong,) = call("post", "training-runs", body(room, algorithm="magic"), 422)["detail"]
    assert "'sft', 'dpo'" in wrong["msg"]
    foreign = call("post", "training-runs", body(room, settings={"beta": 0.1}), 422)
    assert foreign["detail"].startswith("settings.beta: does not apply to SFT")
