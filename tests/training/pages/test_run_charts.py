"""What a run's page draws and warns of: only what was measured, never more than can be seen."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.edge.jobs import State
from flywheel.environments.versions.reward_recipes import reward_recipe
from flywheel.training.launch import launch_estimate
from flywheel.training.models import Point, TrainingRun
from flywheel.training.pages import run_charts, run_details
from flywheel.training.runs.alert_evidence import alerts_of
from flywheel.training.runs.step_points import MOST_POINTS, Steps, step_points
from tests.training.conftest import NOON, Room

pytestmark = pytest.mark.django_db


def drawn(run: TrainingRun) -> dict[str, dict[str, Any]]:
    found = [run_charts.held_out(run), *run_charts.curves(run, *step_points(run))]
    return {spec["title"]: spec for spec in found if spec}


def test_only_what_was_measured_is_drawn(room: Room) -> None:
    run = room.launch()
    assert drawn(run) == {}
    room.measured(run, 3, loss=lambda step: 1 / step, accuracy=lambda _: 0.9)
    pictures = drawn(run)
    assert set(pictures) == {"Loss", "Token accuracy"}
    assert pictures["Token accuracy"]["series"][0]["y"] == [90.0, 90.0, 90.0]


def test_long_runs_are_thinned_out_and_say_so(room: Room) -> None:
    run = room.launch()
    room.measured(run, 1203, loss=float)
    loss = drawn(run)["Loss"]
    xs = loss["series"][0]["x"]
    assert len(xs) <= MOST_POINTS
    assert (xs[0], xs[-1]) == (3, 1203)
    assert loss["note"] == "every 3th step"


def test_reward_has_its_spread_and_its_parts(room: Room) -> None:
    run = room.launch(algorithm="grpo")
    measured: dict[str, Any] = {"reward__tool": lambda _: 1.0, "reward__exact": lambda _: 0.25}
    room.measured(run, 2, reward_mean=lambda _: 0.5, reward_std=lambda _: 0.125, clip_low=lambda _: 0.0, **measured)
    pictures = drawn(run)
    (reward,) = pictures["Reward"]["series"]
    assert (reward["low"], reward["y"], reward["high"]) == ([0.375] * 2, [0.5] * 2, [0.625] * 2)
    assert [line["name"] for line in pictures["Reward by part"]["series"]] == ["exact", "tool"]
    assert run_charts.ON_POLICY in pictures["Clip fraction"]["note"]


@pytest.mark.parametrize(
    ("metric", "title", "line"),
    [
        ("resampled_groups", "Replaced groups", "groups"),
        ("resting_tasks", "Tasks that rest", "tasks"),
        ("turns_mean", "Turns of an episode", "mean"),
        ("broken_off_fraction", "Episodes that ended early", "broken off"),
        ("out_of_turns_fraction", "Episodes that ended early", "out of turns"),
        ("repetition", "Repetition", "text"),
        ("entropy", "Entropy", "entropy"),
        ("teacher_kl", "Distance from the teacher", "KL"),
        ("replay_loss", "Loss of replayed rows", "loss"),
        ("recorded_fraction", "Tokens with an importance ratio", "tokens"),
    ],
)
def test_what_a_trainer_measures_has_its_picture(metric: str, title: str, line: str) -> None:
    run = TrainingRun(algorithm="grpo", settings={})
    (spec,) = run_charts.curves(run, [(1, {metric: 0.25}), (2, {metric: 0.5})], 1)
    assert (spec["title"], [each["name"] for each in spec["series"]]) == (title, [line])
    first, last = spec["series"][0]["y"]
    assert last == 2 * first > 0


def test_a_watched_part_is_named_so_over_the_steps_in_which_it_judged(room: Room) -> None:
    tone = {"type": "regex", "name": "kind_tone", "weight": 0, "read": "answer", "pattern": "please"}
    actor, project = Actor(room.cast.builder), room.cast.project
    recipe, _ = reward_recipe(project=project, name="kind", parts=[{"type": "environment"}, tone], actor=actor)
    run = room.launch(algorithm="grpo", reward=recipe)
    room.measured(run, 40, reward_mean=lambda step: step / 40, reward__environment=lambda step: step / 40)
    for point in run.points.filter(step__in=range(1, 41, 2)):
        point.values["reward/kind_tone"] = 0.5
        point.save()
    lines = {line["name"]: line for line in drawn(run)["Reward by part"]["series"]}
    assert set(lines) == {"environment", "kind tone (watched)"}
    assert lines["kind tone (watched)"]["x"] == list(range(1, 41, 2))
    (alert,) = said(run, step_points(run)[0])
    assert alert.endswith("and the watched part kind_tone did not: 0.50, then 0.50 (judged in 20 steps)")


def test_a_value_head_has_its_pictures(room: Room) -> None:
    run = room.launch(algorithm="ppo")
    room.measured(run, 2, value_loss=lambda _: 0.25, explained_variance=lambda step: step - 2.5)
    pictures = drawn(run)
    assert pictures["Value loss"]["series"][0]["y"] == [0.25, 0.25]
    assert pictures["Explained variance"]["series"][0]["y"] == [-1.5, -0.5], "it can be below 0"


def test_how_far_a_sampler_is_from_the_trainer_is_drawn(room: Room) -> None:
    run = room.launch(algorithm="grpo")
    told = {"sampler_mismatch": 2e-6, "sync_proof": 1e-6, "sampler_idle": 0.25}
    told |= {"sampler_mismatch_max": 3e-5, "sampler_weight_min": 0.75}
    lines = {name: (lambda _, value=value: value) for name, value in told.items()}
    ages: dict[str, Any] = {f"staleness__{age}": lambda _: 0.25 for age in (10, 2, 1)}
    room.measured(run, 2, **lines, **ages, staleness_max=lambda at: at - 1)
    series = drawn(run)["Sampler against trainer"]["series"]
    assert drawn(run)["Age of the attempts"]["series"][0]["y"] == [0, 1]
    assert [line["name"] for line in drawn(run)["Tokens by age"]["series"]] == ["1", "2", "10"]
    assert drawn(run)["Idle"]["series"][0]["name"] == "sampler"
    assert drawn(run)["Sampler's worst token"]["series"][0]["y"] == [3e-5] * 2
    assert drawn(run)["Least weight of a token"]["series"][0]["y"] == [0.75] * 2
    assert [(line["name"], line["y"]) for line in series] == [("all tokens", [2e-6] * 2), ("proof", [1e-6] * 2)]


def test_clipping_that_can_happen_is_not_explained_away(room: Room) -> None:
    run = room.launch(algorithm="grpo", settings={"num_iterations": 2})
    room.measured(run, 2, clip_low=lambda _: 0.0)
    assert run_charts.ON_POLICY not in drawn(run)["Clip fraction"]["note"]


def test_held_out_is_drawn_against_its_own_start(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: None, 40: 0.5})
    spec = drawn(run)["Held-out success"]
    assert spec["baseline"] == 25.0
    assert spec["series"][0]["y"] == [25.0, None, 50.0]


def test_the_score_that_success_is_made_of_is_drawn_beside_it(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: 0.5})
    run.points.filter(step=0).update(values={"success": 0.25, "score": 0.4, "n": 8})
    run.points.filter(step=20).update(values={"success": 0.5, "score": 0.7, "n": 8})
    success, score = drawn(run)["Held-out success"]["series"]
    assert (success["name"], success["y"]) == ("success", [25.0, 50.0])
    assert (score["name"], score["y"]) == ("mean score", [40.0, 70.0])


def said(run: TrainingRun, steps: Steps) -> list[str]:
    return [alert["saw"] for alert in alerts_of(run, steps)]


def validated(run: TrainingRun, scores: dict[int, float | None]) -> None:
    for step, score in scores.items():
        values = {"success": score, "score": score, "n": 12}
        Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)


def test_validation_and_the_step_whose_weights_were_kept_are_drawn(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: 0.5})
    validated(run, {0: 0.2, 10: 0.6, 20: None})
    run.chosen_step = 10
    spec = drawn(run)["Held-out success"]
    line = spec["series"][-1]
    assert (line["name"], line["x"], line["y"]) == ("validation score (12 tasks)", [0, 10, 20], [20.0, 60.0, None])
    assert spec["marks"] == [{"x": 10, "label": "weights kept"}]


def test_validation_of_several_environments_is_drawn_by_the_mean_of_all(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25})
    values = {"success": 0.9, "score": 0.9, "overall": 0.3, "n": 12}
    Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=0, at=NOON, values=values)
    assert drawn(run)["Held-out success"]["series"][-1]["y"] == [30.0]


def figures(success: float, n: int = 6, **fields: Any) -> dict[str, Any]:
    return {"success": success, "score": success, "n": n, "parts": {"unsafe": 0.1}, "tokens": 30.0, **fields}


def test_validation_is_drawn_by_slice_and_by_environment_against_its_start(room: Room) -> None:
    run = room.launch()
    for step, success in ((0, 0.25), (10, 0.5)):
        values = figures(success, unscored=2, invalid=0.125, latency_ms=80.0, seconds=1.0)
        values |= {"slices": {"short": figures(success, 4), "long": figures(0.0, 2)}}
        values |= {"environments": {"mail": figures(1.0, slices={"rude": figures(1.0, 1)})}, "overall": 0.6}
        Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)
    pictures = {spec["title"]: spec for spec in run_charts.validation(run)}
    lines = {line["name"]: line["y"] for line in pictures["Success"]["series"]}
    wanted = {"all": [25.0, 50.0], "mail": [100.0] * 2, "mail: rude": [100.0] * 2}
    assert lines == wanted | {"all: short": [25.0, 50.0], "all: long": [0.0] * 2}
    assert pictures["Success"]["baseline"] == 25.0
    assert [line["name"] for line in pictures["Unreadable answers"]["series"]] == ["all"]
    whole = {title: spec["series"][0]["y"] for title, spec in pictures.items()}
    assert (whole["Unscored attempts"], whole["Unreadable answers"]) == ([25.0] * 2, [12.5] * 2)
    assert (whole["Part: Unsafe"], whole["Tokens of an attempt"]) == ([0.1] * 2, [30.0] * 2)
    assert whole["Latency of an attempt"] == [80.0] * 2
    assert "Cost of a validation" not in pictures, "nobody said what an hour costs"
    run.device_hour = 7.2
    priced = {spec["title"]: spec["series"] for spec in run_charts.validation(run)}["Cost of a validation"]
    assert [(line["name"], [round(y, 6) for y in line["y"]]) for line in priced] == [("all", [0.002] * 2)]


def test_the_reward_on_validation_is_drawn_beside_that_of_training_and_by_slice(room: Room) -> None:
    run = room.launch(algorithm="grpo")
    room.measured(run, 2, reward_mean=lambda _: 0.5)
    for step, reward in ((0, -0.25), (2, None)):
        values = figures(0.5, reward=reward, slices={"short": figures(0.5, 4, reward=0.75)})
        Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=step, at=NOON, values=values)
    mean, aside = drawn(run)["Reward"]["series"]
    assert (mean["x"], aside["name"], aside["x"], aside["y"]) == ([1, 2], "on validation", [0, 2], [-0.25, None])
    picture = next(spec for spec in run_charts.validation(run) if spec["title"] == "Mean reward")
    assert {line["name"]: line["y"] for line in picture["series"]} == {"all": [-0.25, None], "short": [0.75] * 2}


def test_cost_of_a_validation_is_drawn_by_environment_and_by_slice(room: Room) -> None:
    run = room.launch()
    run.device_hour = 3600.0
    values = figures(0.5, seconds=6.0, slices={"short": figures(0.5, 4, seconds=1.0)})
    values |= {"environments": {"mail": figures(1.0, seconds=2.0)}}
    Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=0, at=NOON, values=values)
    priced = {spec["title"]: spec["series"] for spec in run_charts.validation(run)}["Cost of a validation"]
    assert {line["name"]: line["y"] for line in priced} == {"all": [6.0], "mail": [2.0], "all: short": [1.0]}


def test_only_the_largest_slices_of_a_validation_are_drawn_and_the_others_counted(room: Room) -> None:
    run = room.launch()
    values = figures(0.5, 45, slices={f"s{n}" if n < 9 else "all": figures(0.5, n) for n in range(1, 10)})
    Point.objects.create(run=run, kind=Point.Kind.VALIDATION, step=0, at=NOON, values=values)
    success = run_charts.validation(run)[0]
    assert [line["name"] for line in success["series"]] == ["all", "all", "s8", "s7", "s6", "s5"], (
        "a slice may have that name"
    )
    assert success["note"] == "4 smaller slices left out"


def test_an_old_validation_draws_what_it_has(room: Room) -> None:
    run = room.launch()
    assert run_charts.validation(run) == []
    validated(run, {0: 0.2, 10: None})
    assert [spec["title"] for spec in run_charts.validation(run)] == ["Success", "Mean score"]


@pytest.mark.parametrize(("best", "is_told"), [(0.4, True), (0.6, False)])
def test_validation_that_never_rose_is_an_alert_at_the_end(room: Room, best: float, is_told: bool) -> None:
    run = room.launch()
    validated(run, {0: 0.4, 10: best, 20: 0.1})
    assert said(run, []) == [], "it may still rise"
    run.state = State.SUCCEEDED
    assert bool(said(run, [])) is is_told


@pytest.mark.parametrize(("name", "words"), [("broken_off_fraction", "broken off"), ("out_of_turns_fraction", "turns")])
def test_episodes_that_end_early_are_an_alert(room: Room, name: str, words: str) -> None:
    run = room.launch(algorithm="grpo")
    room.measured(run, 12, **{name: lambda step: 0.1 if step < 3 else 0.5})
    (alert,) = said(run, step_points(run)[0])
    assert "50% of the last episodes" in alert
    assert words in alert


@pytest.mark.parametrize(
    ("success", "rewards", "wanted"),
    [
        ({0: 0.2, 20: 0.9, 40: 0.2}, lambda _: 0.98, "fell from 90%"),
        ({0: 0.4, 20: 0.4, 40: 0.4}, lambda step: step / 50, "reward rose by"),
    ],
)
def test_alerts_read_the_curves_together(
    room: Room, success: dict[int, float | None], rewards: Any, wanted: str
) -> None:
    run = room.launch(algorithm="grpo")
    room.measured(run, 50, reward_mean=rewards)
    room.asked(run, success)
    (alert,) = said(run, step_points(run)[0])
    assert wanted in alert


def test_alerts_repeat_the_trainers_warnings_once(room: Room) -> None:
    run = room.launch()
    for _ in range(2):
        run.events.create(level="warning", text="4 rows are cut")
    assert said(run, []) == ["4 rows are cut"]


def test_what_is_left_follows_the_pace_of_the_steps(room: Room) -> None:
    run = room.launch(settings={"steps": 100})
    room.measured(run, 40, loss=float)
    TrainingRun.objects.filter(pk=run.pk).update(state=State.RUNNING, started_at=NOON, done=40)
    run.refresh_from_db()
    assert run.remaining == timedelta(seconds=60)
    run.started_at, run.done = timezone.now() - timedelta(seconds=9), 99
    assert run.remaining == timedelta(seconds=1), "no milliseconds"


def test_time_is_told_from_earlier_runs_alike(room: Room) -> None:
    run = room.launch(settings={"steps": 20})
    assert launch_estimate.expected_duration(room.base, run.settings, "sft") is None
    room.measured(run, 20, loss=float)
    TrainingRun.objects.filter(pk=run.pk).update(
        state=State.SUCCEEDED, attempt=1, started_at=NOON - timedelta(seconds=9), finished_at=NOON
    )
    duration = launch_estimate.expected_duration(room.base, {**run.settings, "steps": 101}, "sft")
    assert duration is not None
    assert (duration.expected, duration.runs) == (timedelta(seconds=110), [run])
    assert launch_estimate.expected_duration(room.base, {**run.settings, "batch_size": 64}, "sft") is None


def test_tasks_that_turned_come_first_and_of_those_the_broken_ones(room: Room) -> None:
    run = room.launch()
    answers = {"t-1": (0.0, 1.0), "t-2": (1.0, 0.4), "t-3": (1.0, 1.0), "t-4": (None, 1.0)}
    for place, step in enumerate((0, 20)):
        samples: list[dict[str, Any]] = [
            {"task_id": task, "prompt": task, "completion": "", "score": scores[place], "parts": {}, "reason": ""}
            for task, scores in answers.items()
        ]
        Point.objects.create(run=run, kind=Point.Kind.SAMPLES, step=step, at=NOON, values=samples)
    found = run_details.samples(run)
    assert [row["task"] for row in found["turned"]] == ["t-2", "t-1"]
    assert [row["task"] for row in found["rows"]] == ["t-2", "t-1", "t-3", "t-4"]
    assert found["counts"] == {"fixed": 1, "broken": 1, "others": 2, "all": 4}
    shown = {name: [row["task"] for row in run_details.samples(run, name)["rows"]] for name in found["counts"]}
    assert shown == {"fixed": ["t-1"], "broken": ["t-2"], "others": ["t-3", "t-4"], "all": ["t-2", "t-1", "t-3", "t-4"]}


def test_a_few_sampled_tasks_are_shown_until_all_are_asked_for(room: Room) -> None:
    run = room.launch()
    scored = {"prompt": "", "completion": "", "score": 1.0, "parts": {}, "reason": ""}
    samples: list[dict[str, Any]] = [{"task_id": f"t-{at}", **scored} for at in range(9)]
    Point.objects.create(run=run, kind=Point.Kind.SAMPLES, step=0, at=NOON, values=samples)
    shown = {name: len(run_details.samples(run, name)["rows"]) for name in ("", "all", "fixed", "everything")}
    assert shown == {"": 5, "all": 9, "fixed": 0, "everything": 5}


def test_pictures_of_how_it_ran_are_put_aside(room: Room) -> None:
    run = room.launch(settings={"steps": 20})
    room.measured(run, 20, loss=float, learning_rate=float, step_time_s=float)
    steps, stride = step_points(run)
    assert [spec["title"] for spec in run_charts.curves(run, steps, stride)] == ["Loss"]
    assert [spec["title"] for spec in run_charts.curves(run, steps, stride, aside=True)] == [
        "Learning rate",
        "Step time",
    ]
