"""A builder makes a world of Python tools, tries it, writes a task, plays it and says that this is right; with a real
worker and its sandbox, as the guide has it (docs/guides/worlds.md)."""

import json

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Membership, Role, User
from flywheel.environments.models import Task
from tests.browser.browse import NARROW, Tab
from tests.conftest import Cast
from tests.environments.shop import CANCELLED, OWN
from tests.worker import Worker
from workers.sandbox import host
from workers.sandbox.outcome import Status

PASSWORD = "correct horse battery"


@pytest.mark.browser
@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_world_is_made_tried_played_and_proved(
    browser: Browser, live_server: LiveServer, worker: Worker, cast: Cast
) -> None:
    offered = host.run("def verify(): return 1.0")
    host.close()
    if offered.status is Status.REFUSED:
        pytest.skip(offered.reason)
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=cast.project, role=Role.BUILDER)
    tab = Tab(browser, live_server.url)
    page = tab.page
    tab.sign_in("bo", PASSWORD)
    tab.open(f"/p/{cast.project.slug}/environments/new/?kind=world")
    page.fill("[name=seed]", "3")
    page.fill("[name=tool]", "refund")
    page.fill("[name=arguments]", json.dumps({"order_id": "1002", "reason": "late"}))
    page.click("button:has-text('Try')")
    expect(page.locator("#world-trial")).to_contain_text("Same answers twice.")
    expect(page.locator("#world-trial")).to_contain_text("only delivered orders are refunded")

    page.fill("[name=name]", "shop")
    tab.click("Create environment")
    tab.click("Write a task")
    page.fill("[name=prompt]", "Please cancel my order 1003.")
    page.fill("[name=state]", json.dumps(OWN))
    tab.click("Write the task")
    expect(page.locator("#state")).to_contain_text("Orders")
    page.select_option("#tool", "cancel")
    page.fill("[name=argument-order_id]", "1003")
    tab.click("Call cancel")
    expect(page.locator("#right")).to_contain_text('/orders/1003/status is "cancelled"')
    tab.click("Make it the target")
    worker.wait_until(lambda: Task.objects.get().is_proved, "the task is proved")
    assert Task.objects.get().target == CANCELLED

    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    for path in ("new/?kind=world", "e/shop/", "e/shop/world/", "e/shop/tasks/write/", "e/shop/tasks/1/"):
        narrow.open(f"/p/{cast.project.slug}/environments/{path}")
        assert narrow.overflow() == 0, path
    assert tab.problems == narrow.problems == []
