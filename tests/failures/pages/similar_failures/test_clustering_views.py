"""The pages and the API of failures that are alike."""

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import AuditEntry, User
from flywheel.edge.jobs import Lease, State
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Cluster, Clustering, Failure, ProjectBucket, QueueItem
from flywheel.failures.pages.similar_failures import cluster_summaries, clustering_views
from flywheel.failures.queues.queue_definitions import Wanted
from flywheel.failures.queues.queue_definitions import make as make_queue
from flywheel.failures.similar_failures import cluster_edits
from flywheel.trajectories.models import Bulk, Trajectory
from tests.conftest import Build, Cast
from tests.failures.similar_failures.test_similar_failures import (
    _patience,
    by_kind,
    clustered,
    kind_of,
    rows,
    submitted,
    work,
)
from tests.pages import page_of
from workers.jobs.detection import detect_waiting
from workers.jobs.trajectories import bulk_changes

__all__ = ["_patience", "rows"]

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, str]]
pytestmark = pytest.mark.django_db


def at(name: str, *args: Any) -> str:
    return reverse(f"failures:{name}", args=["acme", *args])


def of(rows: list[Trajectory], kind: str) -> list[str]:
    return [row.trace_id for row in rows if kind_of(row) == kind]


def carry_out(job: Bulk) -> Bulk:
    lease = Bulk.claim(job.pk)
    assert isinstance(lease, Lease)
    bulk_changes.carry_out(lease)
    job.refresh_from_db()
    return job


