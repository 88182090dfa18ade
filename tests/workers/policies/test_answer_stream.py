"""The thread that asks, beside whoever takes what was answered."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_for
from workers.policies import answer_stream
from workers.policies.answer_stream import Asking

LEASE: Any = SimpleNamespace(cancelled=False, lost=False)
ENGINE: Any = SimpleNamespace(close=lambda: None)


def test_the_next_questions_are_sent_before_answers_are_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "HEAD_START_S", 60)
    sent = []

    def ask(number: int) -> int:
        time.sleep(0.05)
        sent.append(number)
        return number

    with Asking(LEASE, ENGINE, ask, 2) as asked:
        assert asked.next() == 0
        assert sent == [0, 1]
        assert asked.next() == 1, "nobody waits for more once all is asked"
        assert asked.next() is None


def test_who_is_behind_is_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "HEAD_START_S", 60)
    with Asking(LEASE, ENGINE, lambda number: number, 4) as asked:
        wait_for(lambda: asked._answered.qsize() == answer_stream.AHEAD, "it is ahead")
        assert asked.next() == 0


def test_nothing_is_asked_ahead_where_nothing_may_be() -> None:
    begun = []

    def ask(number: int) -> int:
        begun.append(number)
        return number

    with Asking(LEASE, ENGINE, ask, 3, ahead=0) as asked:
        for number in range(3):
            assert asked.next() == number
            assert begun == [*range(number + 1)]


def test_what_asking_raises_is_raised_to_who_waits() -> None:
    def ask(number: int) -> int:
        raise ValueError(f"no answer {number}")

    with Asking(LEASE, ENGINE, ask, 3) as asked, pytest.raises(ValueError, match="no answer 0"):
        asked.next()
