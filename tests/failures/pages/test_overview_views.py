"""The room's page and a bucket's: counts that lead to their lists, and what stands there while there is nothing."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.failures.buckets import bucket_counts
from flywheel.failures.labels.decisions import decide, undo
from flywheel.trajectories.models import Source
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
BROKEN = "{"


def test_an_empty_project_says_what_to_do(cast: Cast, sign_in: SignIn, build: Build) -> None:
    page = sign_in(cast.viewer).get(reverse("failures:index", args=["acme"])).content.decode()
    assert "No trajectories to read yet" in page
    build.trajectory()
    page = sign_in(cast.viewer).get(reverse("failures:index", args=["acme"])).content.decode()
    assert "No failures proposed" in page


def test_counts_follow_proposals_decisions_and_tasks(cast: Cast, build: Build) -> None:
    rows = [build.trajectory(answer=BROKEN) for _ in range(4)]
    build.trajectory()
    build.trajectory(answer=BROKEN, source=Source.ROLLOUT)
    detect_waiting()
    failure = decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="format_error")
    decide(trajectory=rows[1], actor=Actor(cast.reviewer))
    build.task(failure=failure, bucket="format_error")
    days = bucket_counts.period(cast.project, 14)
    (found,), traffic = bucket_counts.by_bucket(cast.project, days)
    assert found.bucket.key == "format_error"
    assert (found.waiting, found.confirmed, found.tasks, found.in_period) == (2, 1, 1, 3)
    assert traffic == 5
    assert found.share == 3 / 5
    assert sum(found.trend) == 3
    undo(trajectory=rows[0], actor=Actor(cast.reviewer))
    (found,), _ = bucket_counts.by_bucket(cast.project, days)
    assert (found.waiting, found.confirmed) == (3, 0)


def test_the_pages_link_counts_to_their_lists(cast: Cast, sign_in: SignIn, build: Build) -> None:
    rows = [build.trajectory(answer=BROKEN, prompt=f"Request {n}") for n in range(2)]
    detect_waiting()
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="format_error")
    client = sign_in(cast.reviewer)
    page = client.get(reverse("failures:index", args=["acme"])).content.decode()
    assert reverse("failures:bucket", args=["acme", "format_error"]) in page
    assert reverse("failures:queue", args=["acme"]) + "?bucket=format_error" in page
    page = client.get(reverse("failures:bucket", args=["acme", "format_error"])).content.decode()
    assert BUCKETS["format_error"].description in page
    assert "Request 0" in page
    assert "Request 1" in page


@pytest.mark.parametrize("key", list(BUCKETS))
def test_every_bucket_has_its_page_even_when_it_is_empty(cast: Cast, sign_in: SignIn, key: str) -> None:
    assert sign_in(cast.viewer).get(reverse("failures:bucket", args=["acme", key])).status_code == 200
    assert sign_in(cast.stranger).get(reverse("failures:bucket", args=["acme", key])).status_code == 404


def test_an_unknown_bucket_is_not_there(cast: Cast, sign_in: SignIn) -> None:
    assert sign_in(cast.viewer).get(reverse("failures:bucket", args=["acme", "weird"])).status_code == 404
