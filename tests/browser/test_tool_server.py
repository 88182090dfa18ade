"""A builder attaches a tool server, has its definitions read, writes a task, plays it and says that this is right; with
a real worker, as the guide has it (docs/guides/worlds.md)."""

import json
import re

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Membership, Role, User
from flywheel.environments.models import Task
from tests.browser.browse import NARROW, Tab
from tests.conftest import Cast
from tests.shop_server import serve_shop
from tests.worker import Worker

PASSWORD = "correct horse battery"


@pytest.mark.browser
@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_tool_server_is_attached_tried_played_and_proved(
    browser: Browser, live_server: LiveServer, worker: Worker, cast: Cast
) -> None:
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=cast.project, role=Role.BUILDER)
    tab = Tab(browser, live_server.url)
    page = tab.page
    tab.sign_in("bo", PASSWORD)
    with serve_shop() as (_, address):
        tab.open(f"/p/{cast.project.slug}/environments/new/?kind=tool_server")
        page.fill("[name=base_url]", address)
        page.check("[name=resets]")
        page.check("[name=shows_state]")
        page.fill("#id_tool", "get_order")
        page.fill("[name=arguments]", json.dumps({"order_id": "1003"}))
        page.click("button:has-text('Try')")
        expect(page.locator("#world-trial")).to_contain_text("Same answers twice.")
        expect(page.locator("#id_tools")).to_have_value(re.compile("get_order"))

        page.fill("[name=name]", "shop")
        tab.click("Create environment")
        tab.click("Write a task")
        page.fill("[name=prompt]", "Please cancel my order 1003.")
        tab.click("Write the task")
        expect(page.locator("#state")).to_contain_text("Orders")
        page.select_option("#tool", "cancel")
        page.fill("[name=argument-order_id]", "1003")
        tab.click("Call cancel")
        expect(page.locator("#right")).to_contain_text('/orders/1003/status is "cancelled"')
        tab.click("Make it the target")
        worker.wait_until(lambda: Task.objects.get().is_proved, "the task is proved")
    tab.open(f"/p/{cast.project.slug}/environments/e/shop/tasks/1/")
    expect(page.locator("body")).to_contain_text("Repeated calls: 1 of 1 identical answers.")

    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    for path in ("new/?kind=tool_server", "e/shop/", "e/shop/world/", "e/shop/tasks/1/"):
        narrow.open(f"/p/{cast.project.slug}/environments/{path}")
        assert narrow.overflow() == 0, path
    assert tab.problems == narrow.problems == []


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_replay_asks_only_for_what_counts(browser: Browser, live_server: LiveServer, cast: Cast) -> None:
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=cast.project, role=Role.BUILDER)
    tab = Tab(browser, live_server.url)
    page = tab.page
    tab.sign_in("bo", PASSWORD)
    tab.open(f"/p/{cast.project.slug}/environments/new/")
    names = ("user", "script", "unknown", "source", "simulator_model", "server_base_url")

    def shown() -> list[str]:
        return [name for name in names if page.locator(f"[name={name}]").is_visible()]

    assert shown() == [], "the next action is judged, so that nothing answers it"
    page.select_option("[name=judged]", "end")
    assert shown() == ["user", "unknown"]
    page.select_option("[name=user]", "script")
    page.select_option("[name=unknown]", "model")
    assert shown() == ["user", "script", "unknown", "simulator_model"]
    page.select_option("[name=unknown]", "server")
    assert shown() == ["user", "script", "unknown", "server_base_url"]
    page.fill("[name=name]", "again")
    page.fill("[name=script]", "not JSON")
    page.select_option("[name=unknown]", "error")
    tab.click("Create environment")
    expect(page.locator(".field:has([name=script])")).to_contain_text("JSON")
    page.select_option("[name=judged]", "next")
    assert shown() == ["script"], "what is wrong stays in view"
    assert tab.problems == [] or all("422" in problem for problem in tab.problems)
