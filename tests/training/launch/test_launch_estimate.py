"""What a run will ask of judges and servers, and what it may pay them: told before, counted, limited."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import ModelPrice, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.core.verifiers import rubric
from flywheel.edge.refusals import Refused
from flywheel.environments.versions import environment_versions
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.training.launch import run_budgets
from flywheel.training.launch.launch_estimate import expected_questions, proposed_lengths
from tests.conftest import TOOLS
from tests.pages import page_of
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db

SETTINGS: dict[str, Any] = {"steps": 12, "batch_size": 8, "num_iterations": 2}
REPORT: dict[str, Any] = {
    "models": ["m"], "judged": 16, "remembered": 0, "canaries": 10, "requests": 26, "tokens_in": 2600,
    "tokens_out": 260, "cost_usd": 0.32, "void": "",
}  # fmt: skip


@pytest.fixture
def judged(room: Room) -> Room:
    """A room whose reward asks a judge, and whose baseline paid $0.32 for the judgement of its 16 attempts."""
    set_upstream(project=room.cast.project, actor=Actor(room.cast.admin), base_url="http://127.0.0.1:9/v1")
    version = room.task_set.environment_version
    part = {"type": "judge", "criteria": "It books.", "endpoint": "upstream", "model": "m"}
    environment_versions.environment_version(
        environment=version.environment,
        actor=Actor(room.cast.builder),
        config=version.config,
        verifier={"kind": "rubric", "parts": [part]},
    )
    room.task_set = room.build.task_set(train=6, held_out=8)
    room.baseline = room.evaluated()
    room.baseline.judges = {"judge": REPORT}
    room.baseline.save()
    room.build.overridden(room.base, room.task_set)
    return room


def test_judgements_are_forecast_with_what_the_baseline_paid(judged: Room) -> None:
    found = expected_questions("grpo", SETTINGS, [judged.task_set], judged.baseline)
    assert found is not None
    on_the_way = 8 * 7  # before the first step and after every second one
    assert (found.attempts, found.judgements) == (8 * 6 + on_the_way, 8 * 6 + on_the_way)
    assert found.usd == pytest.approx(0.02 * found.attempts)
    again = SETTINGS | {"dynamic_sampling": True, "max_resamples": 3}
    resampled = expected_questions("dapo", again, [judged.task_set], None)
    assert resampled is not None
    assert resampled.judgements == 8 * 6 * 4 + on_the_way
    sft = expected_questions("sft", {"steps": 12, "batch_size": 8}, [judged.task_set], None)
    assert sft is not None
    assert (sft.judgements, sft.usd) == (on_the_way, None), "a price that nobody knows is not 0"


def test_judges_of_a_recipe_are_forecast_for_validation_too_and_not_for_held_out_tasks(judged: Room) -> None:
    plain = judged.task_set.environment_version
    part = {"type": "judge", "name": "tone", "criteria": "It is kind.", "endpoint": "upstream", "model": "m"}
    recipe, _ = reward_recipe(
        project=judged.cast.project,
        name="kind",
        parts=[{"type": "environment"}, part],
        actor=Actor(judged.cast.builder),
    )
    settings = SETTINGS | {"validation_share": 0.5, "validation_every": 0, "validation_tasks": 2}
    alone = expected_questions("grpo", settings, [judged.task_set], None)
    found = expected_questions("grpo", settings, [judged.task_set], None, recipe)
    assert alone is not None
    assert found is not None
    assert found.judgements - alone.judgements == 8 * 6 + 2 * 7, "attempts, and two tasks at seven validations"
    assert rubric.judges(plain.verifier).keys() != rubric.judges(recipe.spec).keys()


def test_a_run_that_asks_nobody_forecasts_nothing(room: Room) -> None:
    assert expected_questions("grpo", SETTINGS, [room.task_set], room.baseline) is None
    assert room.launch(algorithm="grpo").outside_calls == {}


def test_a_server_that_does_not_begin_anew_is_told_of(room: Room) -> None:
    config = {"base_url": "http://tools:8000", "tools": TOOLS, "max_turns": 3}
    terms = Terms("tool_server")
    environment = environment_versions.environment(
        project=room.cast.project,
        name="served",
        actor=Actor(room.cast.builder),
        config=config,
        verifier={"kind": "tool_server"},
        terms=terms,
    )
    found = expected_questions("grpo", SETTINGS, [room.build.task_set(name="s", environment=environment)], None)
    assert found is not None
    assert (found.played_by, found.has_one_state, found.judgements) == (("server",), True, 0)


def test_page_and_run_tell_of_judgements_and_cost(judged: Room, sign_in: Callable[[User], Client]) -> None:
    chosen = {"task_set": str(judged.task_set), "base": str(judged.base), "algorithm": "grpo"}
    client = sign_in(judged.cast.trainer)
    text = page_of(client.get(reverse("training:launch", args=["acme"]), chosen))
    assert "judgements" in text
    assert "at the price of the baseline’s" in text
    run = judged.launch(algorithm="grpo", settings={"steps": 12})
    assert run.outside_calls["expected"]["judgements"] > 0
    run.outside_calls |= {"judges": {"judge": REPORT}, "simulator": {}, "questions": {"judge": 40, "unanswered": 2}}
    run.save()
    text = page_of(client.get(reverse("training:run", args=["acme", run.pk])))
    assert "$0.32 so far" in text
    assert "40 questions to judges" in text
    assert "2 had no answer" in text


def test_dollars_are_limited_where_prices_are_known(judged: Room) -> None:
    with pytest.raises(Refused, match="whose price nobody named") as refused:
        judged.launch(algorithm="grpo", budget={"usd": 1})
    assert refused.value.field == "budget.usd"
    ModelPrice.objects.create(project=judged.cast.project, model="m", price_in=1, price_out=2)
    run = judged.launch(algorithm="grpo", budget={"usd": 0.3})
    assert run_budgets.spent(run) == ""
    run.outside_calls["judges"] = {"judge": REPORT}
    assert run_budgets.spent(run) == "the budget of $0.3 is spent: $0.3200"
    run.outside_calls["judges"] = {"judge": REPORT | {"cost_usd": None}}
    assert "does not say how many dollars" in run_budgets.spent(run)


@pytest.mark.parametrize(
    ("algorithm", "limit", "tokens", "proposed"),
    [
        ("grpo", 96, 150, 160),
        ("grpo", 512, 40, 96),
        ("grpo", 96, 40, None),
        ("sft", 512, 40, None),
        ("sft", 96, 150, 160),
        ("grpo", 96, None, None),
    ],
)
def test_the_length_of_answers_is_proposed_from_those_of_the_baseline(
    room: Room, algorithm: str, limit: int, tokens: int | None, proposed: int | None
) -> None:
    room.baseline.results.update(tokens_out=tokens)
    settings = {"max_completion_length": limit}
    found = proposed_lengths(algorithm, settings, room.task_set, room.baseline, None)
    assert [(each.setting, each.value) for each in found] == ([("max_completion_length", proposed)] if proposed else [])
    assert all(str(tokens) in each.why for each in found)
