"""Decisions of people: appended, superseded, undone; two people at once; what does not fit is refused."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry
from flywheel.edge.refusals import Refused
from flywheel.failures.detectors.detector_settings import switch
from flywheel.failures.labels.decisions import Superseded, decide, undo
from flywheel.failures.models import Decision, Failure
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}

pytestmark = pytest.mark.django_db


@pytest.fixture
def row(build: Build) -> Trajectory:
    return build.trajectory(answer="{")


def test_a_decision_is_appended_and_supersedes_the_one_before(cast: Cast, row: Trajectory) -> None:
    first = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    second = decide(trajectory=row, actor=Actor(cast.builder), bucket="format_error", note="cut off", corrected=RIGHT)
    first.refresh_from_db()
    assert (first.current, first.bucket) == (False, "wrong_tool")
    assert (second.current, second.corrected) == (True, RIGHT)
    row.refresh_from_db()
    assert (row.label, row.label_bucket) == ("failure", "format_error")
    actions = list(AuditEntry.objects.order_by("pk").values_list("actor__username", "action", "reason"))
    assert actions == [("reviewer", "failures.added", ""), ("builder", "failures.added", "cut off")]


def test_the_decision_follows_from_what_was_proposed(cast: Cast, build: Build, row: Trajectory) -> None:
    detect_waiting()
    assert decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error").decision == Decision.CONFIRMED
    assert decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool").decision == Decision.CHANGED
    assert decide(trajectory=row, actor=Actor(cast.reviewer)).decision == Decision.REJECTED
    row.refresh_from_db()
    assert (row.label, row.label_bucket) == ("pass", "")
    plain = build.trajectory()
    assert decide(trajectory=plain, actor=Actor(cast.reviewer), bucket="wrong_tool").decision == Decision.ADDED


def test_undo_goes_back_step_by_step_and_keeps_the_record(cast: Cast, row: Trajectory) -> None:
    made = [
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket=b)
        for b in ("wrong_tool", "format_error", "bad_planning")
    ]
    expected: list[tuple[str, str]] = [("failure", "format_error"), ("failure", "wrong_tool"), ("", "")]
    for label in expected:
        undo(trajectory=row, actor=Actor(cast.reviewer))
        row.refresh_from_db()
        assert (row.label, row.label_bucket) == label
    assert undo(trajectory=row, actor=Actor(cast.reviewer)) is None
    assert Failure.objects.filter(taken_back_at__isnull=False).count() == len(made)


def test_what_is_without_a_label_again_is_read_again(cast: Cast, row: Trajectory) -> None:
    detect_waiting()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error")
    switch(project=cast.project, actor=Actor(cast.admin), name="broken_output", is_on=False)
    detect_waiting()
    undo(trajectory=row, actor=Actor(cast.reviewer))
    detect_waiting()
    row.refresh_from_db()
    assert "format_error" not in row.proposals.values_list("bucket", flat=True)


def test_after_undo_and_a_new_decision_undo_skips_what_was_taken_back(cast: Cast, row: Trajectory) -> None:
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error")
    undo(trajectory=row, actor=Actor(cast.reviewer))
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="bad_planning")
    before = undo(trajectory=row, actor=Actor(cast.reviewer))
    assert before is not None
    assert (before.bucket, before.current) == ("wrong_tool", True)


def test_the_second_of_two_people_learns_of_the_first(cast: Cast, row: Trajectory) -> None:
    first = decide(trajectory=row, actor=Actor(cast.builder), bucket="wrong_tool", seen=0)
    with pytest.raises(Superseded, match=r"builder decided wrong tool since you opened this") as caught:
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", seen=0)
    assert caught.value.current == first
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="format_error", seen=first.pk)
    with pytest.raises(Superseded):
        undo(trajectory=row, actor=Actor(cast.builder), seen=first.pk)
    row.refresh_from_db()
    assert row.label_bucket == "format_error"


def test_the_same_decision_sent_twice_is_one(cast: Cast, row: Trajectory) -> None:
    sent: dict[str, Any] = {"bucket": "wrong_tool", "step": "s2", "corrected": RIGHT, "note": "twice", "seen": 0}
    first = decide(trajectory=row, actor=Actor(cast.reviewer), **sent)
    assert decide(trajectory=row, actor=Actor(cast.reviewer), **sent) == first
    assert row.failures.count() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bucket": "weird"}, "bucket: 'weird' is unknown, expected one of format_error"),
        ({"bucket": "other"}, "note: describe what is wrong"),
        ({"bucket": "wrong_tool", "step": "s99"}, "step: this trajectory has no step 's99'"),
        ({"bucket": "", "corrected": RIGHT}, "corrected: leave empty if nothing is wrong"),
        ({"bucket": "wrong_tool", "note": "x" * 10_001}, "note: 10001 characters; at most"),
        ({"bucket": "wrong_tool", "note": "a\0b"}, "null character"),
        ({"bucket": "wrong_tool", "corrected": {"tool": "email.send"}}, "expected"),
        ({"bucket": "wrong_tool", "corrected": {"text": "  "}}, "text: write the answer"),
        (
            {"bucket": "wrong_tool", "corrected": {"tool": "x", "arguments": {}}},
            "tool: 'x' is unknown; use one of calendar",
        ),
        (
            {"bucket": "wrong_tool", "corrected": {"tool": "email.send", "arguments": {"to": 7, "subject": "s"}}},
            "to: 7 is not of type 'string'",
        ),
        (
            {"bucket": "wrong_tool", "corrected": {"tool": "email.send", "arguments": {"to": float("nan")}}},
            "plain JSON",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_field(
    cast: Cast, row: Trajectory, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(Refused) as caught:
        decide(trajectory=row, actor=Actor(cast.reviewer), **fields)
    assert message in str(caught.value)
    assert not row.failures.exists()


def test_a_decision_and_its_bucket_must_agree(cast: Cast, row: Trajectory) -> None:
    with pytest.raises(Refused, match="leave empty"):
        decide(trajectory=row, actor=Actor(cast.reviewer), decision=Decision.REJECTED, bucket="wrong_tool")
    with pytest.raises(Refused, match="unknown"):
        decide(trajectory=row, actor=Actor(cast.reviewer), decision=Decision.CONFIRMED)


def test_a_hostile_schema_does_not_stop_the_reviewer(cast: Cast, build: Build) -> None:
    hostile = [
        {"name": "t", "parameters": {"type": "object", "properties": {"a": {"pattern": "(a+)+$", "type": "no"}}}}
    ]
    row = build.trajectory(tools=hostile)
    corrected = {"tool": "t", "arguments": {"a": "a" * 60 + "!"}}
    assert (
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool", corrected=corrected).corrected
        == corrected
    )


def test_the_database_holds_one_current_decision_a_trajectory(cast: Cast, row: Trajectory) -> None:
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    with pytest.raises(IntegrityError), transaction.atomic():
        Failure.objects.create(
            project=row.project, trajectory=row, decision="added", bucket="wrong_tool", labelled_by=cast.reviewer
        )
