"""A click that leaves a page, in a browser: the page does not load itself anew meanwhile, which would take it back."""

from collections.abc import Callable, Iterator

import pytest
from django.test import Client
from playwright.sync_api import Browser, Route
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import User
from tests.browser.browse import Tab
from tests.conftest import Cast

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def tab(browser: Browser, live_server: LiveServer, cast: Cast, sign_in: Callable[[User], Client]) -> Iterator[Tab]:
    opened = Tab(browser, live_server.url)
    cookie = sign_in(cast.builder).cookies["sessionid"]
    opened.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    yield opened
    opened.close()


def test_a_job_that_ends_while_its_page_is_left_does_not_take_the_click_back(tab: Tab) -> None:
    page, asked = tab.page, list[Route]()
    tab.open("/p/acme/agents/")
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<p id=job hx-get=/job hx-trigger=look></p>');"
        "htmx.process(document.getElementById('job'));"
        "addEventListener('beforeunload', () => htmx.trigger('#job', 'look'), { once: true })"
    )
    page.route("**/job", lambda route: route.fulfill(headers={"HX-Refresh": "true"}, body=""))
    page.route("**/p/acme/evals/", lambda route: asked.append(route))
    with page.expect_response("**/job"):
        page.evaluate("document.querySelector(`nav a[href='/p/acme/evals/']`).click()")
    page.wait_for_timeout(300)
    asked[0].continue_()
    page.wait_for_url("**/p/acme/evals/", timeout=20_000)
    assert tab.problems == []
