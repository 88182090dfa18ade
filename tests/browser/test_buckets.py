"""A bucket's life by a person's hands: defined, filed under by its key, closed, and back when it comes again."""

import secrets
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.failures.buckets import bucket_lifecycle
from flywheel.failures.models import BucketLife
from flywheel.trajectories.models import Trajectory
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)
PAGE = "/p/acme/failures/buckets/refund_promised/"


@pytest.fixture
def tab(browser: Browser, cast: Cast, live_server: LiveServer) -> Iterator[Tab]:
    password = secrets.token_urlsafe(12)
    cast.builder.set_password(password)
    cast.builder.save()
    opened = Tab(browser, live_server.url)
    opened.sign_in("builder", password)
    yield opened
    assert opened.problems == []
    opened.close()


def test_a_bucket_is_defined_filed_under_closed_and_comes_back(tab: Tab, cast: Cast, build: Build) -> None:
    first, page = build.trajectory(title="Where is my money"), tab.page
    tab.open("/p/acme/failures/buckets/new/")
    page.get_by_label("Name").fill("Refund promised")
    page.get_by_label("A kind of").select_option("unsafe_action")
    page.get_by_label("Key", exact=True).select_option("o")
    page.get_by_role("button", name="Define category").click()
    page.wait_for_url(f"**{PAGE}")
    expect(page.locator("h1")).to_contain_text("open")

    tab.open(f"/p/acme/failures/review/{first.trace_id}/")
    tab.press("?")
    expect(page.locator("#keys-sheet")).to_contain_text("Refund promised")
    tab.press("Escape")
    page.keyboard.press("o")
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/failures/queue/**")
    assert Trajectory.objects.get(pk=first.pk).label_bucket == "refund_promised"

    tab.open(PAGE)
    expect(page.locator("#confirmed")).to_contain_text("Where is my money")
    with page.expect_navigation():
        page.get_by_label("Priority").select_option("urgent")
    with page.expect_navigation():
        page.get_by_label("Owner").select_option("reviewer")
    row = BucketLife.objects.select_related("owner").get()
    assert (row.priority, str(row.owner)) == ("urgent", "reviewer")
    page.locator(".steer summary").click()
    page.get_by_label("Why").fill("The policy is in the prompt now")
    page.get_by_role("button", name="Close category").click()
    expect(page.locator("h1")).to_contain_text("closed")
    expect(page.locator("#history")).to_contain_text("The policy is in the prompt now")
    tab.open("/p/acme/failures/")
    page.get_by_text("1 closed").click()
    expect(page.locator(".folded")).to_contain_text("Refund promised")

    again = build.trajectory(title="Money, again", started_at=timezone.now() + timedelta(seconds=1))
    tab.open(f"/p/acme/failures/review/{again.trace_id}/")
    page.keyboard.press("o")
    page.keyboard.press("f")
    page.wait_for_url("**/failures/queue/**")
    assert bucket_lifecycle.of(cast.project, "refund_promised").state == "reopened"
    tab.open(PAGE)
    expect(page.locator(".note.warn")).to_contain_text("Money, again began after it was closed")
    for path in (PAGE, "/p/acme/failures/"):
        page.set_viewport_size({"width": NARROW, "height": 900})
        tab.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, path
