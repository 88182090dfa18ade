"""What a run took beside its forecast, on its page and for programs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.training.models import Dataset, TrainingRun
from flywheel.training.runs.run_forecasts import usage
from tests.pages import page_of
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def test_forecast_and_measured_stand_beside_each_other(weighty: Room, sign_in: Callable[[User], Client]) -> None:
    run = weighty.launch()
    assert usage(run)["peak"] is None
    weighty.measured(run, 5, peak_memory=lambda step: step * 10**9)
    run.forecast |= {"step_seconds": 2.0}
    run.save(update_fields=["forecast"])
    found = usage(run)
    assert (found["peak"], found["step_ratio"]) == (5 * 10**9, 2.0)
    assert found["peak_ratio"] == run.forecast["total"] / (5 * 10**9)
    text = page_of(sign_in(weighty.cast.viewer).get(reverse("training:run", args=["acme", run.pk])))
    assert "Forecast and measured" in text
    assert "5.0" in text


def test_a_run_without_a_forecast_shows_what_was_measured(room: Room) -> None:
    run = room.launch()
    room.measured(run, 3, peak_memory=lambda _: 10**9)
    found = usage(run)
    assert (found["peak"], found["peak_ratio"], found["step_ratio"]) == (10**9, None, None)
    assert found["step"] is not None
    run.fence = 2
    assert usage(run)["step"] is None, "a pause would count"


def test_programs_forecast_without_launching(weighty: Room, client: Client, key: Callable[..., dict[str, str]]) -> None:
    headers = key("read", "train")
    asked = {"base": str(weighty.base), "task_set": str(weighty.task_set), "algorithm": "sft"}
    address = "/api/v1/training-runs"

    def forecast(**more: object) -> dict[str, Any]:
        answer = client.post(f"{address}/forecast", {**asked, **more}, "application/json", headers=headers)
        assert answer.status_code == 200, answer.content
        return dict(answer.json())

    found = forecast()
    assert (found["fits"], found["proposal"], found["problem"]) == (None, None, "")
    assert not TrainingRun.objects.exists()
    assert not Dataset.objects.exists()
    run = weighty.launch()
    TrainingRun.objects.update(machine={"kind": "cpu", "name": "CPU", "memory": 700 * 2**20})
    assert found["lengths"] == []
    (length,) = forecast(settings={"max_length": 8})["lengths"]
    assert (length["setting"], length["value"] % 32) == ("max_length", 0)
    assert length["why"].endswith("tokens; 8 cut it.")
    found = forecast(settings={"batch_size": 256})
    assert found["fits"] is False
    assert found["proposal"]
    kept = client.get(f"{address}/{run.pk}/forecast", headers=headers).json()
    assert kept["forecast"]["total"] == run.forecast["total"]
    assert kept["peak_memory"] is None