def key_in(page: str) -> str:
    found = re.search(r'name="key" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_a_clustering_is_asked_for_followed_and_shown(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    client = sign_in(cast.reviewer)
    page = page_of(client.get(at("similar")))
    assert "Nothing was clustered yet" in page
    sent = {"key": key_in(page), "which": "proposed", "bucket": "", "days": "0", "by": "both", "fineness": "coarse"}
    made = client.post(at("start_clustering"), sent)
    job = Clustering.objects.get()
    assert made["Location"] == client.post(at("start_clustering"), sent)["Location"] == at("clustering", job.pk)
    assert "waiting for a worker" in page_of(client.get(at("clustering", job.pk)))
    assert client.get(at("clustering_live", job.pk)).status_code == 200
    work(job)
    assert client.get(at("clustering_live", job.pk)).status_code == 286
    page = page_of(client.get(at("clustering", job.pk)))
    assert "2 clusters of 14 failures" in page
    assert "diary.add_lunch" in page
    assert "proposed and waiting" in page_of(client.get(at("similar")))


def test_what_cannot_be_asked_for_comes_back_with_what_was_written(cast: Cast, sign_in: SignIn) -> None:
    sent = {"which": "both", "by": "calls", "fineness": "fine", "days": "x", "q": "nonsense:1"}
    refused = sign_in(cast.reviewer).post(at("start_clustering"), sent)
    assert refused.status_code == 422
    assert "days: expected one of" in page_of(refused)
    assert 'value="nonsense:1"' in page_of(refused)
    assert not Clustering.objects.exists()


def test_one_that_waits_is_stopped_and_done_again_and_one_that_is_over_is_deleted(
    cast: Cast, sign_in: SignIn, rows: list[Trajectory]
) -> None:
    client, job = sign_in(cast.reviewer), submitted(cast)
    assert "stop it first" in page_of(client.post(at("delete_clustering", job.pk), follow=True))
    client.post(at("cancel_clustering", job.pk))
    job.refresh_from_db()
    assert job.state == State.CANCELLED
    assert "Stopped." in page_of(client.get(at("clustering", job.pk)))
    client.post(at("resume_clustering", job.pk))
    assert work(job).state == State.SUCCEEDED
    client.post(at("delete_clustering", job.pk))
    assert not Clustering.objects.exists()


def test_clusters_are_merged_named_and_split_on_their_pages(
    cast: Cast, sign_in: SignIn, rows: list[Trajectory]
) -> None:
    client, job = sign_in(cast.reviewer), clustered(cast)
    ids = [cluster.pk for cluster in job.clusters.all()]
    merged = client.post(at("merge_clusters", job.pk), {"id": [str(pk) for pk in ids]})
    cluster = job.clusters.get()
    assert merged["Location"] == at("cluster", cluster.pk)
    assert "Nothing was changed: clusters" in page_of(
        client.post(at("merge_clusters", job.pk), {"id": ids}, follow=True)
    )
    client.post(at("name_cluster", cluster.pk), {"name": "<b>both</b>"})
    page = page_of(client.get(at("cluster", cluster.pk)))
    assert "&lt;b&gt;both&lt;/b&gt;" in page
    assert "<b>both" not in page
    split = client.post(at("move_members", cluster.pk), {"to": "new", "id": of(rows, "tool")})
    fresh = job.clusters.exclude(pk=cluster.pk).get()
    assert split["Location"] == at("cluster", fresh.pk)
    client.post(at("move_members", fresh.pk), {"to": "rest", "id": of(rows, "tool")[:1]})
    sent = {"to": clustering_views.CHOSEN, "cluster": str(cluster.pk), "id": of(rows, "tool")[1:3]}
    client.post(at("move_members", fresh.pk), sent)
    assert sorted(job.clusters.values_list("size", flat=True)) == [1, 4, 9]
    rest = job.clusters.get(is_rest=True)
    assert client.get(at("cluster", rest.pk)).status_code == 200
    refused = client.post(at("move_members", fresh.pk), {"to": "rest", "id": "none"}, follow=True)
    assert "Nothing was changed: trace_ids" in page_of(refused)


def test_a_cluster_is_taken_apart_from_its_page(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    client, job = sign_in(cast.reviewer), clustered(cast)
    merged = cluster_edits.merge(
        clustering=job, clusters=[cluster.pk for cluster in job.clusters.all()], actor=Actor(cast.reviewer)
    )
    made = client.post(at("take_apart", merged.pk), {"key": str(uuid.uuid4())})
    inner = Clustering.objects.exclude(pk=job.pk).get()
    assert made["Location"] == at("clustering", inner.pk)
    assert "splitting it" in page_of(client.get(at("cluster", merged.pk)))
    work(inner)
    assert client.get(at("clustering", inner.pk))["Location"] == at("cluster", merged.pk)
    assert "28 clusters" not in page_of(client.get(at("similar")))
    assert job.clusters.count() == 2


def test_members_are_sent_to_a_queue_some_and_all(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    client, job = sign_in(cast.reviewer), clustered(cast)
    queue = make_queue(project=cast.project, actor=Actor(cast.builder), wanted=Wanted(name="lunches"))
    cluster = by_kind(job)["tool"]
    client.post(at("send_cluster", cluster.pk), {"queue": queue.pk, "id": of(rows, "tool")[:2] + of(rows, "format")})
    assert QueueItem.objects.count() == 2
    client.post(at("send_cluster", cluster.pk), {"queue": queue.pk, "all": "1"})
    assert QueueItem.objects.count() == 7
    assert client.post(at("send_cluster", cluster.pk), {"queue": "0", "all": "1"}).status_code == 404


# Labelling a cluster


def test_a_cluster_is_labelled_after_its_members_were_shown(
    cast: Cast, sign_in: SignIn, rows: list[Trajectory]
) -> None:
    client, cluster = sign_in(cast.reviewer), by_kind(clustered(cast))["format"]
    mine = of(rows, "format")
    decide(trajectory=rows[0], actor=Actor(cast.builder))
    page = page_of(client.get(at("label_cluster", cluster.pk)))
    assert "1 is left out:" in page
    assert all(page.count(f'value="{trace_id}" checked') == (trace_id != mine[0]) for trace_id in mine)
    assert re.search(r'value="format_error" checked', page)
    decide(trajectory=rows[2], actor=Actor(cast.builder), bucket="wrong_tool")  # while the page is open
    sent = {"key": key_in(page), "id": mine[1:6], "bucket": "format_error", "note": "cut off"}
    made = client.post(at("label_cluster", cluster.pk), sent)
    assert client.post(at("label_cluster", cluster.pk), sent)["Location"] == made["Location"]
    job = carry_out(Bulk.objects.get())
    assert job.report["changed"] == 4
    assert job.report["skipped"] == {"already decided by a person": 1}
    labels = Failure.objects.filter(current=True, labelled_by=cast.reviewer)
    assert {failure.trajectory.trace_id for failure in labels} == set(mine[2:6])
    assert {(failure.bucket, failure.note, failure.step, failure.decision) for failure in labels} == {
        ("format_error", "cut off", "s2", "confirmed")
    }
    entries = AuditEntry.objects.filter(action="failures.confirmed")
    assert {entry.through for entry in entries} == {f"cluster {cluster.pk}, bulk action {job.pk}"}
    assert client.get(made["Location"]).status_code == 200
    assert carry_again(client, cluster, mine) == {"already decided by a person": 5}


def carry_again(client: Client, cluster: Cluster, ids: list[str]) -> dict[str, int]:
    client.post(at("label_cluster", cluster.pk), {"key": str(uuid.uuid4()), "id": ids[1:6], "bucket": "wrong_tool"})
    skipped: dict[str, int] = carry_out(Bulk.objects.latest("pk")).report["skipped"]
    return skipped


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"bucket": "nonsense"}, "bucket: "),
        ({"bucket": "other"}, "note: describe what is wrong"),
        ({"bucket": "wrong_tool", "id": []}, "trace_ids: "),
        ({"bucket": "wrong_tool", "id": ["x"]}, "trace_ids: "),
    ],
)
def test_a_label_that_does_not_fit_is_refused_and_nothing_is_labelled(
    cast: Cast, sign_in: SignIn, rows: list[Trajectory], sent: dict[str, Any], words: str
) -> None:
    cluster = by_kind(clustered(cast))["tool"]
    refused = sign_in(cast.reviewer).post(at("label_cluster", cluster.pk), {"id": of(rows, "tool"), **sent})
    assert refused.status_code == 422
    assert words in page_of(refused)
    assert not Bulk.objects.exists()


