"""The last line of `make turn`: what came of the ramps after the approval, or that it did not come to that."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.promotions.candidacy import propose
from flywheel.promotions.models import Candidate
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, agent, evaluated
from workers.programs import story_playback, turn
from workers.programs.releases import turn_ending

__all__ = ["agent", "evaluated"]
ENDING = {"ramp": {"state": "finished"}, "taken_back": {"state": "taken_back"}, "reopened": {"bucket": "wrong_tool"}}
Trained = Callable[[int], Candidate]


def answering(found: Any) -> Callable[..., Any]:
    return lambda *_, **__: found


@pytest.fixture
def trained(build: Build, cast: Cast, agent: Agent, evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """`trained(20)`: training ends with a candidate that is right in so many of 24 attempts; before it were four."""
    task_set = build.task_set(2, 12, environment=build.environment(agent=agent))
    assert agent.live is not None
    live = agent.live
    cast.project.slug = "default"
    cast.project.save()
    told: dict[str, Any] = {
        "agent_with_first_version": agent,
        "environment": None,
        "send_traffic": 60,
        "wait_for_detectors": None,
        "make_tasks": task_set,
        "guard": [],
    }
    for name, found in told.items():
        monkeypatch.setattr(story_playback, name, answering(found))
    monkeypatch.setattr(turn, "_set_up_django", lambda: None)

    def make(passing: int) -> Candidate:
        better = build.version(agent, system_prompt="Answer with exactly one tool call as JSON.")
        candidate = propose(
            version_eval=evaluated(better, task_set, passing=passing),
            baseline_eval=evaluated(live, task_set, passing=4),
            actor=Actor(cast.trainer),
        )
        monkeypatch.setattr(turn, "_train", lambda *_: candidate)
        return candidate

    return make


@pytest.mark.django_db
def test_a_confirmed_candidate_is_let_out_and_the_line_has_what_came_of_it(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, asked = trained(20), list[Any]()

    def go_on(*given: Any) -> dict[str, Any]:
        asked.append(given[:3])
        return ENDING

    monkeypatch.setattr(turn_ending, "go_on", go_on)
    result = turn.turn_wheel("http://here", 0.0)
    assert asked == [(candidate, "http://here", turn.CUSTOMERS.stop)]
    assert {key: result[key] for key in ENDING} == ENDING
    assert (result["verdict"], result["trajectories"], result["tasks"]) == (
        "eligible",
        60,
        {"train": 2, "held_out": 12},
    )


@pytest.mark.django_db
def test_one_that_is_not_confirmed_meets_no_customer_and_the_line_says_none(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(4)
    monkeypatch.setattr(turn_ending, "go_on", lambda *_: pytest.fail("it was let out"))
    result = turn.turn_wheel("http://here", 0.0)
    assert {key: result[key] for key in ENDING} == dict.fromkeys(ENDING)
    assert result["live_before"] == result["live_after"]


def test_the_last_line_is_the_result_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def flywheel_in(home: Path) -> Iterator[str]:
        assert home == tmp_path / "turn"
        assert list(home.iterdir()) == []
        yield "http://here"

    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path))
    (tmp_path / "turn").mkdir()
    (tmp_path / "turn/of the last one").touch()
    monkeypatch.setattr(sys, "argv", ["turn"])
    monkeypatch.setattr(turn, "flywheel_in", flywheel_in)
    monkeypatch.setattr(turn, "turn_wheel", lambda endpoint, _, *, then: {"at": endpoint, "then": then, **ENDING})
    turn.main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last.pop("seconds") >= 0
    assert last == {"at": "http://here", "then": None, **ENDING}
