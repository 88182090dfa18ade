"""Regression suites in a browser: the evidence comes while somebody decides, and what they typed stays."""

import secrets

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.environments.models import Suite
from flywheel.promotions.candidacy import propose
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, agent, ended, evaluated, golden, pair_of, runs_of  # noqa: F401

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


def test_what_an_approver_types_stays_when_the_suites_end(
    cast: Cast,
    build: Build,
    browser: Browser,
    live_server: LiveServer,
    agent: Agent,  # noqa: F811
    golden: Suite,  # noqa: F811
    evaluated: Evaluated,  # noqa: F811
) -> None:
    row = propose(**pair_of(build, agent, evaluated), actor=Actor(cast.trainer))
    password = secrets.token_urlsafe(12)
    cast.approver.set_password(password)
    cast.approver.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in(cast.approver.username, password)
    tab.open(f"/p/acme/promotions/candidates/{row.pk}/")
    page = tab.page
    expect(page.locator("#standings tbody")).to_contain_text("running")
    expect(page.locator("#headline")).to_contain_text("suite golden@1 is running")
    page.fill("#decision textarea[name=reason]", "I read every rollout")
    page.check("#decision input[name=override]")
    ended(runs_of(golden, agent.live))
    ended(runs_of(golden, row.version), failing=6)
    expect(page.locator("#standings tbody")).to_contain_text("6 of 6 attempts failed")
    expect(page.locator("#suites-tile")).to_contain_text("0/6")
    expect(page.locator("#suites-tile")).to_have_count(1)
    expect(page.locator("#standings[hx-get]")).to_have_count(0)
    expect(page.locator("#headline")).not_to_contain_text("is running")
    expect(page.locator("#headline")).to_contain_text("golden")
    expect(page.locator("#decision textarea[name=reason]")).to_have_value("I read every rollout")
    expect(page.locator("#decision input[name=override]")).to_be_checked()
    assert tab.problems == []
    tab.close()
