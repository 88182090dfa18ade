"""Demonstrations that are replayed beside attempts, and weights of environments over a run: chosen, kept, refused."""

import io
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.edge.refusals import Refused
from flywheel.environments.models import Split
from flywheel.environments.task_sets import leaks
from flywheel.training.datasets import contamination_checks
from flywheel.training.launch import leak_refusals
from flywheel.training.models import Dataset, TrainingRun
from flywheel.training.pages.launch_form import as_data
from tests.pages import page_of
from tests.training.conftest import Room, right, uploaded
from tests.training.datasets.test_contamination_checks_pages import SignIn
from tests.training.datasets.test_dataset_mix import mixed, of, other_set
from workers.jobs.training import training_runs

pytestmark = pytest.mark.django_db
FADING = {"mail": [1, 0.25], "calendar": [0, 1]}


def refused(room: Room, **fields: Any) -> str:
    with pytest.raises(Refused) as told:
        room.launch(**{"algorithm": "grpo", **fields})
    assert not TrainingRun.objects.exists()
    return str(told.value)


def both(room: Room) -> Dataset:
    calendar = other_set(room)
    room.evaluated(task_set=calendar)
    room.build.overridden(room.base, calendar)
    return mixed(room, (of(room, room.task_set), 1), (of(room, calendar), 1))


def test_replayed_rows_are_frozen_with_the_run_and_count_as_learnt(room: Room) -> None:
    shown = of(room, room.task_set, "sft")
    run, plain = room.launch(algorithm="grpo", replay=shown), room.launch(algorithm="grpo")
    assert run.replay == shown
    assert run.spec_digest != plain.spec_digest
    run.produced = room.build.version(weights=room.base.weights, parent=room.base)
    run.save()
    assert contamination_checks.datasets_of(run.produced) == [shown, run.dataset]
    assert {check.dataset for check in leaks.trained_on([run.produced], room.task_set)[run.produced.pk].checks} == {
        shown,
        run.dataset,
    }


def test_replayed_rows_of_held_out_tasks_are_refused_at_launch_and_by_the_worker(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = room.task_set.tasks.filter(split=Split.HELD_OUT).earliest("number")
    said = [{"role": "user", "content": "Quite another"}, {"role": "assistant", "content": right(task)}]
    leaking = uploaded(room, io.BytesIO(json.dumps({"messages": said}).encode()))
    leaking.contamination_checks.all().delete()
    room.task_set.tasks.filter(pk=task.pk).update(prompt="Quite another")
    assert refused(room, replay=leaking).startswith("replay: 1 of 8 held-out tasks")
    monkeypatch.setattr(contamination_checks, "AT_ONCE", 1)
    leaking.contamination_checks.all().delete()
    run = room.launch(algorithm="grpo", replay=leaking)
    assert "1 of 8 held-out tasks" in leak_refusals.refusal(run)


def test_what_cannot_be_replayed_is_refused_with_its_reason(room: Room) -> None:
    shown, tasks = of(room, room.task_set, "sft"), of(room, room.task_set)
    imitates = f"replay: SFT imitates rows anyway; mix {shown} with its data instead"
    assert refused(room, algorithm="sft", replay=shown) == imitates
    assert refused(room, replay=tasks) == f"replay: {tasks} holds tasks to practise; what is replayed is demonstrations"
    elsewhere = of(room, other_set(room), "sft")
    assert "which the run does not practise in" in refused(room, replay=elsewhere)
    assert "one is a mix of environments" in refused(room, replay=mixed(room, (shown, 1), (elsewhere, 1)))


def test_environments_have_weights_over_the_run_of_a_mix(room: Room) -> None:
    run = room.launch(algorithm="grpo", dataset=both(room), environment_weights=FADING)
    assert run.environment_weights == {"mail": [1.0, 0.25], "calendar": [0.0, 1.0]}
    again = room.launch(algorithm="grpo", dataset=run.dataset)
    assert again.spec_digest != run.spec_digest


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"mail": [0, 1], "calendar": [0, 1]}, "environment_weights: they sum to 0 at the first step"),
        ({"mail": [1, 0], "calendar": [1, 0]}, "environment_weights: they sum to 0 at the last step"),
        ({"mail": [1, 1]}, "environment_weights.calendar: has no weight"),
        ({**FADING, "tables": [1, 1]}, "environment_weights.tables: is no environment of the run"),
        ({"mail": [1], "calendar": [0, 1]}, "environment_weights.mail: [1] is no pair of weights"),
        ({"mail": [-1, 1], "calendar": [1, 1]}, "environment_weights.mail: [-1, 1] is no pair of weights"),
        ({"mail": [float("nan"), 1], "calendar": [1, 1]}, "environment_weights.mail: [nan, 1] is no pair"),
    ],
)
def test_weights_that_say_nothing_are_refused_at_their_field(room: Room, weights: dict[str, Any], problem: str) -> None:
    assert refused(room, dataset=both(room), environment_weights=weights).startswith(problem)


def test_a_single_environment_has_no_weights(room: Room) -> None:
    assert "is no mix of tasks to practise" in refused(room, environment_weights={"mail": [1, 1]})


def test_by_form_and_by_api(room: Room, sign_in: SignIn, client: Client, key: Any) -> None:
    browser, mix, shown = sign_in(room.cast.trainer), both(room), of(room, room.task_set, "sft")
    address, chosen = reverse("training:launch", args=["acme"]), {"task_set": str(room.task_set), "reason": "x"}
    chosen |= {"algorithm": "grpo", "base": str(room.base)}
    assert "Weights of the environments" not in page_of(browser.get(address, chosen))
    form = browser.post(address, {**chosen, "dataset": str(mix), "environment_weights": "mail = 0, 0\ncalendar = 0, 1"})
    assert "they sum to 0 at the first step" in page_of(form)
    browser.post(address, {**chosen, "dataset": str(mix), "environment_weights": "mail = 1, 0.25\ncalendar = 0, 1"})
    weighed = TrainingRun.objects.get()
    assert "mail 1 → 0.25, calendar 0 → 1" in page_of(browser.get(reverse("training:run", args=["acme", weighed.pk])))
    assert as_data(weighed)["environment_weights"] == "mail = 1, 0.25\ncalendar = 0, 1"
    browser.post(address, {**chosen, "replay": str(shown)})
    replaying = TrainingRun.objects.latest("pk")
    assert replaying.replay == shown
    assert "Replayed" in page_of(browser.get(reverse("training:run", args=["acme", replaying.pk])))

    body = {"base": str(room.base), "task_set": str(room.task_set), "algorithm": "grpo", "override_reason": "x"}
    more: dict[str, Any] = {"dataset": str(mix), "environment_weights": FADING}
    made = client.post(
        "/api/v1/training-runs", json.dumps(body | more), content_type="application/json", headers=key("train")
    )
    assert made.json()["environment_weights"] == FADING
    assert training_runs.spec_of(TrainingRun.objects.latest("pk"), {})["environment_weights"] == FADING
