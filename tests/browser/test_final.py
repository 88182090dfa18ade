"""The final comparison in a browser: asked on purpose, followed without reloading; what is typed meanwhile stays."""

import secrets

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.agents.models import Agent
from flywheel.environments.models import Opening
from flywheel.promotions.candidacy import propose
from flywheel.promotions.models import Promotion
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from tests.promotions.conftest import Evaluated, agent, evaluated  # noqa: F401
from tests.promotions.test_sealed_comparison import conclude

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


def test_an_approver_asks_the_sealed_tasks_and_promotes_what_they_confirm(
    cast: Cast,
    build: Build,
    browser: Browser,
    live_server: LiveServer,
    agent: Agent,  # noqa: F811
    evaluated: Evaluated,  # noqa: F811
) -> None:
    task_set = build.task_set(train=2, held_out=12, sealed=12)
    assert agent.live is not None
    better = build.version(agent, system_prompt="Answer with exactly one tool call as JSON.")
    row = propose(
        version_eval=evaluated(better, task_set, passing=20),
        baseline_eval=evaluated(agent.live, task_set, passing=4),
        actor=Actor(cast.trainer),
    )
    password = secrets.token_urlsafe(12)
    cast.approver.set_password(password)
    cast.approver.save()
    tab = Tab(browser, live_server.url, width=NARROW, colours="dark")
    tab.sign_in(cast.approver.username, password)
    tab.open(f"/p/acme/promotions/candidates/{row.pk}/")
    final, page = tab.page.locator("#final"), tab.page
    expect(final).to_contain_text("No version has used these tasks yet")
    final.get_by_role("button", name="Run the sealed tasks").click()
    expect(page.locator("dialog[open]")).to_contain_text("This cannot be undone: it is opening 1")
    assert not Opening.objects.filter(kind=Opening.Kind.SEALED).exists()
    page.locator("dialog[open]").get_by_role("button", name="Run them").click()
    expect(final).to_contain_text("0 of 48 attempts are made")
    assert tab.overflow() == 0

    page.fill("#id_reason", "both gains are there")
    conclude(row)
    expect(final).to_contain_text("✓ confirmed")
    expect(final).to_contain_text("+66.7 points")
    expect(final).to_contain_text("+83.3 points")
    expect(page.locator("#headline")).to_contain_text("Shown to be better.")
    assert page.input_value("#id_reason") == "both gains are there"
    assert tab.overflow() == 0

    page.get_by_role("button", name="Approve and promote").click()
    page.locator("dialog[open]").get_by_role("button", name="Approve and promote").click()
    expect(page.locator("main")).to_contain_text("is now live")
    promotion = Promotion.objects.get(candidate=row)
    assert (promotion.against_the_gate, promotion.sealed["state"]) == (False, "eligible")
    assert tab.problems == []
