"""Talking about a step: by keys, with names completed, and the one who is called finds it."""

import secrets
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import User
from flywheel.trajectories.models import Comment, Mention
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def as_user(browser: Browser, live_server: LiveServer) -> Iterator[Callable[..., Tab]]:
    opened = []

    def go(user: User, width: int = 1440) -> Tab:
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save()
        tab = Tab(browser, live_server.url, width=width)
        tab.sign_in(user.username, password)
        opened.append(tab)
        return tab

    yield go
    for tab in opened:
        tab.close()


def test_a_step_is_spoken_about_by_keys(cast: Cast, build: Build, as_user: Callable[..., Tab]) -> None:
    row = build.trajectory()
    here = f"/p/acme/trajectories/{row.trace_id}/"
    User.objects.filter(pk=cast.builder.pk).update(first_name="Bea", last_name="<img src=x onerror=alert(1)>")
    tab = as_user(cast.reviewer)
    page, box = tab.page, tab.page.locator("#comment-text")
    tab.open(here)
    expect(box).to_be_visible()
    page.locator(".turn a[data-step=s2]").click()
    about = page.locator("#comments select[name=step]")
    expect(about).to_have_value("s2")
    page.locator("h1").click()
    tab.press("m")
    expect(box).to_be_focused()
    page.keyboard.type("Why Bako? @bui")
    names = page.locator("#people li")
    expect(names).to_have_count(1)
    expect(names).to_contain_text("<img src=x")
    tab.press("Enter")
    expect(box).to_have_value("Why Bako? @builder ")
    page.keyboard.type("and @")
    expect(names).to_have_count(6)
    tab.press("ArrowDown", "ArrowDown")
    expect(names.nth(2)).to_have_attribute("aria-selected", "true")
    tab.press("Escape")
    expect(page.locator("#people")).to_be_hidden()
    expect(box).to_be_focused()
    tab.press("Control+Enter")
    expect(page.locator("#comments .said")).to_have_text("Why Bako? @builder and @")
    expect(box).to_have_value("")
    said = Comment.objects.get()
    assert (said.step, said.author) == ("s2", cast.reviewer)
    expect(page.locator(".outline .said-here")).to_have_text("· 1 said")
    assert page.locator("#comments img").count() == 0

    page.locator("#comments summary", has_text="Edit").click()
    page.locator("#comments details textarea").fill("Why Bako, @builder?")
    page.locator("#comments details button").click()
    expect(page.locator("#comments .said")).to_have_text("Why Bako, @builder?")
    assert tab.problems == []

    called = as_user(cast.builder, NARROW)
    called.open("/p/acme/")
    called.page.locator(".inbox-btn.has-unread").click()
    called.page.locator("tr.unread .btn.link").click()
    expect(called.page.locator(f"#comment-{said.pk}")).to_be_in_viewport()
    expect(called.page.locator("#comments .called")).to_have_text("@builder")
    with called.page.expect_navigation():
        called.page.reload()
    assert Mention.objects.get().read_at is not None
    assert called.overflow() == 0
    called.open("/p/acme/")
    assert called.page.locator(".inbox-btn.has-unread").count() == 0
    assert called.problems == []

    page.locator("#comments button", has_text="Delete").click()
    page.locator("#confirm [data-confirm-yes]").click()
    expect(page.locator("#comments .comment")).to_contain_text("deleted")
    assert tab.problems == []
