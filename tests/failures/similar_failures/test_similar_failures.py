"""Clusters of failures: made by a worker, changed by people, and no member is ever lost."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.core.evidence.similarity import average_linkage as grouping
from flywheel.core.evidence.similarity import failure_similarity
from flywheel.edge.jobs import Lease, State
from flywheel.edge.refusals import Refused
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Cluster, Clustering, Failure, Member, Sketch
from flywheel.failures.similar_failures import cluster_edits, clusterings, sketches
from flywheel.failures.similar_failures.cluster_edits import NEW, REST
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.operations.deletion import delete
from tests.conftest import Build, Cast
from tests.worker import Worker
from workers.jobs import failure_clusters
from workers.jobs.detection import detect_waiting

SignIn = Callable[[User], Client]
PEOPLE = ["Bako", "Nadia", "Jinsoo", "Fatima", "Santiago", "Yuki", "Raj"]
KINDS = {
    "format": ("Write an email to {} about the budget", '{{"tool": "email.send", "arguments": {{"to": "{}'),
    "tool": (
        "Put lunch with {} into the calendar",
        '{{"tool": "diary.add_lunch", "arguments": {{"guest": "{}", "dish": "soup"}}}}',
    ),
}

pytestmark = pytest.mark.django_db


def kind_of(row: Trajectory) -> str:
    return "format" if row.title.startswith("Write") else "tool"


@pytest.fixture
def rows(build: Build) -> list[Trajectory]:
    """Seven failures of each of two kinds, proposed, and one that is none."""
    made = [
        build.trajectory(prompt=asked.format(person), answer=answer.format(person))
        for person in PEOPLE
        for asked, answer in KINDS.values()
    ]
    build.trajectory()
    detect_waiting()
    return list(Trajectory.objects.filter(pk__in=[row.pk for row in made]).order_by("pk"))


def submitted(cast: Cast, key: uuid.UUID | None = None, **wanted: Any) -> Clustering:
    selection = clusterings.Selection(**wanted)
    return clusterings.submit(
        project=cast.project, actor=Actor(cast.reviewer), key=key or uuid.uuid4(), selection=selection
    )


@pytest.fixture(autouse=True)
def _patience(settings: Any) -> None:
    """A guard's limit holds until the end of the test's own transaction."""
    settings.JOB_LEASE_SECONDS = 600


def work(job: Clustering) -> Clustering:
    """As a worker does it, but for the thread that renews the lease, which would not see the test's transaction."""
    lease = Clustering.claim(job.pk)
    assert isinstance(lease, Lease)
    error: Exception | None = None
    try:
        failure_clusters.cluster(lease)
    except Exception as raised:
        error = raised
    lease._end(error)
    job.refresh_from_db()
    return job


def clustered(cast: Cast, **wanted: Any) -> Clustering:
    job = work(submitted(cast, **wanted))
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    return job


def shape(job: Clustering) -> list[tuple[str, int]]:
    """Kinds of the members of each cluster, and the rest."""
    found = []
    for cluster in job.clusters.order_by("-size", "pk"):
        kinds = {kind_of(member.trajectory) for member in cluster.members.select_related("trajectory")}
        assert cluster.size == cluster.members.count()
        found.append(("rest" if cluster.is_rest else " ".join(sorted(kinds)), cluster.size))
    assert len(set(Member.objects.filter(clustering=job).values_list("trajectory", flat=True))) == sum(
        size for _, size in found
    )
    return found


