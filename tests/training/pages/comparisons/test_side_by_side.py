"""The page that compares runs: its charts, its tables, what its address may say."""

from typing import Any
from urllib.parse import urlencode

import pytest

from flywheel.accounts.models import User
from flywheel.edge.jobs import State
from flywheel.promotions.models import Candidate
from flywheel.training.models import Point, TrainingRun
from tests.pages import page_of
from tests.promotions.conftest import agent, candidate, evaluated
from tests.training.conftest import NOON, Room
from tests.training.pages.test_runs import HERE, SignIn

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db


def shown(sign_in: SignIn, user: User, *runs: TrainingRun, **query: Any) -> Any:
    address = f"{HERE}compare/?{urlencode({'run': [run.pk for run in runs], **query}, doseq=True)}"
    return sign_in(user).get(address)


def test_the_curves_of_like_runs_are_drawn_over_one_another(room: Room, sign_in: SignIn) -> None:
    runs = [room.launch(), room.launch(seed=2)]
    for run in runs:
        room.asked(run, {0: 0.25, 20: 0.5})
        room.measured(run, 20, loss=lambda step: 1 / step)
    page = shown(sign_in, room.cast.viewer, *runs)
    (chart,) = page.context["held_out"]
    assert [line["name"] for line in chart["series"]] == [f"{run} SFT" for run in runs]
    assert chart["baseline"] == 25.0
    assert chart["note"] == f"{room.task_set}, greedy, 8 tasks; one task is 12.5 points; dashed: step 0"
    (loss,) = page.context["curves"]
    assert (loss["title"], len(loss["series"])) == ("Loss", 2)
    assert "Not all are measured alike" not in page_of(page)


def test_validation_is_drawn_over_one_another_where_the_tasks_are_the_same(room: Room, sign_in: SignIn) -> None:
    runs = [room.launch(), room.launch(settings={"learning_rate": 2e-4}), room.launch(seed=2)]
    for run in runs:
        for step, score in ((0, 0.25), (10, 0.5)):
            values = {"success": score, "score": score, "n": 7, "unscored": 1}
            Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)
    page = shown(sign_in, room.cast.viewer, *runs)
    (chart,) = page.context["validation"]
    assert [line["name"] for line in chart["series"]] == [f"{run} SFT" for run in runs[:2]]
    assert chart["series"][0]["y"] == [25.0, 50.0]
    assert chart["note"] == "the same 8 training tasks, kept aside"


def test_any_picture_that_two_runs_have_can_be_drawn_over_one_another(room: Room, sign_in: SignIn) -> None:
    runs = [room.launch(), room.launch(seed=2)]
    for run in runs:
        room.measured(run, 4, loss=float, accuracy=lambda _: 0.5)
    room.measured(room.launch(seed=3), 4, entropy=float)
    page = shown(sign_in, room.cast.viewer, *runs)
    assert page.context["pictures"] == {"accuracy": "Token accuracy"}
    assert [chart["title"] for chart in page.context["curves"]] == ["Loss"]
    page = shown(sign_in, room.cast.viewer, *runs, picture="accuracy")
    (accuracy,) = [chart for chart in page.context["curves"] if chart["title"] == "Token accuracy"]
    assert [line["y"] for line in accuracy["series"]] == [[50.0] * 4] * 2
    assert '<option value="accuracy" selected>' in page_of(page)
    assert len(shown(sign_in, room.cast.viewer, *runs, picture="nothing").context["curves"]) == 1


def test_unlike_runs_are_drawn_apart_and_the_page_says_why(room: Room, sign_in: SignIn) -> None:
    sft, grpo = room.launch(), room.launch(algorithm="grpo")
    for run in (sft, grpo):
        room.asked(run, {0: 0.25})
        room.measured(run, 20, loss=float, reward_mean=float)
    grpo.points.filter(kind="eval").update(values={"success": 0.2, "n": 5, "unscored": 0, "seconds": 1.0})
    page = shown(sign_in, room.cast.viewer, sft, grpo)
    assert len(page.context["held_out"]) == 2
    assert page.context["curves"] == [] or {each["title"] for each in page.context["curves"]} == {"Reward"}
    said = page_of(page)
    assert "Not all are measured alike." in said
    assert f"{sft} on 8 tasks of {room.task_set}, answers of up to 96 tokens;" in said


def test_results_and_the_time_to_a_success_are_in_the_table(room: Room, candidate: Candidate, sign_in: SignIn) -> None:
    runs = [room.launch(), room.launch(seed=2)]
    candidate.run = runs[0]
    candidate.save()
    room.asked(runs[0], {0: 0.25, 20: 0.75})
    room.asked(runs[1], {0: 0.25, 20: 0.375})
    room.measured(runs[0], 20, step_time_s=lambda _: 0.5)
    said = page_of(shown(sign_in, room.cast.viewer, *runs))
    assert "Success to reach: 50.0%, half-way from 25.0% at step 0 to the best, 75.0%." in said
    assert "step 20" in said
    assert "not reached" in said
    assert candidate.get_verdict_display() in said
    assert "+66.7\N{NO-BREAK SPACE}points" in said
    said = page_of(shown(sign_in, room.cast.viewer, *runs, success="37.5"))
    assert "Success to reach: 37.5%, as you chose." in said
    assert "not reached" not in said