def test_a_bucket_is_defined_for_a_cluster_by_who_may(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    cluster = by_kind(clustered(cast))["tool"]
    sent = {"id": of(rows, "tool"), "bucket": "+", "label": "Lunch in no diary", "parent": "hallucinated_api"}
    assert sign_in(cast.reviewer).post(at("label_cluster", cluster.pk), sent).status_code == 403
    client = sign_in(cast.builder)
    assert client.post(at("label_cluster", cluster.pk), {**sent, "id": "x"}).status_code == 422
    assert not ProjectBucket.objects.exists()
    twice = [client.post(at("label_cluster", cluster.pk), {**sent, "key": key}) for key in [str(uuid.uuid4())] * 2]
    assert twice[0]["Location"] == twice[1]["Location"]
    assert carry_out(Bulk.objects.get()).report["changed"] == 7
    assert set(Failure.objects.values_list("bucket", flat=True)) == {ProjectBucket.objects.get().key}


def test_nothing_is_labelled_past_the_page_that_shows_it(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    address = reverse("trajectories:start_bulk", args=["acme"])
    sent = {"action": "label_cluster", "key": str(uuid.uuid4()), "q": ""}
    assert sign_in(cast.admin).post(address, sent).status_code == 400
    page = page_of(sign_in(cast.admin).get(reverse("trajectories:index", args=["acme"])))
    assert "Label cluster" not in page


# The nearest


def test_a_trajectory_leads_to_those_that_are_like_it(cast: Cast, sign_in: SignIn, rows: list[Trajectory]) -> None:
    client = sign_in(cast.viewer)
    page = page_of(client.get(at("neighbours", rows[1].trace_id)))
    assert "The nearest 13" in page
    assert "diary.add_lunch" in page
    assert page.index("Put lunch") < page.index("Write an email")
    assert at("neighbours", rows[1].trace_id) in page_of(client.get(at("review", rows[1].trace_id)))
    Trajectory.objects.exclude(pk=rows[1].pk).update(proposed_bucket="")
    assert "Nothing to compare it with" in page_of(client.get(at("neighbours", rows[1].trace_id)))


def test_what_an_agent_wrote_is_inert_on_these_pages(cast: Cast, sign_in: SignIn, build: Build) -> None:
    evil = "<script>alert(1)</script>"
    for person in ("Bako", "Nadia"):
        build.trajectory(
            prompt=f"{evil} {person}", answer=f'{{"tool": "{evil}", "arguments": {{"{evil}": "{person}"}}}}'
        )
    detect_waiting()
    job = clustered(cast)
    cluster, row = job.clusters.get(), Trajectory.objects.order_by("pk")[0]
    client = sign_in(cast.reviewer)
    for address in (
        at("clustering", job.pk),
        at("cluster", cluster.pk),
        at("label_cluster", cluster.pk),
        at("neighbours", row.trace_id),
    ):
        page = page_of(client.get(address))
        assert "alert(1)" in page
        assert evil not in page


def test_a_page_costs_the_same_number_of_statements_whatever_is_on_it(
    cast: Cast, sign_in: SignIn, rows: list[Trajectory], django_assert_max_num_queries: Any
) -> None:
    job = clustered(cast)
    source = by_kind(job)["format"]
    for trace_id in of(rows, "format")[:4]:
        cluster_edits.move(cluster=source, trace_ids=[trace_id], to="new", actor=Actor(cast.reviewer))
    client = sign_in(cast.reviewer)
    with django_assert_max_num_queries(25):
        assert client.get(at("clustering", job.pk)).status_code == 200
    with django_assert_max_num_queries(32):
        assert client.get(at("cluster", by_kind(job)["tool"].pk)).status_code == 200


# The API


def test_a_program_can_do_all_of_it(cast: Cast, key: Keys, rows: list[Trajectory], client: Client) -> None:
    headers = key("read", "review")

    def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return client.generic(
            method.upper(), f"/api/v1/{path}", json.dumps(body or {}), "application/json", headers=headers
        )

    made = call("post", "clusterings", {"which": "proposed", "key": str(uuid.uuid4())})
    assert made.status_code == 202
    job = Clustering.objects.get()
    work(job)
    assert call("get", f"clusterings/{job.pk}").json()["report"]["clusters"] == 2
    clusters = call("get", f"clusterings/{job.pk}/clusters").json()["items"]
    assert [each["size"] for each in clusters] == [7, 7]
    assert all(each["medoid"] and each["words"] for each in clusters)
    members = call("get", f"clusters/{clusters[0]['id']}/members?limit=3").json()
    assert len(members["items"]) == 3
    assert members["next"]
    merged = call("post", f"clusterings/{job.pk}/merge", {"clusters": [each["id"] for each in clusters]}).json()
    assert merged["size"] == 14
    fresh = call("post", f"clusters/{merged['id']}/move", {"trace_ids": of(rows, "tool"), "to": "new"}).json()
    assert fresh["size"] == 7
    assert call("post", f"clusters/{fresh['id']}/name", {"name": "lunch"}).json()["name"] == "lunch"
    assert call("post", f"clusters/{fresh['id']}/take-apart", {}).status_code == 202
    assert (
        call("post", f"clusters/{fresh['id']}/move", {"trace_ids": of(rows, "tool"), "to": "rest"}).status_code == 422
    )
    wanted = {"trace_ids": of(rows, "tool"), "bucket": "hallucinated_api"}
    labelled = call("post", f"clusters/{fresh['id']}/label", wanted)
    assert labelled.status_code == 202
    assert carry_out(Bulk.objects.get(pk=labelled.json()["id"])).report["changed"] == 7
    assert call("post", f"clusters/{fresh['id']}/label", {**wanted, "bucket": "x"}).status_code == 422
    near = call("get", f"trajectories/{rows[1].trace_id}/similar?limit=2").json()
    assert len(near["items"]) == 2
    assert near["items"][0]["calls"]
    assert call("get", "trajectories/none/similar").status_code == 404
    assert len(call("get", "clusterings").json()["items"]) == 2
    assert call("post", f"clusterings/{job.pk}/cancel").status_code == 409
    assert call("post", f"clusterings/{job.pk}/resume").status_code == 409
    assert call("delete", f"clusterings/{job.pk}").status_code == 204
    assert call("get", f"clusterings/{job.pk}").status_code == 404


def test_a_key_sees_and_changes_only_its_project(cast: Cast, key: Keys, rows: list[Trajectory], client: Client) -> None:
    cluster = by_kind(clustered(cast))["tool"]
    foreign = key("read", "review", by=cast.stranger, project=cast.elsewhere)
    assert client.get(f"/api/v1/clusters/{cluster.pk}", headers=foreign).status_code == 404
    reading = key("read")
    refused = client.post(
        f"/api/v1/clusters/{cluster.pk}/name", {"name": "x"}, content_type="application/json", headers=reading
    )
    assert refused.status_code == 403


@pytest.mark.parametrize("name", ["clustering", "clustering_live", "cluster", "label_cluster", "neighbours"])
def test_another_project_has_none_of_it(cast: Cast, sign_in: SignIn, rows: list[Trajectory], name: str) -> None:
    job = clustered(cast)
    found = {"neighbours": rows[0].trace_id}.get(name, job.pk if "clustering" in name else by_kind(job)["tool"].pk)
    client = sign_in(cast.stranger)
    assert client.get(at(name, found)).status_code == 404
    assert client.get(reverse(f"failures:{name}", args=["elsewhere", found])).status_code == 404


@pytest.mark.parametrize(
    ("last", "trend"), [("2026-11-02", [3]), ("2026-11-04", [3, 0, 2]), ("2026-11-29", [3, 2] + [0] * 12)]
)
def test_a_trend_has_no_more_parts_than_days(last: str, trend: list[int]) -> None:
    clustering = Clustering(report={"first": "2026-11-02", "last": last})
    days = {date(2026, 11, 2): 3} | ({date(2026, 11, 4): 2} if last > "2026-11-02" else {})
    assert cluster_summaries.trend_of(clustering, Counter(days)) == trend
