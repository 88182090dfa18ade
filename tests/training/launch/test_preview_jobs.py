"""What may be previewed, and that the same question has its answer at once."""

from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.edge.refusals import Refused
from flywheel.training.datasets.dataset_builder import build
from flywheel.training.launch.preview_jobs import preview
from flywheel.training.models import Dataset, TokenPreview
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db


@pytest.fixture
def rows(room: Room) -> Dataset:
    return build(name="rows", kind="sft", task_set=room.task_set, actor=Actor(room.cast.trainer), version=room.base)


def asked(room: Room, rows: Dataset, **fields: Any) -> tuple[TokenPreview, bool]:
    return preview(**{"base": room.base, "dataset": rows, "actor": Actor(room.cast.trainer), **fields})


def test_the_same_question_is_one_preview(room: Room, rows: Dataset) -> None:
    first, is_new = asked(room, rows)
    assert is_new
    assert first.algorithm == "sft"
    assert first.settings["max_length"] == 1024
    assert asked(room, rows, algorithm="sft") == (first, False)
    assert asked(room, rows, settings={"max_length": 64})[1]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"algorithm": "dpo"}, "algorithm: rows@1 holds demonstrations; DPO wants preference pairs"),
        ({"algorithm": "magic"}, "algorithm: 'magic' is unknown"),
        ({"settings": {"max_length": 1}}, "settings.max_length: 1 is out of range"),
    ],
)
def test_what_does_not_fit_is_refused(room: Room, rows: Dataset, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Refused, match=f"^{problem}"):
        asked(room, rows, **fields)


def test_a_version_without_weights_is_refused(room: Room, rows: Dataset) -> None:
    with pytest.raises(Refused, match="can't be trained here"):
        asked(room, rows, base=room.build.version())


def test_rows_of_no_set_want_one(room: Room, rows: Dataset) -> None:
    rows.task_set = None
    with pytest.raises(Refused, match="choose the task set"):
        asked(room, rows)