@pytest.mark.parametrize("success", ["much", "101", "-1", "nan", "inf"])
def test_a_success_that_is_none_is_refused_in_words(room: Room, sign_in: SignIn, success: str) -> None:
    runs = [room.launch(), room.launch(seed=2)]
    page = shown(sign_in, room.cast.viewer, *runs, success=success)
    assert page.status_code == 200
    assert "The success to reach is a percentage from 0 to 100" in page_of(page)


def test_settings_that_differ_come_first(room: Room, sign_in: SignIn) -> None:
    page = shown(sign_in, room.cast.viewer, room.launch(), room.launch(settings={"learning_rate": 1e-6}))
    assert [name for name, *_ in page.context["differing"]] == ["learning_rate"]
    assert "seed" in [name for name, *_ in page.context["equal"]]
    repeated = page_of(shown(sign_in, room.cast.viewer, room.launch(seed=4), room.launch(seed=4)))
    assert "None: these runs repeat each other." in repeated


def test_one_run_or_none_asks_for_another(room: Room, sign_in: SignIn) -> None:
    run, other = room.launch(), room.launch()
    page = page_of(shown(sign_in, room.cast.viewer, run))
    assert f"Add another run to {run} above" in page
    assert f'<option value="{other.pk}">' in page
    assert f'<option value="{run.pk}">' not in page
    assert "Add two runs above" in page_of(shown(sign_in, room.cast.viewer))


def test_more_runs_than_a_chart_has_colours_are_rows_of_a_table(room: Room, sign_in: SignIn) -> None:
    runs = [room.launch(seed=seed) for seed in range(7)]
    room.asked(runs[0], {0: 0.25, 20: 0.75})
    for step, score in enumerate([0.9, 0.25, 0.625, 0.625]):
        values = {"success": 0.5, "score": score, "n": 4, "unscored": 0}
        Point.objects.create(run=runs[0], kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)
    page = shown(sign_in, room.cast.trainer, *runs)
    assert [column["values"] for column in page.context["columns"]] == [[seed] for seed in range(7)]
    assert (page.context["names"], page.context["held_out"]) == ([("seed", "Seed")], [])
    said = page_of(page)
    assert "62.5%" in said
    assert "step 2, 4 tasks" in said
    assert len(shown(sign_in, room.cast.viewer, *runs[:6]).context["held_out"]) == 1


def test_at_most_sixteen_are_compared(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    query = urlencode({"run": [run.pk, *range(10**6, 10**6 + 16)]}, doseq=True)
    assert sign_in(room.cast.viewer).get(f"{HERE}compare/?{query}").status_code == 404
    runs = [run, *(room.launch(seed=seed) for seed in range(2, 18))]
    page = shown(sign_in, room.cast.viewer, *runs)
    assert [column["run"] for column in page.context["columns"]] == runs[:16]
    assert "17 runs were selected; the first 16 are compared." in page_of(page)
    assert page.context["others"] == []


def test_the_rest_is_cancelled_at_once(room: Room, sign_in: SignIn) -> None:
    """Those of the page that have not finished, and no others."""
    runs = [room.launch(seed=seed) for seed in range(4)]
    TrainingRun.objects.filter(pk=runs[0].pk).update(state=State.SUCCEEDED)
    trainer = sign_in(room.cast.trainer)
    assert "Cancel the rest" in page_of(shown(sign_in, room.cast.trainer, *runs[:3]))
    sent = {"run": [run.pk for run in runs[:3]]}
    page = trainer.post(f"{HERE}compare/cancel/", sent, follow=True)
    assert "2 runs cancelled." in page_of(page)
    assert "Cancel the rest" not in page_of(page)
    states = [TrainingRun.objects.get(pk=run.pk).state for run in runs]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.CANCELLED, State.QUEUED]
    assert sign_in(room.cast.viewer).post(f"{HERE}compare/cancel/", sent).status_code == 403


def test_a_run_twice_is_one(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    assert len(shown(sign_in, room.cast.viewer, run, run).context["columns"]) == 1


def test_runs_of_others_are_not_there(room: Room, sign_in: SignIn) -> None:
    run = room.launch()
    assert shown(sign_in, room.cast.stranger, run).status_code == 404
    elsewhere = sign_in(room.cast.stranger).get(f"/p/elsewhere/training/compare/?run={run.pk}")
    assert elsewhere.status_code == 404
    client = sign_in(room.cast.viewer)
    for number in ("0", "many", str(10**30), "999999"):
        assert client.get(f"{HERE}compare/?run={number}").status_code == 404
