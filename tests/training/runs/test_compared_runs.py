"""Runs side by side: what may be put over one another, and how long each took to a success."""

import pytest

from flywheel.promotions.models import Candidate
from flywheel.training.models import Point, TrainingRun
from flywheel.training.runs import compared_runs
from flywheel.training.runs.compared_runs import Reached, given_rows, grouped, loss_group, measures, reward_group
from tests.promotions.conftest import agent, candidate, evaluated
from tests.training.conftest import NOON, Room

__all__ = ["agent", "candidate", "evaluated"]
pytestmark = pytest.mark.django_db


def sides(*runs: TrainingRun) -> list[compared_runs.Side]:
    return [compared_runs.side_of(run) for run in runs]


def test_runs_on_the_same_tasks_share_a_measure(room: Room) -> None:
    first, second, other = room.launch(), room.launch(seed=2), room.launch(seed=3)
    for run in (first, second):
        room.asked(run, {0: 0.25, 20: 0.5})
    room.asked(other, {0: 0.25})
    other.points.update(values={"success": 0.25, "n": 3, "unscored": 1, "seconds": 1.0})
    groups = measures(sides(first, other, second, room.launch(seed=4)))
    assert [([side.run for side in group.sides], group.tasks) for group in groups] == [
        ([first, second], 8),
        ([other], 4),
    ]


def test_runs_on_another_set_do_not(room: Room) -> None:
    run, other = room.launch(), room.launch(seed=2)
    other.dataset.task_set = room.build.task_set(name="other")
    for each in (run, other):
        room.asked(each, {0: 0.5})
    assert len(measures(sides(run, other))) == 2


def test_the_success_to_reach_is_half_way_from_the_start_to_the_best(room: Room) -> None:
    slow, fast, never = room.launch(), room.launch(seed=2), room.launch(seed=3)
    room.asked(slow, {0: 0.25, 20: 0.375, 40: 0.5})
    room.asked(fast, {0: 0.25, 20: 0.75, 40: 0.5})
    room.asked(never, {0: 0.25, 20: None, 40: 0.375})
    for run in (slow, fast, never):
        room.measured(run, 40, step_time_s=lambda _: 0.5)
    (group,) = measures(sides(slow, fast, never))
    assert (group.start, group.best, group.threshold, group.is_given) == (0.25, 0.75, 0.5, False)
    # Steps of half a second, and evaluations of one second: at 0, at 20, and at 40.
    assert [group.reached(side) for side in group.sides] == [Reached(40, 23.0), Reached(20, 12.0), None]


def test_a_success_can_be_given(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: 0.75})
    (group,) = measures(sides(run), threshold=0.2)
    assert (group.threshold, group.is_given) == (0.2, True)
    assert group.reached(group.sides[0]) == Reached(0, 1.0)


def test_without_a_gain_there_is_nothing_to_reach(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: 0.25, 40: 0.125})
    (group,) = measures(sides(run))
    assert group.threshold is None
    assert group.reached(group.sides[0]) is None


def test_without_step_times_only_the_step_is_known(room: Room) -> None:
    run = room.launch()
    room.asked(run, {0: 0.25, 20: 0.75})
    (group,) = measures(sides(run))
    reached = group.reached(group.sides[0])
    assert reached == Reached(20, None)
    assert reached.duration is None


def test_what_differs_is_told_from_what_is_equal(room: Room) -> None:
    one, two = room.launch(settings={"steps": 9}), room.launch(algorithm="grpo", seed=2, settings={"steps": 9})
    differing, equal = given_rows(sides(one, two))
    assert differing["algorithm"] == ["SFT", "GRPO"]
    assert differing["seed"] == [1, 2]
    assert differing["temperature"] == [None, two.settings["temperature"]]
    assert (equal["steps"], equal["task_set"]) == ([9, 9], [str(room.task_set)] * 2)
    assert set(differing).isdisjoint(equal)


def test_a_setting_that_is_null_is_told_from_one_that_is_not_there(room: Room) -> None:
    runs = [room.launch(settings={"trl.max_tool_response": None}), room.launch()]
    differing, _ = compared_runs.given_rows([compared_runs.side_of(run) for run in runs])
    assert differing == {"trl.max_tool_response": ["null", None]}


def test_loss_and_reward_are_shared_only_by_runs_for_which_they_are_the_same(room: Room) -> None:
    sft, grpo, other = room.launch(), room.launch(algorithm="grpo"), room.launch(algorithm="cispo")
    harsh = room.launch(algorithm="grpo", settings={"unsafe_penalty": 0.5})
    runs = sides(sft, grpo, other, harsh)
    assert [[side.run for side in group] for group in grouped(runs, loss_group)] == [[sft], [grpo, harsh], [other]]
    assert [[side.run for side in group] for group in grouped(runs[1:], reward_group)] == [[grpo, other], [harsh]]


def test_tokens_are_those_of_the_last_step(room: Room) -> None:
    run, silent = room.launch(), room.launch(seed=2)
    room.measured(run, 3, tokens=lambda step: 100.0 * step)
    assert [side.tokens for side in sides(run, silent)] == [300, None]


def test_results_come_with_their_intervals(room: Room, candidate: Candidate) -> None:
    run = room.launch()
    run.evaluation = candidate.version_eval
    candidate.run = run
    candidate.save()
    (side,) = sides(run)
    assert side.difference == candidate.report["comparison"]["differences"]["success"]
    assert side.held_out == candidate.version_eval.summary["metrics"]["success"]
    assert side.baseline == room.baseline.summary["metrics"]["success"]


def test_a_run_that_has_not_begun_has_nothing(room: Room) -> None:
    (side,) = sides(room.launch())
    assert (side.evals, side.start, side.best, side.held_out, side.difference) == ([], None, None, None, None)
    Point.objects.create(
        run=side.run,
        kind=Point.Kind.EVAL,
        step=20,
        at=NOON,
        values={"success": None, "n": 0, "unscored": 8, "seconds": 1},
    )
    (side,) = sides(side.run)
    assert (side.tasks, side.start, side.best) == (8, None, None)
    assert measures([side])[0].threshold is None
