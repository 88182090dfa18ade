"""gepa, driven by a player of two lines: its course follows from the seed, and nothing that a player raises is lost."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from workers.jobs.training.prompt_course import Attempt, BudgetEnd, drive, mean_for_missing, text_in

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
import json
from tests.workers.jobs.training.test_prompt_course import Notes
from workers.jobs.training.prompt_course import drive
notes = Notes(12)
drive("", range(100, 120), notes, seed=5, first=3, proposals=12)
print(json.dumps(notes.course))
"""


class Notes:
    """Each letter of a prompt solves the tasks whose number it divides; what is asked for is written down."""

    def __init__(self, proposals: int) -> None:
        self.proposals, self.course = proposals, list[tuple[str, list[int]]]()
        self.questions = list[str]()

    def play(self, text: str, tasks: Sequence[int]) -> list[Attempt]:
        self.course.append((text, list(tasks)))
        solved = [any(task % (2 + ord(letter) - ord("a")) == 0 for letter in text) for task in tasks]
        return [Attempt(float(each), {"Score": str(each)}) for each in solved]

    def write(self, parent: str, question: str) -> str | None:
        if len(self.questions) == self.proposals:
            raise BudgetEnd
        self.questions.append(question)
        letter = "abcdefghijkl"[len(self.questions) - 1]
        return None if letter == "c" else parent + letter


def test_the_course_is_the_same_in_every_process() -> None:
    found = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
    assert len({text for text, _ in found[0]}) == 12, "the prompt as it is, and eleven that were of use"


def test_it_ends_with_its_budget_and_a_useless_answer_is_not_played() -> None:
    notes = Notes(4)
    drive("", range(100, 120), notes, seed=1, first=3, proposals=4)
    assert len(notes.questions) == 4
    assert not any("c" in text for text, _ in notes.course)
    assert notes.course[0] == ("", list(range(100, 120)))


def test_it_ends_where_there_is_nothing_to_mend() -> None:
    notes = Notes(4)
    drive("a", range(100, 120, 2), notes, seed=1, first=3, proposals=4)
    assert not notes.questions


@pytest.mark.parametrize("where", ["play", "write"])
@pytest.mark.parametrize("error", [RuntimeError("the database is away"), SystemExit(1)])
def test_what_a_player_raises_ends_the_search_at_once(
    where: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, asked = Notes(4), []

    def fail(*_: object) -> None:
        asked.append(1)
        raise error

    monkeypatch.setattr(notes, where, fail)
    with pytest.raises(type(error)):
        drive("", range(100, 120), notes, seed=1, first=3, proposals=4)
    assert asked == [1], "gepa would have asked again"


def test_a_missing_score_moves_no_sum() -> None:
    assert mean_for_missing([1.0, None, 0.0]) == [1.0, 0.5, 0.0]
    assert mean_for_missing([None, None]) == [0.0, 0.0]


def test_the_prompt_is_what_stands_in_the_fence() -> None:
    assert text_in("Here:\n```text\nBe brief.\n```\nDone.") == "Be brief."
    assert text_in("Be brief.") == "Be brief."
    assert text_in("``` ```") == ""
