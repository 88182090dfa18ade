"""The benchmark itself: it runs, what it sends arrives, and what it says adds up."""

import pytest

from tests import bench_ingest
from tests.bench_ingest import Plan
from tests.benching import bodies, client
from tests.benching.report import table


@pytest.mark.xdist_group("processes")
def test_a_second_of_it_on_an_installation_of_its_own() -> None:
    found = bench_ingest.measure(Plan(seconds=1, only=("flywheel",), soak_s=1, soak_rate=500, burst_s=1))
    ours = found["flywheel"]
    assert ours["accepted"] == ours["seen"] > 0
    assert ours["codes"] == {"200": ours["accepted"] // bodies.SPANS}
    assert set(ours["cpu_us"]) >= {"web", "postgresql", "worker", "client"}
    assert set(found["burst"]["codes"]) <= {"200", "503"}
    assert set(found["burst"]["afterwards"]) == {"200"}
    assert found["burst"]["missing"] == found["soak"]["missing"] == 0
    assert found["soak"]["codes"].keys() == {"200"}
    assert ours["after_kill"]["missing"] == 0
    assert ours["after_kill"]["stored"] >= ours["after_kill"]["acknowledged"] > 0
    assert ours["after_kill"]["ledger_holds"]
    assert "spans accepted" in table(found["rows"])
    assert any(line.startswith("flywheel:") for line in bench_ingest.sentences(found))


def test_a_peer_that_cannot_be_had_is_left_out_with_a_reason() -> None:
    told = bench_ingest.sentences({"skipped": {"phoenix": "arize-phoenix cannot be installed (no route)"}})
    assert told == ["phoenix is left out: arize-phoenix cannot be installed (no route)"]


def test_a_quantile_is_one_of_the_values() -> None:
    found = client.Found(ms=[float(number) for number in range(100)])
    assert (found.quantile(0.5), found.quantile(0.99), found.quantile(1.0)) == (50.0, 99.0, 99.0)
