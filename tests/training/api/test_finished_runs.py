"""Launched runs by API: compared, repeated, and their files."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from flywheel.edge.jobs import State
from flywheel.training.models import TrainingRun
from tests.training.api.test_runs import Keys, call
from tests.training.conftest import NOON, Room
from tests.training.runs.test_run_files import spec_of

__all__ = ["call"]
pytestmark = pytest.mark.django_db
Call = Callable[..., Any]


def test_runs_are_compared(room: Room, call: Call) -> None:
    runs = [room.launch(), room.launch(seed=2)]
    for run, best in zip(runs, (0.5, 0.75), strict=True):
        room.asked(run, {0: 0.25, 20: best})
        room.measured(run, 20, step_time_s=lambda _: 0.5, tokens=lambda step: 10.0 * step)
    found = call("get", "training-runs/compare", run=[run.pk for run in runs])
    assert found["measures"] == [{"task_set": str(room.task_set), "tasks": 8, "success": 0.5}]
    assert found["differing"] == {"seed": [1, 2]}
    assert found["equal"]["steps"] == [runs[0].settings["steps"]] * 2
    first = found["runs"][0]
    assert (first["run"], first["measure"], first["tokens"]) == (runs[0].pk, 0, 200)
    assert first["evaluations"] == [[0, 0.25], [20, 0.5]]
    reached = {"step": 20, "seconds": 12.0, "tokens": 200, "usd": None}
    assert [each["reached"] for each in found["runs"]] == [reached] * 2
    assert first["baseline"]["n"] == 8
    assert (first["difference"], first["verdict"], first["wall_seconds"]) == (None, None, None)
    chosen = call("get", "training-runs/compare", run=[run.pk for run in runs], success=0.7)
    assert [each["reached"] is None for each in chosen["runs"]] == [True, False]


def test_a_comparison_takes_up_to_sixteen_runs_of_the_project(room: Room, call: Call) -> None:
    run = room.launch()
    assert call("get", "training-runs/compare")["runs"] == []
    assert [each["run"] for each in call("get", "training-runs/compare", run=[run.pk] * 2)["runs"]] == [run.pk]
    call("get", "training-runs/compare", status=422, run=[run.pk] * 17)
    call("get", "training-runs/compare", status=422, run=[run.pk, run.pk], success=2)
    missing = call("get", "training-runs/compare", status=404, run=[run.pk, 0])
    assert missing["detail"] == "there is no training run 0"


def test_a_run_is_repeated_once_for_its_key(room: Room, call: Call) -> None:
    run = room.launch()
    path, sent = f"training-runs/{run.pk}/repeat", {"key": str(uuid.uuid4())}
    assert call("post", path, sent, 409)["detail"] == f"{run} is queued; repeat it when it has finished"
    TrainingRun.objects.filter(pk=run.pk).update(state=State.FAILED)
    again = call("post", path, sent, 201)
    assert call("post", path, sent)["id"] == again["id"]
    assert again["spec_digest"] == run.spec_digest
    assert call("post", path, {"seed": 9}, 201)["seed"] == 9
    assert call("post", path, {"seed": -1}, 422)["detail"].startswith("seed: ")
    repeats = call("get", f"training-runs/{run.pk}/repeats")
    assert repeats == [{"run": again["id"], "is_earlier": False, "has_same_weights": None}]


def test_files_are_listed_and_downloaded(
    room: Room, call: Call, client: Client, key: Keys, settings: Any, tmp_path: Path
) -> None:
    settings.RUNS_DIR = tmp_path
    run = room.launch()
    assert call("get", f"training-runs/{run.pk}/files") == []
    TrainingRun.objects.filter(pk=run.pk).update(state=State.FAILED, started_at=NOON)
    run.directory.mkdir()
    content = spec_of(run)
    (run.directory / "spec.json").write_text(content)
    (listed,) = call("get", f"training-runs/{run.pk}/files")
    assert (listed["name"], listed["size"]) == ("spec.json", len(content))
    address = f"/api/v1/training-runs/{run.pk}/files/"
    response = client.get(f"{address}spec.json", headers=key("read"))
    assert b"".join(response) == content.encode()
    assert response["ETag"] == f'"{listed["sha256"]}"'
    known = {**key("read"), "If-None-Match": response["ETag"]}
    assert client.get(f"{address}spec.json", headers=known).status_code == 304
    assert call("get", f"training-runs/{run.pk}/files/../../secret", status=404)
    elsewhere = key("read", by=room.cast.stranger, project=room.cast.elsewhere)
    assert client.get(f"{address}spec.json", headers=elsewhere).status_code == 404
    assert client.post(f"/api/v1/training-runs/{run.pk}/repeat", headers=key("read")).status_code == 403
