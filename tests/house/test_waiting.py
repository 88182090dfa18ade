"""The one way in which tests wait."""

import pytest

from tests import waiting
from tests.waiting import wait_for


def test_it_asks_until_the_answer_is_true_and_returns_it() -> None:
    answers = iter([None, [], ["came"]])
    assert wait_for(lambda: next(answers), "something comes") == ["came"]


def test_what_never_happens_fails_with_what_it_was_and_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)
    with pytest.raises(pytest.fail.Exception, match=r"not within 0 s: it rains\nthe sky is clear"):
        wait_for(lambda: False, "it rains", lambda: "the sky is clear")
