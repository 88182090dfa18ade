"""The forecast at launch: of the model's files, of counted or estimated tokens, beside the machine's memory."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core import recipes
from flywheel.core.recipes.memory_forecast import Shapes
from flywheel.edge.jobs import State
from flywheel.training.launch import launch_estimate, memory_estimate, preview_jobs
from flywheel.training.launch.memory_estimate import Memory, expected_memory
from flywheel.training.models import TokenPreview, TrainingRun
from tests.pages import page_of
from tests.training.conftest import NOON, Room

pytestmark = pytest.mark.django_db


def memory_of(room: Room, run: TrainingRun, **changed: Any) -> Memory:
    settings = {**run.settings, **changed}
    found, problem = expected_memory(
        base=room.base,
        algorithm=run.algorithm,
        settings=settings,
        tuning=run.tuning,
        dataset=run.dataset,
        task_set=room.task_set,
    )
    assert found is not None, problem
    return found


def test_a_run_keeps_its_forecast(weighty: Room) -> None:
    run = weighty.launch()
    kept = run.forecast
    assert kept["total"] == sum(part["bytes"] for part in kept["parts"])
    assert kept["parts"][0]["bytes"] == max(part["bytes"] for part in kept["parts"])
    assert (kept["counted"], kept["device"], kept["memory"], kept["step_seconds"]) == (False, "cpu", None, None)


def test_a_model_that_cannot_be_read_is_launched_without_a_forecast(room: Room) -> None:
    run = room.launch()
    assert run.forecast == {}
    about = {"settings": run.settings, "tuning": run.tuning, "dataset": run.dataset, "task_set": room.task_set}
    assert expected_memory(base=room.base, algorithm="sft", **about) == (None, "its files have no config.json")


def test_a_mixture_of_experts_is_launched_without_a_forecast(weighty: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Shapes.of
    monkeypatch.setattr(Shapes, "of", lambda config, tensors: of({**config, "num_experts": 8}, tensors))
    run = weighty.launch()
    about = {"settings": run.settings, "tuning": run.tuning, "dataset": run.dataset, "task_set": weighty.task_set}
    found, why = expected_memory(base=weighty.base, algorithm="sft", **about)
    assert (found, "is a mixture of experts" in why) == (None, True)


def test_a_teacher_takes_no_memory_where_vllm_has_it(weighty: Room) -> None:
    run, settings = weighty.launch(), recipes.defaults("distillation")

    def parts(**changed: Any) -> Mapping[str, int]:
        found, problem = expected_memory(
            base=weighty.base, algorithm="distillation", settings=settings | changed, tuning=run.tuning,
            dataset=run.dataset, task_set=weighty.task_set, teacher=weighty.base,
        )  # fmt: skip
        assert found is not None, problem
        return found.forecast.parts

    assert parts()["teacher"] > 0
    assert "teacher" not in parts(teacher_from="vllm")


def test_tokens_are_those_of_the_preview_where_there_is_one(weighty: Room) -> None:
    run = weighty.launch()
    assert memory_of(weighty, run).preview is None
    made, _ = preview_jobs.preview(
        base=weighty.base,
        dataset=run.dataset,
        actor=Actor(weighty.cast.trainer),
        task_set=weighty.task_set,
        algorithm="sft",
    )
    TokenPreview.objects.filter(pk=made.pk).update(state=State.SUCCEEDED, result={"median": 50, "longest": 77})
    found = memory_of(weighty, run)
    assert (found.preview, found.lengths.typical, found.lengths.longest) == (made, 50, 77)


def test_tools_count_only_where_the_template_writes_them(weighty: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    run = weighty.launch()
    weighty.base.tools = [{"type": "function", "function": {"name": "look_up", "description": "x" * 3000}}]
    without = memory_of(weighty, run).lengths.typical
    monkeypatch.setattr(memory_estimate, "tells_of_tools", lambda _: True)
    assert memory_of(weighty, run).lengths.typical >= without + 1000


def test_a_run_that_the_machine_has_no_room_for_is_told_with_what_fits(
    weighty: Room, sign_in: Callable[[User], Client]
) -> None:
    run = weighty.launch()
    TrainingRun.objects.filter(pk=run.pk).update(machine={"kind": "cpu", "name": "CPU", "memory": 700 * 2**20})
    found = memory_of(weighty, run, batch_size=256)
    assert found.is_too_large
    assert found.proposal is not None
    assert found.proposal.total < found.machine["memory"]
    assert not memory_of(weighty, run, batch_size=256, **found.proposal.settings).is_too_large
    fields = {"task_set": str(weighty.task_set), "algorithm": "sft", "set.batch_size": "256", "set.max_length": "8"}
    page = sign_in(weighty.cast.trainer).get(reverse("training:launch", args=["acme"]), fields)
    text = page_of(page)
    assert "Too large for the machine." in text
    assert "set.micro_batch_size" in json.loads(page.context["fitting"])
    assert 'id="use-max_length"' in text, "a length is proposed, too, and taken only by a click"
    assert page.context["form"].settings_now["max_length"] == 8


def test_time_of_another_size_is_estimated_by_arithmetic_and_called_rough(weighty: Room) -> None:
    run = weighty.launch()
    weighty.measured(run, 21, loss=float)
    TrainingRun.objects.filter(pk=run.pk).update(
        state=State.SUCCEEDED, fence=1, started_at=NOON, finished_at=NOON + timedelta(seconds=30)
    )
    larger = {**run.settings, "batch_size": 4 * run.settings["batch_size"]}
    assert launch_estimate.expected_duration(weighty.base, larger, "sft") is None
    operations = memory_of(weighty, run, **larger).forecast.operations
    duration = launch_estimate.expected_duration(weighty.base, larger, "sft", operations)
    assert duration is not None
    assert (duration.is_rough, duration.step) == (True, timedelta(seconds=4))
    assert launch_estimate.expected_duration(weighty.base, larger, "grpo", operations) is None, "it writes, too"
