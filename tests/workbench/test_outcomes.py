"""Recorded runs under the `workplace` verifier, beside WorkBench's own rules: every difference has a known cause."""

import pytest

from flywheel.core.verifiers import REPLAY, UNREAD
from tests.workbench import outcomes

pytestmark = pytest.mark.skipif(not outcomes.RUNS.exists(), reason="the recorded runs are not here")


@pytest.fixture(scope="module")
def found() -> list[outcomes.Run]:
    return list(outcomes.runs())


def test_what_is_not_scored_has_its_reason_and_no_difference_is_unexplained(found: list[outcomes.Run]) -> None:
    assert len(found) == 280
    causes = [run.verdict.cause for run in found if run.verdict.score is None]
    assert [run.id for run in found if run.is_unread != (run.verdict.cause == UNREAD)] == []
    assert (causes.count(UNREAD), causes.count(REPLAY), len(causes)) == (37, 2, 39)
    assert [run.id for run in found if run.success and run.error] == []
    assert outcomes.disagreements(found)["something else"] == []


def test_the_page_shows_these_tables(found: list[outcomes.Run]) -> None:
    assert outcomes.tables_of(found) in outcomes.PAGE.read_text()


def test_the_expected_calls_of_every_task_leave_what_is_wanted_by_both_rules() -> None:
    before = outcomes.tables()
    assert outcomes.carried_out(before, ['calendar.delete_event.func(event_id="00000256")']) != before
    assert outcomes.carried_out(before, ["calendar.burn.func()", "not python("]) == before
    for domain in outcomes.FILES.values():
        for task in outcomes.tasks(domain):
            assert (outcomes.by_target(before, task) != before) == bool(task.target["calls"])
