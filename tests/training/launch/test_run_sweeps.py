"""Sweeps: a run for each combination, all of them or none, and what is wrong is named with the combination."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.edge.refusals import Refused
from flywheel.training.launch.run_control import LaunchRequest
from flywheel.training.launch.run_sweeps import launch_sweep
from flywheel.training.models import TrainingRun
from tests.pages import page_of
from tests.training.api.test_runs import body, call
from tests.training.conftest import Room
from tests.training.pages.test_runs import HERE, SignIn, form

__all__ = ["call"]
pytestmark = pytest.mark.django_db
GRID: dict[str, list[Any]] = {"learning_rate": [1e-4, 3e-4], "rank": [4, 8], "seed": [1, 2]}


def request(room: Room, **fields: Any) -> LaunchRequest:
    defaults = {"key": uuid.uuid4(), "base": room.base, "algorithm": "sft", "task_set": room.task_set}
    return LaunchRequest(**{**defaults, "override_reason": "a test", "tuning": {"mode": "lora"}, **fields})


def swept(room: Room, grid: dict[str, list[Any]], **fields: Any) -> list[TrainingRun]:
    return launch_sweep(request(room, **fields), grid, Actor(room.cast.trainer))[0]


def test_every_combination_is_a_run_like_any_other(room: Room) -> None:
    runs = swept(room, GRID, settings={"steps": 9})
    found = [(run.settings["learning_rate"], run.tuning["rank"], run.seed) for run in runs]
    assert found == [(rate, rank, seed) for rate in (1e-4, 3e-4) for rank in (4, 8) for seed in (1, 2)]
    assert {(run.state, run.settings["steps"], run.tuning["alpha"]) for run in runs} == {(State.QUEUED, 9, 16)}
    assert len({run.dataset_id for run in runs}) == len({run.sweep for run in runs}) == 1
    alone = room.launch(settings={"steps": 9, "learning_rate": 1e-4}, tuning={"mode": "lora", "rank": 4})
    assert runs[0].spec_digest == alone.spec_digest


def test_a_key_sweeps_once(room: Room) -> None:
    wanted, actor = request(room), Actor(room.cast.trainer)
    runs, is_new = launch_sweep(wanted, {"seed": [1, 2]}, actor)
    assert is_new
    assert launch_sweep(wanted, {"seed": [1, 2]}, actor) == (runs, False)
    assert TrainingRun.objects.count() == 2


@pytest.mark.parametrize(
    ("grid", "field", "problem"),
    [
        ({"learning_rate": [1e-4, 5]}, "grid.learning_rate", r"5 is out of range; .* \(learning_rate = 5\)"),
        ({"seed": [1, -1]}, "grid.seed", r"-1 is not a whole number from 0 to .* \(seed = -1\)"),
        ({"seed": ["one"]}, "grid.seed", "'one' is not a whole number"),
        ({"rank": [4, 0]}, "grid.rank", r"0 is not a whole number from 1 to 512 \(rank = 0\)"),
        ({"batch_size": [4, 6], "micro_batch_size": [2, 4]}, "grid.micro_batch_size", r"\(batch_size = 6, micro_ba"),
        ({"verbosity": [1]}, "grid.verbosity", "is no setting of SFT"),
        ({"learning_rate": []}, "grid.learning_rate", "has no values"),
        ({"warmup_steps": [0, 1, 0]}, "grid.warmup_steps", "0 is given twice"),
        ({"seed": [1, 2, 3], "steps": [1, 2, 3, 4, 5, 6]}, "grid", "makes 18 runs; at most 16"),
    ],
)
def test_one_wrong_combination_makes_no_run(room: Room, grid: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem) as refused:
        swept(room, grid)
    assert refused.value.field == field
    assert not TrainingRun.objects.exists()


def test_a_program_sweeps_and_cancels_the_rest(room: Room, call: Callable[..., Any]) -> None:
    sent = body(room, key=str(uuid.uuid4()), grid={"learning_rate": [1e-4, 3e-4]})
    made = call("post", "training-sweeps", sent, 201)
    assert [run["settings"]["learning_rate"] for run in made["runs"]] == [1e-4, 3e-4]
    assert call("post", "training-sweeps", sent) == made
    assert call("get", f"training-sweeps/{sent['key']}") == made
    TrainingRun.objects.filter(pk=made["runs"][0]["id"]).update(state=State.SUCCEEDED)
    ended = call("post", f"training-sweeps/{sent['key']}/cancel")
    assert [run["state"] for run in ended["runs"]] == ["succeeded", "cancelled"]
    call("get", f"training-sweeps/{uuid.uuid4()}", status=404)
    wrong = call("post", "training-sweeps", body(room, grid={"steps": [0]}), 422)
    assert wrong["detail"].startswith("grid.steps: 0 is out of range")


def test_the_form_launches_a_sweep_and_compares_it(room: Room, sign_in: SignIn) -> None:
    trainer = sign_in(room.cast.trainer)
    lines = "learning_rate = 1e-4, 3e-4\nlr_schedule = linear, cosine\n\nseed = 3"
    response = trainer.post(f"{HERE}launch/", form(room, grid=lines))
    runs = list(TrainingRun.objects.order_by("pk"))
    assert [(run.settings["learning_rate"], run.settings["lr_schedule"], run.seed) for run in runs] == [
        (rate, schedule, 3) for rate in (1e-4, 3e-4) for schedule in ("linear", "cosine")
    ]
    assert response.headers["Location"] == f"{HERE}compare/?" + "&".join(f"run={run.pk}" for run in runs)
    assert "4 runs of a sweep" in page_of(trainer.get(f"{HERE}runs/{runs[0].pk}/"))
    for wrong, said in (("steps = 0", "steps: 0 is out of range"), ("steps", "is not of the form learning_rate =")):
        page = trainer.post(f"{HERE}launch/", form(room, grid=wrong))
        assert page.status_code == 422
        assert said in page_of(page)
