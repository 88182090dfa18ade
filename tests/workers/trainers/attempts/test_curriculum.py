"""Tasks rest while they teach nothing, come back, and are known again after a resume."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from flywheel.core.verifiers import Verdict
from tests.workers.trainers.attempts.test_step_attempts import ENV, TASKS, attempts, right_for, step
from tests.workers.trainers.cast import NAMES
from workers.trainers.attempts.curriculum import FILE, HIGH, LOW, REST, Curriculum
from workers.trainers.run import checkpoints

PASS, FAIL, UNSCORED = Verdict(1.0, ""), Verdict(0.0, ""), Verdict(None, "", {}, "away")


def test_a_task_that_is_always_solved_rests_for_its_next_turns_and_comes_back() -> None:
    of = Curriculum(Path())
    of.learn(3, [PASS] * 8, is_dull=True)
    assert not of.is_due(3)
    assert of.resting == 1
    assert [of.turn(3) for _ in range(REST + 1)] == [False] * REST + [True]
    assert of.resting == 0


def test_a_task_rests_when_it_is_nearly_always_solved_but_not_for_one_lucky_group() -> None:
    of = Curriculum(Path())
    of.learn(0, [PASS] * 4 + [FAIL] * 4, is_dull=False)
    of.learn(0, [PASS] * 8, is_dull=True)
    assert of.rates[0] == 0.75
    assert of.is_due(0)
    of.learn(0, [PASS] * 7 + [FAIL], is_dull=False)
    assert of.rates[0] > HIGH
    assert not of.is_due(0)


def test_a_task_that_is_never_solved_rests_unless_some_attempts_earn_more_than_others() -> None:
    of = Curriculum(Path())
    of.learn(0, [FAIL] * 8, is_dull=True)
    of.learn(1, [FAIL] * 8, is_dull=False)
    assert [of.is_due(place) for place in (0, 1)] == [False, True]


def test_attempts_without_a_score_say_nothing_of_their_task() -> None:
    of = Curriculum(Path())
    of.learn(0, [UNSCORED] * 8, is_dull=True)
    assert of.is_due(0)
    of.learn(1, [PASS, FAIL, *[UNSCORED] * 6], is_dull=False)
    assert of.rates == {1: 0.5}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8))))
def test_a_task_rests_only_outside_the_band_and_a_resumed_run_knows_the_same(groups: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        of = Curriculum(Path(place) / checkpoints.PLACE)
        for task, solved in groups:
            if of.turn(task):
                of.learn(task, [PASS] * solved + [FAIL] * (8 - solved), is_dull=solved in (0, 8))
                assert of.is_due(task) or not LOW <= of.rates[task] <= HIGH
        state = SimpleNamespace(global_step=4)
        aside = Path(place) / "work" / "checkpoint-4"
        aside.mkdir(parents=True)
        of.on_save(SimpleNamespace(output_dir=str(aside.parent)), state, None)
        (Path(place) / checkpoints.PLACE).mkdir()
        aside.rename(Path(place) / checkpoints.PLACE / "step-4")
        again = Curriculum(Path(place) / checkpoints.PLACE)
        again.on_train_begin(None, state, None)
        assert (again.rates, again.rests) == (of.rates, of.rests)
        assert (Path(place) / checkpoints.PLACE / "step-4" / FILE).exists()


def test_the_turn_of_a_task_that_rests_goes_to_one_that_is_due() -> None:
    half = NAMES[:3]
    of = attempts(ENV, TASKS, right_for(*half), curriculum=True)
    for at in range(6):
        step(of, 2 * at, 2 * at + 1, at=at)
    step(of, 4, 5, at=9)
    assert {group.rollouts[0].task.prompt for group in of.groups} <= {f"remind {name}" for name in half}
    assert (len(TASKS) - len(half)) / len(TASKS) <= of.figures["resting"] < 1


def test_where_all_tasks_rest_they_are_tried_all_the_same() -> None:
    of = attempts(ENV, TASKS[:2], right_for(), curriculum=True, dynamic_sampling=True, max_resamples=2)
    for at in range(3):
        step(of, 0, 1, at=at)
        assert len(of.groups) == 2
    assert of.figures["resting"] == 1.0


def test_the_same_tasks_are_chosen_whenever_the_same_was_found() -> None:
    def run() -> list[str]:
        of = attempts(ENV, TASKS, right_for("Ada", "Bo"), curriculum=True, dynamic_sampling=True)
        chosen = []
        for at in range(8):
            step(of, at, at + 4, at=at)
            chosen += [group.rollouts[0].task.id for group in of.groups]
        return chosen

    assert run() == run()