def test_failures_are_clustered_and_each_cluster_says_what_it_is(cast: Cast, rows: list[Trajectory]) -> None:
    job = clustered(cast)
    assert sorted(shape(job)) == [("format", 7), ("tool", 7)]
    found = {kind_of(cluster.medoid): cluster for cluster in job.clusters.select_related("medoid") if cluster.medoid}
    assert {"write", "email", "budget"} <= set(found["format"].words)
    assert "diary.add_lunch(dish, guest)" in found["tool"].calls
    assert all(0.5 < (cluster.cohesion or 0) <= 1 for cluster in found.values())
    likeness = Member.objects.filter(clustering=job).values_list("likeness", flat=True)
    assert all(0.5 < one <= 1 for one in likeness)
    assert (job.done, job.total) == (14, 14)
    assert job.report == {
        "found": 14,
        "compared": 14,
        "unreadable": 0,
        "clusters": 2,
        "alone": 0,
        "linked": 14,
        "apart": 0.5,
        "seed": 0,
        "first": "2026-11-01",
        "last": "2026-11-01",
    }
    assert AuditEntry.objects.get(action="failures.cluster").subject == f"clustering {job.pk}"


def test_what_detectors_proposed_is_ready_to_be_compared(cast: Cast, rows: list[Trajectory]) -> None:
    assert set(Sketch.objects.values_list("trajectory", flat=True)) == {row.pk for row in rows}
    assert sketches.unread([row.pk for row in rows]) == []


