"""Budgets of training runs: what counts, what is spent, and going on with more."""

import uuid
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.accounts.project_settings.model_prices import set_hour
from flywheel.edge.jobs import StaleState, State
from flywheel.edge.refusals import Refused
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.training.launch import run_budgets
from flywheel.training.models import TrainingRun
from flywheel.training.runs.run_repeats import repeat
from tests.pages import page_of
from tests.training.api.test_runs import Keys, call
from tests.training.conftest import Room
from tests.training.pages.test_runs import HERE, SignIn, form

__all__ = ["Keys", "call"]
pytestmark = pytest.mark.django_db


def stopped(room: Room, **budget: float) -> TrainingRun:
    """A run that has trained 4 seconds and 80 tokens, and stopped at its budget."""
    run = room.launch(budget=budget)
    room.measured(run, 8, step_time_s=lambda _: 0.5, tokens=lambda step: 10.0 * step)
    fields = {"error": run_budgets.spent(run), "error_kind": run_budgets.SPENT, "done": 8, "checkpoint_step": 8}
    TrainingRun.objects.filter(pk=run.pk).update(state=State.CANCELLED, **fields)
    run.refresh_from_db()
    return run


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({}, ""),
        ({"minutes": 0.067}, ""),
        ({"minutes": 0.066}, "the budget of 0.066 minutes is spent"),
        ({"device_hours": 0.00112}, ""),
        ({"device_hours": 0.00111}, "the budget of 0.00111 device-hours is spent"),
        ({"usd": 0.02}, ""),
        ({"usd": 0.0099}, "the budget of $0.0099 is spent: $0.0100"),
        ({"tokens": 81}, ""),
        ({"tokens": 80}, "the budget of 80 tokens is spent"),
    ],
)
def test_minutes_are_of_training_and_tokens_of_the_last_step(room: Room, budget: dict[str, float], said: str) -> None:
    set_hour(project=room.cast.project, actor=Actor(room.cast.admin), usd_per_hour=9.0)
    assert run_budgets.spent(stopped(room, **budget)) == said


def test_each_process_takes_its_hours_at_the_price_of_the_launch(room: Room) -> None:
    set_hour(project=room.cast.project, actor=Actor(room.cast.admin), usd_per_hour=9.0)
    run = stopped(room)
    set_hour(project=room.cast.project, actor=Actor(room.cast.admin), usd_per_hour=90.0)
    assert [run.device_hours(), run.usd()] == pytest.approx([4 / 3600, 0.01])
    run.settings["processes"] = 2
    assert [run.device_hours(until=4), run.usd(until=4)] == pytest.approx([4 / 3600, 0.01])


def test_without_a_price_the_cost_is_unknown_and_not_nothing(room: Room) -> None:
    run = stopped(room)
    assert run.usd() is None
    with pytest.raises(Refused, match="a device-hour has no price under Settings"):
        run_budgets.resume(run, Actor(room.cast.trainer), {"usd": 5})
    set_hour(project=room.cast.project, actor=Actor(room.cast.admin), usd_per_hour=9.0)
    run_budgets.resume(run, Actor(room.cast.trainer), {"usd": 5})
    assert (run.budget, run.device_hour) == ({"usd": 5.0}, 9.0)


def test_judges_of_a_recipe_are_paid_after_a_resume_too(room: Room) -> None:
    project = room.cast.project
    set_upstream(project=project, actor=Actor(room.cast.admin), base_url="http://127.0.0.1:9/v1")
    judge = {
        "type": "judge",
        "name": "right",
        "criteria": "It books.",
        "endpoint": "upstream",
        "model": "m",
        "weight": 1,
    }
    run = stopped(room)
    run.reward_recipe, _ = reward_recipe(project=project, name="judged", parts=[judge], actor=Actor(room.cast.builder))
    run.save()
    with pytest.raises(Refused, match=r"the judge right asks the upstream's model 'm', whose price nobody named"):
        run_budgets.resume(run, Actor(room.cast.trainer), {"usd": 5})


def test_a_trainer_that_counts_no_tokens_spends_none(room: Room) -> None:
    run = room.launch(budget={"tokens": 1})
    assert run_budgets.spent(run) == ""
    room.measured(run, 8, loss=float)
    assert run_budgets.spent(run) == ""


@pytest.mark.parametrize(
    ("budget", "field"), [({"minutes": 0}, "minutes"), ({"tokens": 1.5}, "tokens"), ({"usd": 1}, "usd")]
)
def test_a_budget_that_cannot_be_is_refused(room: Room, budget: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        room.launch(budget=budget)
    assert refused.value.field == f"budget.{field}"


def test_a_spent_run_goes_on_with_more_or_without_a_limit(room: Room) -> None:
    run, actor = stopped(room, tokens=80), Actor(room.cast.trainer)
    for budget in (None, {"tokens": 70}):
        with pytest.raises(Refused, match="tokens is spent; resume it with a greater budget, or with none"):
            run_budgets.resume(run, actor, budget)
        run.refresh_from_db()
        assert (run.state, run.budget) == (State.CANCELLED, {"tokens": 80})
    run_budgets.resume(run, actor, {"tokens": 200})
    assert (run.state, run.error_kind, run.budget) == (State.QUEUED, "", {"tokens": 200})
    assert AuditEntry.objects.get(action="training.resume").data["budget"] == {"tokens": 200}
    with pytest.raises(StaleState):
        run_budgets.resume(run, actor)


def test_a_budget_is_no_part_of_the_spec_and_is_repeated(room: Room) -> None:
    run = stopped(room, minutes=0.01)
    assert room.launch().spec_digest == run.spec_digest
    assert repeat(run, key=uuid.uuid4(), actor=Actor(room.cast.trainer))[0].budget == {"minutes": 0.01}


def test_a_person_sets_a_budget_and_raises_it(room: Room, sign_in: SignIn) -> None:
    trainer = sign_in(room.cast.trainer)
    assert trainer.post(f"{HERE}launch/", form(room, minutes="2.5", tokens="1000")).status_code == 302
    assert TrainingRun.objects.get().budget == {"minutes": 2.5, "tokens": 1000}
    wrong = trainer.post(f"{HERE}launch/", form(room, minutes="soon"))
    assert wrong.status_code == 422
    assert "is not a number above 0" in page_of(wrong)
    run = stopped(room, tokens=80)
    page = page_of(trainer.get(f"{HERE}runs/{run.pk}/"))
    assert "Stopped at step 8." in page
    assert "The budget of 80 tokens is spent." in page
    page = page_of(trainer.post(f"{HERE}runs/{run.pk}/resume/", {"tokens": "80", "minutes": ""}, follow=True))
    assert "Nothing was resumed: budget: the budget of 80 tokens is spent" in page
    trainer.post(f"{HERE}runs/{run.pk}/resume/", {"tokens": "", "minutes": "3"})
    run.refresh_from_db()
    assert (run.state, run.budget) == (State.QUEUED, {"minutes": 3.0})


def test_a_program_raises_a_budget(room: Room, call: Any) -> None:
    run = stopped(room, tokens=80)
    assert call("post", f"training-runs/{run.pk}/resume", status=422)["detail"].startswith("budget: ")
    assert call("post", f"training-runs/{run.pk}/resume", {"budget": {"tokens": 90}})["budget"] == {"tokens": 90}
