"""The list of trajectories by keys: ticking rows, all that match, and what a row is about."""

import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.trajectories.models import Bulk
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def tab(cast: Cast, build: Build, browser: Browser, live_server: LiveServer) -> Iterator[Tab]:
    for number in range(60):
        build.trajectory(prompt=f"Request {number}\nwith a second line", answer=f"Answer {number}")
    password = secrets.token_urlsafe(12)
    cast.reviewer.set_password(password)
    cast.reviewer.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in("reviewer", password)
    tab.page.goto(f"{live_server.url}/p/acme/trajectories/")
    yield tab
    tab.context.close()


def test_rows_are_ticked_by_keys_and_tagged(tab: Tab) -> None:
    page = tab.page
    ticks = page.locator("tbody .tick input")
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("[data-selected-count]")).to_have_text("2")
    ticks.nth(4).click(modifiers=["Shift"])
    expect(page.locator("[data-selected-count]")).to_have_text("4")
    page.keyboard.press("t")
    page.keyboard.type("vip")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Tag 4 trajectories")
    job = Bulk.objects.get()
    assert (job.action, len(job.ids), job.options) == ("tag", 4, {"tags": ["vip"]})
    assert tab.problems == []


def test_all_that_match_are_taken_until_one_is_taken_out(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("Shift+A")
    expect(page.locator("[data-selected-count]")).to_have_text("all")
    assert page.locator("tbody .tick input:checked").count() == 50
    page.keyboard.press("x")
    expect(page.locator("[data-selected-count]")).to_have_text("49")
    expect(page.locator("[data-all-matching]")).not_to_be_checked()
    page.keyboard.press("Shift+A")
    page.locator(".bulk button", has_text="Export").click()
    expect(page.locator("h1")).to_have_text("Export all that matched")
    assert Bulk.objects.get().ids == []
    assert tab.problems == []


def test_a_row_is_looked_into_without_moving_anything(tab: Tab) -> None:
    page = tab.page
    before = page.locator("tbody tr").nth(5).bounding_box()
    page.locator("tbody tr").nth(1).hover()
    preview = page.locator("#preview")
    expect(preview).to_contain_text("Answer 58")
    expect(preview).to_contain_text("with a second line")
    assert page.locator("tbody tr").nth(5).bounding_box() == before
    page.keyboard.press("Escape")
    expect(preview).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(preview).to_contain_text("Answer 57")
    assert tab.problems == []
