"""Groups that have ended are kept whole, only by who wrote them, and for as long as a checkpoint could want them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.core.verifiers import Verdict
from tests.workers.trainers.run.test_kept_attempts import attempt
from workers.trainers.attempts.live_engine import Episode
from workers.trainers.attempts.sampled_groups import FOLDER, SampledGroup, SampledGroups
from workers.trainers.attempts.step_attempts import Group
from workers.trainers.run import checkpoints

UNSCORED = Verdict(None, "its judge did not answer", cause="judge")


def run_in(path: Path, digest: str = "0123") -> Any:
    return SimpleNamespace(path=path, work=path / "work", spec=SimpleNamespace(digest=digest))


def group(begun: int, newest: int, *scores: float | None) -> SampledGroup:
    rollouts = [attempt(score, number).rollout for number, score in enumerate(scores)]
    verdicts = [UNSCORED if score is None else Verdict(score, "right", {"form": 1.0, "who": None}) for score in scores]
    earned = [verdict if verdict.score is None else Verdict(0.1 + 0.2, "by the recipe") for verdict in verdicts]
    tokens = Episode([1, 2], [3, 4, 5], [1, 0, 1], [-0.1, 0.0, -1 / 3], [begun, newest], [1, 1], 3)
    return SampledGroup(7, begun, Group(rollouts, verdicts, earned), [tokens] * len(scores), 2)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in (path / FOLDER).glob("*"))


def test_what_is_read_is_what_was_kept(tmp_path: Path) -> None:
    kept = group(2, 3, 1.0, None, 0.5)
    SampledGroups(run_in(tmp_path)).keep(12, kept)
    found, damaged = SampledGroups(run_in(tmp_path)).read()
    assert found == {12: kept}
    assert found[12].newest == 3
    assert not damaged


def test_a_group_without_any_score_is_not_kept(tmp_path: Path) -> None:
    SampledGroups(run_in(tmp_path)).keep(12, group(2, 3, None, None))
    assert SampledGroups(run_in(tmp_path)).read() == ({}, {})


@pytest.mark.parametrize("size", [0, 10, 64, 65, 300, -1])
def test_half_a_file_is_left_out_and_named(size: int, tmp_path: Path) -> None:
    groups = SampledGroups(run_in(tmp_path))
    for number in (3, 4):
        groups.keep(number, group(0, 0, 1.0))
    torn = tmp_path / FOLDER / "group-3.json"
    torn.write_bytes(torn.read_bytes()[:size])
    found, damaged = groups.read()
    assert found.keys() == {4}
    assert damaged == {"group-3.json": "it was not written by this run, or not to its end"}
    assert names(tmp_path) == ["group-4.json"]


def test_what_another_run_or_another_spec_wrote_is_left_out(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    SampledGroups(run_in(tmp_path / "one")).keep(1, group(0, 0, 1.0))
    file = tmp_path / "one" / FOLDER / "group-1.json"
    (tmp_path / "two" / FOLDER).mkdir()
    (tmp_path / "two" / FOLDER / "group-1.json").write_bytes(file.read_bytes())
    file.with_name("group-2.json").write_bytes(file.read_bytes())
    assert SampledGroups(run_in(tmp_path / "two")).read()[1].keys() == {"group-1.json"}
    assert SampledGroups(run_in(tmp_path / "one")).read()[1] == {"group-2.json": "it is of another group or spec.json"}
    assert SampledGroups(run_in(tmp_path / "one", "4567")).read()[1].keys() == {"group-1.json"}


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([], [1, 2, 5]),
        ([2], [2, 4, 5]),
        ([2, 4], [2, 3, 4, 5]),
        ([4], [3, 5]),
        ([6], [5]),
    ],
)
def test_a_group_that_was_learnt_from_stays_for_the_checkpoints_from_before_that(
    steps: list[int], left: list[int], tmp_path: Path
) -> None:
    for step in steps:
        (tmp_path / checkpoints.PLACE / f"step-{step}").mkdir(parents=True)
    groups = SampledGroups(run_in(tmp_path))
    for number, (begun, newest) in enumerate([(0, 0), (0, 0), (3, 4), (1, 2), (6, 6)], 1):
        groups.keep(number, group(begun, newest, 1.0))
    groups.sweep({1: 0, 2: 2, 3: 4, 4: 3})
    assert names(tmp_path) == [f"group-{number}.json" for number in left]


def test_they_go_when_nothing_is_to_be_learnt_from_them(tmp_path: Path) -> None:
    groups = SampledGroups(run_in(tmp_path))
    groups.keep(1, group(0, 0, 1.0))
    groups.drop()
    groups.drop()
    assert not (tmp_path / FOLDER).exists()
