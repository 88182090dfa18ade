"""*Back* in a browser: on every page that htmx changes in place, the page that was left comes back whole."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.environments.models import Split
from flywheel.evals.models import RewardAudit
from flywheel.failures.models import Queue
from flywheel.failures.queues import intake
from tests.accounts.test_access import World, agent, candidate, evaluated, world
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast

__all__ = ["agent", "candidate", "evaluated", "world"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def tab(
    browser: Browser,
    live_server: LiveServer,
    world: World,
    cast: Cast,
    build: Build,
    sign_in: Callable[[User], Client],
) -> Iterator[Tab]:
    """Somebody who may do everything, where each desk has several items."""
    rows = [build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9) for _ in range(3)]
    intake.add(queue=Queue.objects.get(), keys=[row.pk for row in rows], actor=Actor(cast.builder))
    audit = RewardAudit.objects.get()
    for place, result in enumerate(audit.run.results.filter(task__split=Split.HELD_OUT)[1:4], 2):
        audit.items.create(place=place, result=result)
    opened = Tab(browser, live_server.url)
    cookie = sign_in(world.everyone).cookies["sessionid"]
    opened.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    yield opened
    opened.close()


def press_j(page: Page) -> None:
    """Go to the next item, by key as a reviewer does."""
    page.evaluate("document.getElementById('desk').dataset.stale = ''")
    page.keyboard.press("j")
    expect(page.locator("#desk[data-stale]")).to_have_count(0)


def choose_a_version(page: Page) -> None:
    """The form comes anew, as for another one, and the address with it."""
    page.locator("#launch-base").dispatch_event("change")
    page.wait_for_url("**task_set=*")


def search(page: Page) -> None:
    page.fill("input[type=search]", "has:error")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=has*")


def choose_a_step(page: Page) -> None:
    page.locator("[data-step], #tree a, #talk li").first.click()
    page.wait_for_url("**step=*")


def nothing(page: Page) -> None:
    """The page by itself asks for parts of others."""


PLACES: dict[str, tuple[str, Callable[[Page], None]]] = {
    "the open queue": ("failures/queue/", press_j),
    "a queue": ("failures/queues/{queue}/review/{item}/", press_j),
    "an audit": ("evals/reward-audits/{audit}/", press_j),
    "the launch of a run": ("training/launch/", choose_a_version),
    "the suites of an agent": ("promotions/agents/{agent}/suites/", nothing),
    "the list of trajectories": ("trajectories/", search),
    "a trajectory": ("trajectories/{trace}/", choose_a_step),
    "the runs": ("training/", nothing),
    "the editor of a verifier": ("environments/e/{environment}/verifier/", nothing),
}


def looks_whole(page: Page) -> None:
    for part in (".rail", ".topbar", "main .page-header"):
        expect(page.locator(part)).to_have_count(1)
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.type("ru")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


@pytest.mark.parametrize("place", PLACES)
def test_back_shows_the_page_that_was_left(place: str, tab: Tab, world: World) -> None:
    path, act = PLACES[place]
    names = {
        "queue": world.values["failures", "pk"],
        "item": world.values["failures", "item"],
        "audit": world.values["evals", "audit"],
        "agent": world.values["agents", "name"],
        "trace": world.values["trajectories", "trace_id"],
        "environment": world.values["evals", "name"],
    }
    page = tab.page
    tab.open("/p/acme/" + path.format(**names))
    first = page.url
    act(page)
    left = page.url
    page.click(".rail a[data-room='Agents']")
    page.wait_for_url("**/agents/")
    page.go_back()
    expect(page).to_have_url(left)
    looks_whole(page)
    if left != first and place != "the launch of a run":  # one place, whatever is chosen in it
        # htmx takes the page anew, and until then the one that is left still stands. A step is shown by our own script.
        with nullcontext() if act is choose_a_step else page.expect_event("load"):
            page.go_back()
        expect(page).to_have_url(first)
        looks_whole(page)
        act(page)
        expect(page).to_have_url(left)
    assert tab.problems == []
