"""Held-out success over versions: only what was measured on one set, and nothing where nothing compares."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from flywheel.agents.models import Agent
from flywheel.agents.pages.success_chart import held_out_chart, marks_of
from tests.conftest import Build
from tests.promotions.conftest import Evaluated, agent, evaluated

__all__ = ["agent", "evaluated"]
pytestmark = pytest.mark.django_db


def test_a_set_is_a_line_once_two_versions_were_measured_on_it(
    agent: Agent,
    build: Build,
    evaluated: Evaluated,
) -> None:
    common, other = build.task_set(name="common", held_out=12), build.task_set(name="other", held_out=12)
    first, second, third = agent.live, *(build.version(agent, system_prompt=words) for words in ("Do.", "Do it."))
    assert first is not None
    evaluated(first, common, passing=2)
    evaluated(first, common, passing=6)
    evaluated(second, other, passing=6)
    assert held_out_chart(agent) is None
    evaluated(third, common, passing=18)
    chart = held_out_chart(agent)
    assert chart is not None
    (line,) = chart["series"]
    assert line["name"] == str(common)
    assert (line["x"], line["y"]) == ([f"v{first.number}", f"v{third.number}"], [25.0, 75.0])
    assert all(low < y < high for low, y, high in zip(line["low"], line["y"], line["high"], strict=True))


def test_a_version_that_a_set_lacks_leaves_a_gap(
    agent: Agent,
    build: Build,
    evaluated: Evaluated,
) -> None:
    versions = [agent.live, *(build.version(agent, system_prompt=words) for words in ("Do.", "Do it."))]
    sets = [build.task_set(name=name, held_out=12) for name in ("one", "two")]
    for version in (versions[0], versions[2]):
        evaluated(version, sets[0], passing=6)
    for version in versions:
        evaluated(version, sets[1], passing=6)
    chart = held_out_chart(agent)
    assert chart is not None
    assert {line["name"]: line["y"] for line in chart["series"]} == {
        str(sets[0]): [25.0, None, 25.0],
        str(sets[1]): [25.0, 25.0, 25.0],
    }


def test_moves_of_one_day_share_a_mark() -> None:
    moves = [
        SimpleNamespace(created_at=datetime(2026, 11, day, 9, tzinfo=UTC), after=SimpleNamespace(number=number))
        for day, number in ((26, 2), (27, 3), (27, 2))
    ]
    assert marks_of(moves) == [{"x": "2026-11-26", "label": "v2 live"}, {"x": "2026-11-27", "label": "v3, v2 live"}]
