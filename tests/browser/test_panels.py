"""Parts of one page behind tabs: one at a time, chosen by click, by key and by address, kept while the page moves."""

from collections.abc import Callable

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import User
from flywheel.training.models import Point, TrainingRun
from tests.accounts.test_access import World, agent, candidate, evaluated, world
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from tests.training.conftest import NOON

__all__ = ["agent", "candidate", "evaluated", "world"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def tab(browser: Browser, live_server: LiveServer, world: World, sign_in: Callable[[User], Client]) -> Tab:
    tab = Tab(browser, live_server.url)
    cookie = sign_in(world.everyone).cookies["sessionid"]
    tab.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    return tab


def shown(tab: Tab) -> list[str]:
    script = "panels => panels.filter((panel) => panel.checkVisibility()).map(({ id }) => id)"
    found: list[str] = tab.page.eval_on_selector_all("[data-panel]", script)
    return found


def test_an_environment_shows_one_part_and_the_address_says_which(tab: Tab, cast: Cast, build: Build) -> None:
    environment = build.task_set(name="of-panels").environment_version.environment
    tab.open(f"/p/{cast.project.slug}/environments/e/{environment.name}/")
    assert shown(tab) == ["tasks"]
    tab.click("Settings")
    assert shown(tab) == ["settings"]
    expect(tab.page.locator(".tabs a[aria-current=true]")).to_have_text("Settings")
    tab.press("z")
    expect(tab.page.locator("#set-name")).to_be_focused()
    assert shown(tab) == ["freeze"]
    tab.page.go_back()
    expect(tab.page.locator("#settings")).to_be_visible()
    assert shown(tab) == ["settings"]
    tab.page.reload()
    assert shown(tab) == ["settings"]
    assert tab.problems == []


def test_a_part_stays_chosen_while_a_run_moves(tab: Tab, cast: Cast, world: World) -> None:
    run = TrainingRun.objects.get(pk=world.values["training", "pk"])
    TrainingRun.objects.filter(pk=run.pk).update(state="running", finished_at=None)
    Point.objects.create(run=run, kind=Point.Kind.EVAL, step=0, at=NOON, values={"success": 0.5, "n": 8})
    tab.open(f"/p/{cast.project.slug}/training/runs/{run.pk}/")
    assert shown(tab) == ["curves"]
    tab.click("Log")
    assert shown(tab) == ["log-lines"]
    tab.page.evaluate("document.getElementById('live').dataset.stale = ''")
    run.events.create(text="checkpoint at step 20")
    expect(tab.page.locator("#live[data-stale]")).to_have_count(0)
    expect(tab.page.locator("#log-lines")).to_contain_text("checkpoint at step 20")
    assert shown(tab) == ["log-lines"]
    assert tab.problems == []
