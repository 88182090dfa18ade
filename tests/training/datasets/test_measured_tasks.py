"""What a user says in a measured task is nobody's to learn from, before the attempt and in it."""

from typing import Any

import pytest

from flywheel.core.envs.replay.episode_replay import KIND
from flywheel.core.traces import Message
from flywheel.environments.models import Split
from flywheel.training.datasets.measured_tasks import Measured
from tests.training.conftest import Room

pytestmark = pytest.mark.django_db

LATER = "Yes, and tell Ines about the new room"
BEGUN = [Message("user", "On friday").to_json()]


@pytest.mark.parametrize(
    "more", [{"turns": [{"say": LATER, "after": "Shall I?", "calls": []}]}, {"script": [{"say": LATER}]}]
)
def test_what_a_user_says_later_in_a_replay_is_measured_too(room: Room, more: dict[str, Any]) -> None:
    replay = room.build.environment("recorded")
    type(replay).objects.filter(pk=replay.pk).update(kind=KIND)
    room.build.task(Split.HELD_OUT, replay, prompt="On friday", state={"messages": BEGUN, **more})
    same = room.build.task(Split.TRAIN, replay, prompt="On monday", cluster="a", state=more)
    other = room.build.task(Split.TRAIN, replay, prompt="On tuesday", cluster="b", state={})
    measured = Measured(room.cast.project)
    assert (measured.has(same, KIND), measured.has(other, KIND)) == (True, False)
    assert measured.request_in(f"When they say: {LATER}, do it.")
    assert measured.has_beginning([Message("user", "Hi"), Message("user", LATER.upper()), Message("assistant", "Ok")])


def test_a_table_of_that_name_in_another_kinds_world_is_none(room: Room) -> None:
    room.build.task(Split.HELD_OUT, prompt="Close the old ticket", state={"turns": [{"say": LATER}], "messages": ["x"]})
    assert not Measured(room.cast.project).request_in(LATER)
