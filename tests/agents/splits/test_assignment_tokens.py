"""A token shows the arm that was given to one session in one split, and nothing else does."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agents.models import Split
from flywheel.agents.splits.assignment import Arm, Unit
from flywheel.agents.splits.assignment_tokens import assignment_token, is_assignment
from flywheel.trajectories.formats.semantics.sent_attributes import LONGEST_VALUE


@dataclass
class Row:
    pk: int = 2**63 - 1
    agent_id: int = 7
    salt: str = "salt"


ROW = cast(Split, Row())


@pytest.mark.parametrize("arm", ["live", "candidate"])
def test_a_token_shows_its_arm_and_fits_where_attributes_are_kept(arm: Arm) -> None:
    token = assignment_token(ROW, Unit("session", "s" * 200), arm)
    assert is_assignment(token, ROW, "session", "s" * 200) == arm
    assert len(token) <= LONGEST_VALUE
    assert token.isprintable()


def test_a_token_of_another_session_split_agent_or_arm_shows_nothing() -> None:
    token = assignment_token(ROW, Unit("session", "s"), "live")
    assert is_assignment(token, ROW, "session", "t") is None
    assert is_assignment(token, ROW, "trace", "s") is None
    for row in (Row(pk=1), Row(agent_id=8), Row(salt="other")):
        assert is_assignment(token, cast(Split, row), "session", "s") is None
    assert is_assignment(token.replace("live", "candidate"), ROW, "session", "s") is None


def test_a_token_of_another_installation_shows_nothing(settings: Any) -> None:
    token = assignment_token(ROW, Unit("session", "s"), "live")
    settings.SECRET_KEY = "another"
    assert is_assignment(token, ROW, "session", "s") is None


@given(st.text(max_size=300))
def test_no_other_text_shows_anything(text: str) -> None:
    assert is_assignment(text, ROW, "session", "s") is None


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "fwt_1_live_", "é" * 100])
def test_a_hostile_text_shows_nothing(text: str) -> None:
    assert is_assignment(text, ROW, "session", "s") is None
