"""Detectors over stored trajectories: what they propose is replaced, and growth is never missed."""

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from flywheel.core import tools
from flywheel.core.buckets import Context
from flywheel.core.buckets import detect as run_detectors
from flywheel.core.traces import Trace
from flywheel.failures.detect import detect, unread
from flywheel.failures.models import Proposal
from flywheel.trajectories.load import traces_of
from flywheel.trajectories.models import Source, Step, Trajectory
from tests.conftest import Build
from workers.detecting import DETECTING, detect_waiting

pytestmark = pytest.mark.django_db


def test_what_detectors_find_is_stored_with_its_step_and_shown_on_the_trajectory(build: Build) -> None:
    row = build.trajectory(answer='{"tool": "email.send", "arguments": {"to": ')
    assert detect_waiting() == 1
    proposal = row.proposals.first()
    assert proposal is not None
    assert (proposal.bucket, proposal.step) == ("format_error", "s2")
    assert proposal.evidence
    row.refresh_from_db()
    assert (row.proposed_bucket, row.proposed_score) == ("format_error", proposal.score)
    assert unread() == []


def test_a_good_trajectory_gets_no_proposal_and_is_not_read_twice(build: Build) -> None:
    row = build.trajectory(prompt="Meet Bako on friday")
    assert detect_waiting() == 1
    row.refresh_from_db()
    assert (row.proposed_bucket, row.proposed_score) == ("", None)
    assert detect_waiting() == 0


def test_growth_replaces_what_was_proposed(build: Build) -> None:
    row = build.trajectory(answer='{"tool": "email.send", "arguments": {"to": ')
    detect_waiting()
    good = tools.call_text("calendar.create_event", {"person": "Bako", "day": "friday"})
    Step.objects.filter(trajectory=row, span_id="s2").update(output=[{"role": "assistant", "content": good}])
    Trajectory.objects.filter(pk=row.pk).update(changed_at=F("changed_at") + timedelta(seconds=1))
    assert detect_waiting() == 1
    row.refresh_from_db()
    assert row.proposed_bucket == ""
    assert not row.proposals.exists()


def test_what_arrives_while_detectors_read_is_read_in_the_next_pass(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch sets `changed_at` before it commits: the time of reading would hide it, the state that was read not."""
    row = build.trajectory()

    def slow(rows: list[Trajectory]) -> object:
        traces = traces_of(rows)
        Trajectory.objects.filter(pk=row.pk).update(changed_at=F("changed_at") + timedelta(microseconds=1))
        return traces

    monkeypatch.setattr("flywheel.failures.detect.traces_of", slow)
    detect(unread())
    monkeypatch.undo()
    assert [found.pk for found in unread()] == [row.pk]


def test_rollouts_are_judged_and_not_guessed_at(build: Build) -> None:
    build.trajectory(answer="{", source=Source.ROLLOUT)
    assert detect_waiting() == 0
    assert not Proposal.objects.exists()


def test_one_trajectory_that_cannot_be_read_does_not_hold_up_the_others(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = build.trajectory(answer="{"), build.trajectory(answer="{")

    def fragile(trace: Trace, context: Context) -> object:
        if trace.trace_id == bad.trace_id:
            raise RecursionError
        return run_detectors(trace, context)

    monkeypatch.setattr("flywheel.failures.detect.run_detectors", fragile)
    assert detect_waiting() == 2
    assert good.proposals.exists()
    assert not bad.proposals.exists()
    assert unread() == []


def test_a_trajectory_deleted_meanwhile_is_left_out(build: Build) -> None:
    gone, kept = build.trajectory(answer="{"), build.trajectory(answer="{")
    rows = unread()
    Trajectory.objects.filter(pk=gone.pk).delete()
    detect(rows)
    assert set(Proposal.objects.values_list("trajectory", flat=True)) == {kept.pk}


def test_a_second_worker_leaves_the_reading_to_the_first(build: Build) -> None:
    build.trajectory(answer="{")
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [DETECTING])
            assert detect_waiting() == 0
            cursor.execute("SELECT pg_advisory_unlock(%s)", [DETECTING])
        assert detect_waiting() == 1
    finally:
        other.close()


def test_detection_keeps_what_people_decided(build: Build) -> None:
    row = build.trajectory(answer="{")
    row.label, row.label_bucket = "failure", "wrong_tool"
    row.save()
    detect_waiting()
    row.refresh_from_db()
    assert (row.label, row.label_bucket, row.proposed_bucket) == ("failure", "wrong_tool", "format_error")
