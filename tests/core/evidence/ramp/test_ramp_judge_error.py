"""The lines of the ramp's table, with few runs of each: `python -m tests.simulate --only ramp` plays 2,000."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from flywheel.core.evidence.ramp.ramp_judge import Judgement, Session
from flywheel.core.evidence.ramp.ramp_plan import ALPHA
from tests import simulated_signals
from tests.simulate_ramps import error_cells, harm_cells, run_length, split_cells
from tests.simulated_cells import Cell
from tests.simulated_signals import PLAN
from tests.simulated_traffic import Traffic, naively, spreads

RUNS = 40
EVERYTHING = Traffic(drift=0.15, share=0, trajectories=20, late=100, missing=0.5)


def shares(cell: Cell) -> tuple[float, float]:
    found = np.mean([cell.once(seed) for seed in range(RUNS)], axis=0)
    return float(found[0]), float(found[1])


def test_all_of_the_chance_of_error_is_spent_and_every_signal_is_played() -> None:
    assert math.fsum(PLAN.alphas.values()) == pytest.approx(ALPHA)
    _, _, parts = simulated_signals.sessions(Traffic(), 1)
    assert set(PLAN.signals) == set(parts)
    assert all(part.max() > 0 for part in parts.values())


def test_columns_and_sessions_are_judged_alike_to_the_last_bit() -> None:
    arm, share, parts = simulated_signals.sessions(EVERYTHING, 2, 300)
    rows = [
        Session(bool(arm[n]), share[n], {key: None if np.isnan(part[n]) else part[n] for key, part in parts.items()})
        for n in range(arm.size)
    ]
    paths, after = Judgement.begin(PLAN).follow(rows)
    columns, of_columns = Judgement.begin(PLAN).follow_columns(arm, share, parts)
    assert np.isnan(parts["failed"]).any()
    assert of_columns == after
    for key, path in columns.items():
        assert_array_equal(path, [row[key] for row in paths])


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name) for cell in error_cells() if "all of" in cell.name])
def test_a_version_that_is_no_worse_is_seldom_taken_back_whatever_the_traffic(cell: Cell) -> None:
    here, naive = shares(cell)
    assert here <= 5 / RUNS < naive  # six or more of 40 have a chance of 1.4% at 5%


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name) for cell in harm_cells() if "50%" in cell.name])
def test_harm_is_found_within_its_sessions(cell: Cell) -> None:
    assert shares(cell)[0] >= 0.75


def test_a_part_of_alpha_takes_some_more_sessions() -> None:
    (cell,) = (each for each in split_cells() if "0.3 to 0.5, share 50%" in each.name)
    value, _ = cell.at_once(RUNS)
    assert 100 < value <= cell.high == 170


def test_no_line_of_harm_is_left_out() -> None:
    names = [cell.name for cell in harm_cells()]
    assert len(names) == 16
    assert any("unsafe" in name and "alpha 1%" in name for name in names)
    assert "ramp, failed 0.3 to 0.4, share 10%, alpha 1.7%: within 5,440" in names


def test_a_watch_runs_as_long_as_promised_and_the_naive_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulate_ramps.WATCHED", 8000)
    here, naive = run_length([0.02, 0.05], 30)
    assert 30 < here <= 40  # of 8,000 of 20,000 sessions, at which it is left
    assert naive < 20


def test_the_naive_interval_is_that_of_two_means() -> None:
    arm, failed = np.array([0.0, 1.0] * 10), np.array([0.0, 1.0, 0.5, 1.0] * 5)
    means, errors = spreads(arm, failed, np.array([4, 20]))
    assert np.isnan(means[0])
    assert means[1] == pytest.approx(failed[arm == 1].mean() - failed[arm == 0].mean())
    assert errors[1] == pytest.approx(np.sqrt(sum(failed[arm == one].var() / 10 for one in (0, 1))))
    assert naively(np.tile(arm, 5), np.tile(failed, 5))
    assert not naively(arm, failed)
