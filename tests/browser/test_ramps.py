"""A release by steps in a browser: planned, approved, followed without reloading, held, and taken back."""

import secrets

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.agents.models import Agent, Split
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import ramp_judging
from tests.browser.browse import NARROW, PATIENCE_MS, WIDE, Tab
from tests.conftest import Cast
from tests.promotions.conftest import agent, candidate, evaluated  # noqa: F401
from tests.promotions.ramps.test_ramp_evidence import filled

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)


@pytest.mark.parametrize(("width", "colours"), [(WIDE, "light"), (NARROW, "dark")])
def test_an_approver_releases_by_steps_and_takes_it_back(
    cast: Cast,
    browser: Browser,
    live_server: LiveServer,
    candidate: Candidate,  # noqa: F811
    width: int,
    colours: str,
) -> None:
    password = secrets.token_urlsafe(12)
    cast.approver.set_password(password)
    cast.approver.save()
    tab = Tab(browser, live_server.url, width=width, colours="dark" if colours == "dark" else "light")
    tab.sign_in(cast.approver.username, password)
    tab.open(f"/p/acme/promotions/candidates/{candidate.pk}/")
    page = tab.page
    page.fill("#id_reason", "better on what failed")
    page.get_by_label("By steps").check()
    expect(page.locator("#plan [name=share]")).to_have_count(3)
    expect(page.locator("#reach")).to_contain_text("Stage 3 would catch")
    page.get_by_role("button", name="Remove stage 1").click()
    expect(page.locator("#plan [name=share]")).to_have_count(2)
    page.fill("#share-2", "20")
    expect(page.locator("#reach")).to_contain_text("Stage 2: shares rise, and 20% comes after 25%.")
    assert page.input_value("#share-2") == "20"
    page.fill("#share-2", "50")
    page.fill("#sessions-1", "800")
    expect(page.locator("#reach")).to_contain_text("(800 sessions at 25%)")
    expect(page.locator("#reach .errorlist")).to_have_count(0)
    assert tab.overflow() == 0
    assert page.input_value("#id_reason") == "better on what failed"
    page.get_by_role("button", name="Approve by steps").click()
    page.locator("dialog[open]").get_by_role("button", name="Approve by steps").click()
    expect(page.locator("main")).to_contain_text("is released by steps")
    expect(page.locator("#live")).to_contain_text("about to begin")
    ramp = Ramp.objects.get()
    assert [stage.share for stage in ramp.rules.stages] == [2500, 5000]

    ramp_judging.look()
    expect(page.locator("#live")).to_contain_text("Next stage (50%) in at least 60 minutes and 800 sessions")
    page.fill("#id_reason", "I want to look")
    filled(ramp, 300, live=0.2, candidate=0.3)
    expect(page.locator("#live")).to_contain_text("Next stage (50%) in at least 60 minutes and 500 sessions")
    assert page.input_value("#id_reason") == "I want to look", "what is typed stays"
    expect(page.locator("#moved")).to_contain_text("unit ")
    assert tab.overflow() == 0
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("#live")).to_contain_text("Nothing moves until somebody presses Go on")
    page.fill("#id_reason", "it was nothing")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#live")).to_contain_text("Next stage (50%)")
    page.fill("#id_reason", "customers complain")
    page.get_by_role("button", name="Take back").click()
    page.locator("dialog[open]").get_by_role("button", name="Take back").click()
    expect(page.locator("#live")).to_contain_text("customers complain")
    expect(page.locator("#live")).to_contain_text(f"All sessions go to {candidate.baseline}.")
    assert Split.objects.get().share == 0
    assert Agent.objects.get(pk=candidate.agent_id).live_id == candidate.baseline_id
    assert tab.problems == []
