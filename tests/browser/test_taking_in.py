"""A builder sees which failures lack a task and why, and brings an eval of another service in; wide and narrow."""

import json
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.environments.models import Environment
from tests.browser.browse import NARROW, Tab
from tests.conftest import Build, Cast
from tests.environments.exchange.test_eval_imports import COSINE, EVAL, ITEMS, MATCH
from tests.environments.tasks.test_replay_tasks import RIGHT, RUN, SCREAM, failed, run

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def tab(browser: Browser, live_server: LiveServer, cast: Cast) -> Tab:
    tab, client = Tab(browser, live_server.url), Client()
    client.force_login(cast.builder)
    cookie = client.cookies["sessionid"]
    tab.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    return tab


def narrow(tab: Tab) -> None:
    """Look once more at the page as a telephone shows it, in the dark."""
    tab.page.set_viewport_size({"width": NARROW, "height": 900})
    tab.page.emulate_media(color_scheme="dark")
    assert tab.overflow() == 0
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    tab.page.emulate_media(color_scheme="light")


def test_a_failure_without_a_task_leads_to_the_desk(tab: Tab, cast: Cast, build: Build) -> None:
    for corrected, step in ((RIGHT, "s6"), (SCREAM, "s6"), (None, "s6")):
        failed(cast, run(build, RUN), corrected, step)
    tab.open("/p/acme/environments/")
    tab.click("Failures without a task")
    rows = tab.page.locator("main tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("no corrected action")
    expect(rows.nth(2)).to_contain_text("ready")
    narrow(tab)
    tab.page.locator("select[name=corrected]").select_option("yes")
    expect(rows).to_have_count(2)
    rows.nth(0).get_by_text("Fix on the desk").click()
    tab.page.wait_for_url(lambda url: "/failures/" in url)
    assert tab.problems == []
    tab.close()


def test_an_eval_is_looked_at_and_then_made(tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "eval.json").write_text(json.dumps({**EVAL, "testing_criteria": [MATCH, COSINE]}))
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, [*ITEMS, {"item": {"ticket": "?"}}])))
    tab.open("/p/acme/environments/import-eval/")
    tab.page.fill("input[name=name]", "tickets")
    tab.page.set_input_files("input[name=eval]", tmp_path / "eval.json")
    tab.page.set_input_files("input[name=rows]", tmp_path / "items.jsonl")
    tab.click("Preview")
    main = tab.page.locator("main")
    expect(main).to_contain_text("3 of 4 items become tasks")
    expect(main).to_contain_text("From the last preview: items.jsonl")
    narrow(tab)
    tab.page.check("input[name=partial]")
    tab.click("Create environment and tasks")
    tab.page.wait_for_url(lambda url: url.endswith("/environments/e/tickets/"))
    assert Environment.objects.get().tasks.count() == 3
    assert tab.problems == []
    tab.close()
