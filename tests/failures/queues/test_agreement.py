"""How far reviewers agree in a project, and how often who decided alone was corrected."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.evidence.statistics.estimates import proportion
from flywheel.failures.labels.decisions import decide, undo
from flywheel.failures.models import Failure, Queue, QueueItem, Review
from flywheel.failures.queues import agreement
from flywheel.failures.queues.agreement import Decided
from tests.conftest import Build, Cast

SignIn = Callable[[User], Client]


def test_only_the_first_reviews_that_an_item_needs_count() -> None:
    told = [
        (1, 2, "ada", "a"),
        (1, 2, "bea", "b"),
        (1, 2, "cas", "a"),  # came because the two disagreed
        (2, 2, "ada", "a"),
        (2, 2, "ada", "b"),  # thought better of it
        (2, 2, "bea", "b"),
        (3, 3, "ada", "a"),
        (3, 3, "bea", "a"),  # a third one is wanted
    ]
    assert agreement.first_words(told) == [{"ada": "a", "bea": "b"}, {"ada": "b", "bea": "b"}]


def test_corrections_are_those_counted_by_hand() -> None:
    """Five decisions, three of them changed, two of these by somebody else; one was only said again."""
    found = agreement.corrected(
        [
            Decided("a", 1),
            Decided("a", 1, "b", 2),
            Decided("a", 1, "a", 2),
            Decided("", 1, "b", 2),
            Decided("b", 1, "", 1),
        ]
    )
    assert (found.all, found.by_another) == (proportion(3, 5), proportion(2, 5))
    assert found.buckets == [("a", proportion(1, 3)), ("", proportion(1, 1)), ("b", proportion(1, 1))]
    assert agreement.corrected([]).all.mean is None


def blind(cast: Cast, build: Build, *, needed: int = 2, items: int = 6) -> Queue:
    """A queue whose reviewers agree on all of its items but the last."""
    queue = Queue.objects.create(project=cast.project, name=f"of {needed}", needed=needed, created_by=cast.builder)
    for number in range(items):
        item = QueueItem.objects.create(queue=queue, trajectory=build.trajectory())
        said = "wrong_tool" if number % 2 else ""
        Review.objects.create(item=item, reviewer=cast.reviewer, bucket=said)
        Review.objects.create(item=item, reviewer=cast.builder, bucket=said if number < items - 1 else "other")
    return queue


@pytest.mark.django_db
def test_all_blind_reviews_of_the_period_are_taken_together(cast: Cast, build: Build) -> None:
    first = blind(cast, build)
    blind(cast, build, needed=1)
    since = timezone.now() - timedelta(days=30)
    found = agreement.of_project(cast.project, since)
    assert found.items == 6
    assert {bucket.key if bucket else "": count for bucket, count, _ in found.buckets} == {
        "wrong_tool": 3,
        "": 3,
        "other": 1,
    }
    [pair] = found.pairs
    # 5 of 6 alike; by chance 3/6 * 3/6 + 3/6 * 2/6 of them.
    assert pair.kappa.n == 6
    assert pair.kappa.mean == pytest.approx((5 / 6 - 15 / 36) / (1 - 15 / 36))
    assert found == agreement.of_queue(first)
    Review.objects.update(at=timezone.now() - timedelta(days=40))
    assert agreement.of_project(cast.project, since).items == 0
    assert agreement.of_project(cast.elsewhere, since).items == 0


@pytest.mark.django_db
def test_who_decided_alone_and_was_corrected(cast: Cast, build: Build) -> None:
    stood, changed, slip, joint = [build.trajectory() for _ in range(4)]
    decide(trajectory=stood, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=stood, actor=Actor(cast.builder), bucket="wrong_tool", note="yes")
    decide(trajectory=changed, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=changed, actor=Actor(cast.builder))
    decide(trajectory=slip, actor=Actor(cast.reviewer), bucket="wrong_tool")
    undo(trajectory=slip, actor=Actor(cast.reviewer))
    together = decide(trajectory=joint, actor=Actor(cast.reviewer), bucket="bad_planning")
    queue = Queue.objects.create(project=cast.project, name="two", needed=2, created_by=cast.builder)
    QueueItem.objects.create(queue=queue, trajectory=joint, outcome=together, state=QueueItem.State.DONE)
    decide(trajectory=joint, actor=Actor(cast.builder))
    since = timezone.now() - timedelta(days=30)
    found = agreement.corrections(cast.project, since)
    # Alone: two about `stood`, two about `changed`, and the last about `joint`.
    assert (found.all, found.by_another) == (proportion(1, 5), proportion(1, 5))
    assert found.buckets == [("wrong_tool", proportion(1, 3)), ("", proportion(0, 2))]
    Failure.objects.update(labelled_at=timezone.now() - timedelta(days=40))
    assert agreement.corrections(cast.project, since).all.n == 0


@pytest.mark.django_db
def test_the_page_and_the_call_say_the_same(
    cast: Cast, build: Build, sign_in: SignIn, key: Callable[..., dict[str, str]]
) -> None:
    address = reverse("failures:agreement", args=["acme"])
    empty = sign_in(cast.viewer).get(address, {"days": "x"}).content.decode()
    assert "No item got enough blind reviews" in empty
    assert "No single decisions" in empty
    blind(cast, build)
    row = build.trajectory()
    decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=row, actor=Actor(cast.builder))
    page = sign_in(cast.viewer).get(address, {"days": "30"}).content.decode()
    assert "builder, reviewer" in page
    assert "50.0" in page
    found = Client().get("/api/v1/agreement", headers=key("read")).json()
    assert (found["items"], found["pairs"][0]["kappa"]["n"]) == (6, 6)
    assert found["corrections"]["all"]["mean"] == 0.5
    assert Client().get("/api/v1/agreement?days=0", headers=key("read")).status_code == 422
