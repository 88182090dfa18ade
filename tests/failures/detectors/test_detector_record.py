"""A detector's record in a project: counted as people decide, it says how sure the next proposals are."""

from collections.abc import Callable

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.failures.buckets.bucket_definitions import Wanted, define
from flywheel.failures.detectors import detector_quality
from flywheel.failures.detectors.detector_record import WEIGHT, Record, records
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Proposal
from flywheel.failures.queues.open_queue import Filters, waiting
from flywheel.trajectories.models import Trajectory
from tests.conftest import Build, Cast
from tests.pages import page_of
from workers.jobs.detection import detect_waiting

BROKEN = '{"tool": "email.send", "arguments": {"to": '


@given(st.floats(0, 1), st.integers(0, 500), st.integers(0, 500))
def test_certainty_lies_between_the_score_and_what_was_right_here(score: float, right: int, wrong: int) -> None:
    found = Record(right, right + wrong).certainty(score)
    share = right / (right + wrong) if right + wrong else score
    assert min(score, share) - 1e-9 <= found <= max(score, share) + 1e-9
    assert Record(right + 1, right + wrong + 1).certainty(score) >= found - 1e-12
    assert Record(right, right + wrong + 1).certainty(score) <= found + 1e-12


def test_without_decisions_a_score_is_the_detectors_own() -> None:
    assert Record().certainty(0.85) == pytest.approx(0.85)
    assert Record(0, WEIGHT).certainty(0.9) == pytest.approx(0.45)


def filed(build: Build, cast: Cast, *buckets: str) -> None:
    """Trajectories with broken output, each of which a person then filed so."""
    rows = [build.trajectory(answer=BROKEN) for _ in buckets]
    detect_waiting()
    for row, bucket in zip(rows, buckets, strict=True):
        decide(trajectory=row, actor=Actor(cast.reviewer), bucket=bucket)


@pytest.mark.django_db
def test_what_people_decide_steers_what_is_looked_at_next(build: Build, cast: Cast) -> None:
    build.trajectory(answer=BROKEN)
    detect_waiting()
    before = Trajectory.objects.get()
    filed(build, cast, "format_error", "", "", "bad_planning", "")
    assert records([cast.project.pk]) == {cast.project.pk: {"broken_output": Record(1, 5)}}
    after = build.trajectory(answer=BROKEN)
    detect_waiting()
    after.refresh_from_db()
    assert before.proposed_score is not None
    assert after.proposed_score == pytest.approx(Record(1, 5).certainty(before.proposed_score))
    assert list(waiting(cast.project, Filters())) == [before, after], "the newer one is less certain now"
    own = Proposal.objects.filter(trajectory__in=[before, after]).values_list("own_score", flat=True)
    assert set(own) == {before.proposed_score}, "what is counted over time stays as it was"
    assert records([cast.elsewhere.pk]) == {cast.elsewhere.pk: {}}, "another project's decisions say nothing here"


@pytest.mark.django_db
def test_a_bucket_of_the_projects_own_counts_as_the_one_that_it_is_a_kind_of(build: Build, cast: Cast) -> None:
    wanted = Wanted(label="Cut off", parent="format_error", description="The answer ends in the middle.")
    own = define(project=cast.project, actor=Actor(cast.admin), wanted=wanted)
    filed(build, cast, own.key, "wrong_tool")
    assert records([cast.project.pk])[cast.project.pk]["broken_output"] == Record(1, 2)
    measured = detector_quality.measure_one(cast.project, "broken_output").all.precision
    assert (measured.mean, measured.n) == (0.5, 2), "the page of the detector says the same"


@pytest.mark.django_db
def test_the_desk_shows_the_record_beside_each_proposal(
    build: Build, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    filed(build, cast, "format_error", "")
    row = build.trajectory(answer=BROKEN)
    detect_waiting()
    page = page_of(sign_in(cast.reviewer).get(f"/p/acme/failures/review/{row.trace_id}/"))
    assert "A call that cannot be read as one, right 1 of 2 times" in page
