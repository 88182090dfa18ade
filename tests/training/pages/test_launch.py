"""The launch page says what the set can show beside this baseline."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.evals.models import EvalRun
from flywheel.training.pages.launch_form import LaunchForm
from tests.pages import page_of
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


def test_what_the_set_can_show_is_told_before_launch(room: Room, sign_in: Callable[[User], Client]) -> None:
    page = sign_in(room.cast.trainer).get(reverse("training:launch", args=["acme"]), {"task_set": str(room.task_set)})
    text = page_of(page)
    assert "What this set can" in text
    assert "4 attempts of the candidate at each task and 2 of the baseline, 50% success" in text
    assert f"(as in {room.baseline} of {room.base})" in text


def test_settings_are_folded_away_by_what_they_are_about_and_a_changed_one_is_open(room: Room) -> None:
    asked = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "grpo"}
    form = LaunchForm(room.cast.project, asked)
    names = [field.name for group in form.groups for field in group["fields"]] + [field.name for field in form.shown]
    assert sorted(names) == sorted(f"set.{name}" for name in form.defaults)
    assert not form.others_open
    form = LaunchForm(room.cast.project, asked | {"settings_of": "grpo", "set.top_p": "0.9"})
    assert [group["label"] for group in form.groups if group["is_open"]] == ["Sampling and curriculum"]
    assert form.others_open


def test_a_reward_model_is_launched_without_a_baseline_and_offered_nothing_of_a_policys(
    weighty: Room, sign_in: Callable[[User], Client]
) -> None:
    asked = {"base": str(weighty.base), "task_set": str(weighty.task_set), "algorithm": "sft"}
    EvalRun.objects.all().delete()
    client = sign_in(weighty.cast.trainer)
    policy, judge = (
        page_of(client.get(reverse("training:launch", args=["acme"]), asked | {"algorithm": name}))
        for name in ("sft", "reward_model")
    )
    for words in ("No baseline yet.", "What this set can", "QLoRA"):
        assert words in policy
        assert words not in judge
