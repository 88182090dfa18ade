"""The gate reads the validation of the weights that were kept, and takes what was not measured for not reached."""

from typing import Any

import pytest

from flywheel.training.models import Point, TrainingRun
from flywheel.training.pipelines.stage_gates import judge, sentence
from tests.training.conftest import NOON, Room

pytestmark = pytest.mark.django_db


def validated(room: Room, chosen: int | None, **steps: Any) -> TrainingRun:
    run = room.launch()
    TrainingRun.objects.filter(pk=run.pk).update(chosen_step=chosen)
    run.refresh_from_db()
    for step, values in steps.items():
        Point.objects.create(
            run=run, kind=Point.Kind.VALIDATION, step=int(step.removeprefix("s")), at=NOON, values=values
        )
    return run


def test_the_weights_that_became_the_version_are_judged(room: Room) -> None:
    run = validated(room, 3, s3={"success": 0.8, "n": 10, "parts": {}}, s6={"success": 0.1, "n": 10, "parts": {}})
    assert judge({"min_success": 0.5}, run)[0]["share"] == 0.8
    run.chosen_step = None
    assert judge({"min_success": 0.5}, run)[0]["share"] == 0.1


def test_the_worst_of_several_environments_counts(room: Room) -> None:
    first = {"success": 0.9, "n": 10, "parts": {"valid_json": 1.0, "form": 0.7, "unsafe": 0.0}}
    second = {"success": 0.4, "n": 8, "parts": {"valid_json": 0.9, "unsafe": 0.25}}
    run = validated(room, None, s6={**first, "environments": {"shop": second}})
    checks = judge({"min_success": 0.5, "min_format": 0.7, "max_unsafe": 0.2}, run)
    assert [(each["share"], each["holds"], each["n"]) for each in checks] == [
        (0.4, False, 18),
        (0.7, True, 18),
        (0.25, False, 18),
    ]
    assert sentence(checks) == (
        "validation success: 40% of 18 tasks, at least 50% is required; "
        "unsafe attempts: 25% of 18 tasks, at most 20% is required"
    )


def test_what_was_not_measured_does_not_hold(room: Room) -> None:
    unscored: dict[str, Any] = {"success": None, "n": 0, "parts": {}}
    for run in (validated(room, None), validated(room, None, s6=unscored)):
        checks = judge({"min_success": 0.0, "min_format": 0.0, "max_unsafe": 1.0}, run)
        assert not any(check["holds"] for check in checks)
        assert "validation success: not measured, at least 0% is required" in sentence(checks)


def test_a_task_without_a_score_is_neither_solved_nor_readable(room: Room) -> None:
    parts = {"valid_json": 1.0, "unsafe": 0.0}
    run = validated(room, None, s6={"success": 1.0, "n": 1, "unscored": 19, "parts": parts})
    checks = judge({"min_success": 0.6, "min_format": 0.6, "max_unsafe": 0.0}, run)
    assert [(each["share"], each["n"], each["holds"]) for each in checks] == [
        (0.05, 20, False),
        (0.05, 20, False),
        (0.0, 1, True),
    ]


def test_a_share_just_below_its_limit_does_not_read_as_the_limit(room: Room) -> None:
    run = validated(room, None, s6={"success": 0.596, "n": 500, "parts": {}})
    assert sentence(judge({"min_success": 0.6}, run)) == (
        "validation success: 59.6% of 500 tasks, at least 60% is required"
    )


def test_no_limit_asks_for_no_validation(room: Room) -> None:
    assert judge({}, validated(room, None)) == []
