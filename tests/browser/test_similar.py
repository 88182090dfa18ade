"""Failures that are alike in a real browser: cluster them, look, split one off, label what was looked at."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from flywheel.edge.jobs import Lease
from flywheel.failures.models import Clustering, Failure
from flywheel.trajectories.models import Bulk
from tests.browser.browse import NARROW, Tab
from tests.browser.test_queues import Place, place
from tests.conftest import Build
from tests.failures.similar_failures.test_similar_failures import KINDS, PEOPLE, work
from workers.jobs.detection import detect_waiting
from workers.jobs.trajectories import bulk_changes

__all__ = ["place"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]


def test_failures_are_clustered_looked_at_and_labelled_by_keys(
    browser: Browser, place: Place, build: Build, settings: Any
) -> None:
    settings.JOB_LEASE_SECONDS = 600  # what the worker loads takes longer than a test's lease on a busy machine
    for person in PEOPLE:
        for asked, answer in KINDS.values():
            build.trajectory(prompt=asked.format(person), answer=answer.format(person))
    detect_waiting()
    tab = place.sign_in(browser, "reviewer")
    page = tab.page
    tab.open("/p/acme/failures/similar/")
    tab.press("c")
    page.wait_for_url(re.compile(r"/similar/\d+/$"))
    expect(page.locator("#live")).to_contain_text("waiting for a worker")
    job = Clustering.objects.get()
    work(job)
    expect(page.locator("h1")).to_have_text("2 clusters of 14 failures")  # the page loads itself anew
    page.wait_for_load_state("load")  # and listens to keys only then

    tab.press("j", "Enter")
    page.wait_for_url("**/similar/clusters/**")
    expect(page.locator("tbody tr")).to_have_count(7)
    tab.press("j", "x", "s")
    expect(page.locator(".messages")).to_contain_text("1 moved.")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert sorted(job.clusters.values_list("size", flat=True)) == [1, 6, 7]
    expect(page.get_by_role("link", name="3 clusters")).to_be_visible()

    cluster = job.clusters.get(size=6)
    tab.open(f"/p/acme/failures/similar/clusters/{cluster.pk}/")
    tab.press("l")
    page.wait_for_url("**/label/")
    expect(page.locator("tbody input:checked")).to_have_count(6)
    tab.press("j", "x", "2", "Control+Enter")
    page.wait_for_url("**/bulk/**")
    labelling = Bulk.objects.get()
    lease = Bulk.claim(labelling.pk)
    assert isinstance(lease, Lease)
    with lease:
        bulk_changes.carry_out(lease)
    expect(page.locator("main")).to_contain_text("Labelled 5")
    assert set(Failure.objects.values_list("bucket", flat=True)) == {"wrong_tool"}
    assert Failure.objects.count() == 5
    tab.open(f"/p/acme/failures/similar/clusters/{cluster.pk}/label/")
    expect(page.locator("main")).to_contain_text("5 are left out:")

    row = cluster.members.select_related("trajectory")[0].trajectory
    tab.open(f"/p/acme/failures/review/{row.trace_id}/")
    tab.page.get_by_role("link", name="Find similar failures").click()
    expect(page.locator("tbody tr")).to_have_count(13)
    assert tab.problems == []

    narrow = Tab(browser, place.url, width=NARROW, session=tab)
    place.tabs.append(narrow)
    for path in (f"{job.pk}/", f"clusters/{cluster.pk}/", f"clusters/{cluster.pk}/label/", f"to/{row.trace_id}/", ""):
        narrow.open(f"/p/acme/failures/similar/{path}")
        assert narrow.overflow() == 0
    assert narrow.problems == []