def test_a_label_is_read_too_and_what_is_no_failure_any_more_is_forgotten(cast: Cast, rows: list[Trajectory]) -> None:
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="other", note="zebra crossing")
    assert sketches.unread([row.pk for row in rows]) == [rows[0].pk]
    assert sketches.catch_up() == 1
    assert sketches.catch_up() == 0
    assert "zebra" in sketches.terms_of([rows[0].pk])[rows[0].pk]["wrong"]
    decide(trajectory=rows[0], actor=Actor(cast.reviewer))
    sketches.keep([rows[0].pk])
    assert not Sketch.objects.filter(trajectory=rows[0]).exists()


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 14),
        ({"which": "confirmed"}, 2),
        ({"which": "proposed"}, 12),
        ({"bucket": "format_error"}, 5),
        ({"bucket": "format_error", "which": "confirmed"}, 1),
        ({"which": "confirmed", "bucket": "unsafe_action"}, 0),
        ({"days": 1}, 3),
        ({"q": "env:staging"}, 4),
    ],
)
def test_a_clustering_is_about_what_was_asked_for(
    cast: Cast, build: Build, rows: list[Trajectory], wanted: dict[str, Any], count: int
) -> None:
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="format_error")
    decide(trajectory=rows[2], actor=Actor(cast.reviewer), bucket="wrong_tool")
    decide(trajectory=rows[4], actor=Actor(cast.reviewer))
    extra = build.trajectory(answer=KINDS["tool"][1].format("Lena"))
    build.trajectory(answer=KINDS["tool"][1].format("Lena"), project=cast.elsewhere)
    build.trajectory(answer=KINDS["tool"][1].format("Lena"), source=Source.ROLLOUT)
    detect_waiting()
    Trajectory.objects.filter(pk__in=[row.pk for row in rows]).update(started_at=timezone.now() - timedelta(days=20))
    Trajectory.objects.filter(pk__in=[rows[0].pk, rows[1].pk, extra.pk]).update(started_at=timezone.now())
    Trajectory.objects.filter(pk__in=[row.pk for row in rows[1:5]] + [extra.pk]).update(environment="staging")
    job = submitted(cast, **wanted)
    build.trajectory(answer=KINDS["tool"][1].format("Carlos"), environment="staging")
    detect_waiting()
    assert work(job).report["found"] == count
    assert job.state == State.SUCCEEDED
    assert sum(size for _, size in shape(job)) == count


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"which": "x"}, "which"),
        ({"by": "x"}, "by"),
        ({"fineness": "x"}, "fineness"),
        ({"bucket": "x"}, "bucket"),
        ({"days": 2}, "days"),
        ({"q": "nonsense:x"}, "q"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(cast: Cast, wanted: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused, match=f"^{named}: "):
        submitted(cast, **wanted)


def test_more_than_can_be_compared_is_cut_at_the_newest_and_said(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusterings, "AT_MOST", 10)
    job = clustered(cast)
    assert (job.report["found"], job.report["compared"]) == (14, 10)
    assert set(Member.objects.values_list("trajectory", flat=True)) == {row.pk for row in rows[4:]}


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_failures_are_enough(cast: Cast, build: Build, count: int) -> None:
    for person in PEOPLE[:count]:
        build.trajectory(prompt=KINDS["tool"][0].format(person), answer=KINDS["tool"][1].format(person))
    detect_waiting()
    assert shape(clustered(cast)) == ([("rest", 1)] if count == 1 else [("tool", 2)])


def test_a_double_click_makes_one_clustering_and_a_second_attempt_one_result(
    cast: Cast, rows: list[Trajectory]
) -> None:
    key = uuid.uuid4()
    job = submitted(cast, key=key)
    assert submitted(cast, key=key) == job
    lease = Clustering.claim(job.pk)
    assert lease is not None
    failure_clusters.cluster(lease)  # and dies before it can say so
    Clustering.objects.filter(pk=job.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert work(job).state == State.SUCCEEDED
    assert sorted(shape(job)) == [("format", 7), ("tool", 7)]


def test_a_cancelled_one_writes_nothing_and_can_be_resumed(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(cast)
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "cancelled", property(lambda _: True))
        assert work(job).state == State.CANCELLED
    assert not job.clusters.exists()
    job.resume(Actor(cast.reviewer))
    assert work(job).state == State.SUCCEEDED
    assert sorted(shape(job)) == [("format", 7), ("tool", 7)]


def test_a_failure_that_cannot_be_read_is_left_out_and_said(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    Sketch.objects.all().delete()
    read = failure_similarity.read

    def breaks(trace: Any, *rest: Any) -> Any:
        if trace.trace_id == rows[3].trace_id:
            raise RecursionError
        return read(trace, *rest)

    monkeypatch.setattr(failure_similarity, "read", breaks)
    job = clustered(cast)
    assert (job.report["compared"], job.report["unreadable"]) == (13, 1)


def test_a_long_trajectory_is_read_in_parts(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sketches.terms_of([rows[0].pk])
    monkeypatch.setattr(sketches, "LONG", 2)
    assert sketches.terms_of([rows[0].pk]) == whole


# What people change


def by_kind(job: Clustering) -> dict[str, Cluster]:
    return {kind_of(cluster.medoid): cluster for cluster in job.clusters.select_related("medoid") if cluster.medoid}


def test_clusters_are_merged_into_the_largest(cast: Cast, rows: list[Trajectory]) -> None:
    job = clustered(cast)
    found = by_kind(job)
    cluster_edits.rename(cluster=found["tool"], name="lunches", actor=Actor(cast.reviewer))
    merged = cluster_edits.merge(
        clustering=job, clusters=[one.pk for one in found.values()], actor=Actor(cast.reviewer)
    )
    merged.refresh_from_db()
    assert shape(job) == [("format tool", 14)]
    assert merged.name == "lunches"
    assert merged.cohesion is not None
    assert merged.cohesion < min(one.cohesion or 0 for one in found.values())
    assert AuditEntry.objects.filter(action="failures.merge_clusters").count() == 1


def test_members_are_moved_into_a_new_cluster_to_another_and_to_the_rest(cast: Cast, rows: list[Trajectory]) -> None:
    job = clustered(cast)
    found = by_kind(job)
    few = [row.trace_id for row in rows if kind_of(row) == "format"][:2]
    move = partial(cluster_edits.move, actor=Actor(cast.reviewer))
    fresh = move(cluster=found["format"], trace_ids=few, to=NEW)
    assert sorted(shape(job)) == [("format", 2), ("format", 5), ("tool", 7)]
    move(cluster=fresh, trace_ids=few[:1], to=REST)
    assert sorted(shape(job)) == [("format", 1), ("format", 5), ("rest", 1), ("tool", 7)]
    move(cluster=fresh, trace_ids=few[1:], to=str(found["tool"].pk))
    assert sorted(shape(job)) == [("format", 5), ("format tool", 8), ("rest", 1)]
    rest = job.clusters.get(is_rest=True)
    move(cluster=rest, trace_ids=few[:1], to=str(found["format"].pk))
    assert sorted(shape(job)) == [("format", 6), ("format tool", 8)]


def test_a_cluster_is_taken_apart_by_a_worker_and_keeps_its_largest_part(cast: Cast, rows: list[Trajectory]) -> None:
    job = clustered(cast)
    found = by_kind(job)
    few = [row.trace_id for row in rows if kind_of(row) == "format"][:2]
    cluster_edits.move(cluster=found["format"], trace_ids=few, to=str(found["tool"].pk), actor=Actor(cast.reviewer))
    mixed = found["tool"]
    mixed.refresh_from_db()
    inner = clusterings.take_apart(cluster=mixed, actor=Actor(cast.reviewer), key=uuid.uuid4())
    with pytest.raises(Refused, match="being split"):
        cluster_edits.merge(clustering=job, clusters=[one.pk for one in found.values()], actor=Actor(cast.reviewer))
    assert work(inner).state == State.SUCCEEDED
    assert inner.report["clusters"] == 2
    assert not inner.clusters.exists()
    assert sorted(shape(job)) == [("format", 2), ("format", 5), ("tool", 7)]
    assert {kind_of(member.trajectory) for member in mixed.members.select_related("trajectory")} == {"tool"}


@pytest.mark.parametrize("wrong", ["one", "rest", "gone", "foreign"])
def test_what_cannot_be_merged_is_refused(cast: Cast, rows: list[Trajectory], wrong: str) -> None:
    job = clustered(cast)
    first, second = job.clusters.order_by("pk")
    keys = {"one": [first.pk], "gone": [first.pk, 10**9], "foreign": [first.pk], "rest": [first.pk, second.pk]}[wrong]
    if wrong == "rest":
        Cluster.objects.filter(pk=second.pk).update(is_rest=True)
    if wrong == "foreign":
        other = clustered(cast).clusters.first()
        assert other is not None
        keys.append(other.pk)
    with pytest.raises(Refused, match=r"^clusters: "):
        cluster_edits.merge(clustering=job, clusters=keys, actor=Actor(cast.reviewer))
    assert sum(size for _, size in shape(job)) == 14


@pytest.mark.parametrize("to", ["new", "nowhere", "itself", "9" * 30, "0"])
def test_what_cannot_be_moved_is_refused(cast: Cast, rows: list[Trajectory], to: str) -> None:
    job = clustered(cast)
    cluster = by_kind(job)["tool"]
    every = [row.trace_id for row in rows if kind_of(row) == "tool"]
    with pytest.raises(Refused):
        cluster_edits.move(
            cluster=cluster, trace_ids=every, to=str(cluster.pk) if to == "itself" else to, actor=Actor(cast.reviewer)
        )
    for wrong in ([], [*every, rows[0].trace_id]):
        with pytest.raises(Refused, match=r"^trace_ids: "):
            cluster_edits.move(cluster=cluster, trace_ids=wrong, to=REST, actor=Actor(cast.reviewer))
    assert sorted(shape(job)) == [("format", 7), ("tool", 7)]


def test_nothing_is_changed_while_it_is_made(cast: Cast, rows: list[Trajectory]) -> None:
    job = submitted(cast)
    cluster = Cluster.objects.create(clustering=job)
    for change in (
        lambda: cluster_edits.merge(clustering=job, clusters=[cluster.pk], actor=Actor(cast.reviewer)),
        lambda: cluster_edits.move(cluster=cluster, trace_ids=["x"], to=NEW, actor=Actor(cast.reviewer)),
        lambda: cluster_edits.forget(clustering=job, actor=Actor(cast.reviewer)),
    ):
        with pytest.raises(Refused, match=r"^clustering: "):
            change()


def test_a_name_is_given_and_refused(cast: Cast, rows: list[Trajectory]) -> None:
    cluster = by_kind(clustered(cast))["tool"]
    cluster_edits.rename(cluster=cluster, name=" Lunch in no diary ", actor=Actor(cast.reviewer))
    assert str(Cluster.objects.get(pk=cluster.pk)) == "Lunch in no diary"
    for wrong in ("x" * 101, "a\nb", "\0"):
        with pytest.raises(Refused, match=r"^name: "):
            cluster_edits.rename(cluster=cluster, name=wrong, actor=Actor(cast.reviewer))


def test_forgetting_a_clustering_leaves_failures_and_decisions(cast: Cast, rows: list[Trajectory]) -> None:
    decide(trajectory=rows[0], actor=Actor(cast.reviewer), bucket="format_error")
    job = clustered(cast)
    cluster_edits.forget(clustering=job, actor=Actor(cast.reviewer))
    assert not Clustering.objects.exists()
    assert not Member.objects.exists()
    assert (Trajectory.objects.count(), Failure.objects.count()) == (15, 1)


# What goes with a trajectory


def test_a_deleted_trajectory_takes_its_words_with_it_and_the_cluster_is_told_anew(
    cast: Cast, rows: list[Trajectory]
) -> None:
    job = clustered(cast)
    cluster = by_kind(job)["format"]
    assert cluster.medoid is not None
    delete(trajectory=cluster.medoid, actor=Actor(cast.admin), reason="")
    cluster.refresh_from_db()
    assert (cluster.words, cluster.calls, cluster.size, cluster.is_stale) == ([], [], 6, True)
    assert cluster_edits.catch_up() == 1
    assert cluster_edits.catch_up() == 0
    cluster.refresh_from_db()
    assert "email" in cluster.words
    assert cluster.medoid is not None
    assert sorted(shape(job)) == [("format", 6), ("tool", 7)]


def test_a_trajectory_that_is_read_anew_takes_back_what_clusters_were_told_by(
    cast: Cast, rows: list[Trajectory]
) -> None:
    job = clustered(cast)
    Trajectory.objects.filter(pk=rows[0].pk).update(detected_at=None)
    detect_waiting()
    assert by_kind(job)["format"].words == []
    assert by_kind(job)["tool"].words != []


# The nearest


def test_the_nearest_are_of_the_same_kind_and_of_this_project(cast: Cast, build: Build, rows: list[Trajectory]) -> None:
    build.trajectory(answer=KINDS["tool"][1].format("Bako"), project=cast.elsewhere)
    detect_waiting()
    found = sketches.neighbours(rows[1], most=6)
    assert {kind_of(row) for row, _ in found.rows} == {"tool"}
    assert {row.project_id for row, _ in found.rows} == {cast.project.pk}
    assert (found.among, found.is_cut) == (13, False)
    assert rows[1].pk not in {row.pk for row, _ in found.rows}
    decide(trajectory=rows[3], actor=Actor(cast.reviewer))
    assert sketches.neighbours(rows[1]).among == 12


def test_more_than_can_be_looked_through_are_cut_at_the_newest(
    cast: Cast, rows: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "AMONG", 5)
    found = sketches.neighbours(rows[0])
    assert (found.among, found.is_cut) == (5, True)
    assert {row.pk for row, _ in found.rows} <= {row.pk for row in rows[-5:]}


def test_the_same_failures_give_the_same_clusters(cast: Cast, rows: list[Trajectory]) -> None:
    def found() -> list[list[Any]]:
        job = clustered(cast)
        return [list(each.members.values_list("trajectory", "likeness")) for each in job.clusters.order_by("pk")]

    assert found() == found()
    assert grouping.AT_ONCE == 3_000


@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_real_worker_clusters(cast: Cast, rows: list[Trajectory], worker: Worker) -> None:
    job = submitted(cast)
    worker.finish(job)
    assert (job.state, job.error) == (State.SUCCEEDED, "")
    assert sorted(shape(job)) == [("format", 7), ("tool", 7)]
