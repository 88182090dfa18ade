"""The loop in a browser: released by steps, advanced, harmed, taken back; once let out again and live, what it had
mended comes back, and the next turn begins with it."""

import secrets
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Role
from flywheel.agents.models import Agent
from flywheel.failures.labels.decisions import decide
from flywheel.promotions.models import Candidate, Ramp
from flywheel.promotions.ramps import claim_watching, ramp_judging
from flywheel.trajectories.models import Trajectory
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast, proposed
from tests.promotions.conftest import agent, candidate, evaluated  # noqa: F401
from tests.promotions.ramps.conftest import Met, met_in
from tests.promotions.ramps.test_claim_watching import KEY, claims_better

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
expect.set_options(timeout=PATIENCE_MS)
RIGHT = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}


def approve_by_steps(page: Page, reason: str) -> None:
    page.fill("#id_reason", reason)
    page.get_by_label("By steps").check()
    page.get_by_role("button", name="Remove stage 1").click()
    expect(page.locator("#plan [name=share]")).to_have_count(2)
    for stage, least in enumerate(("20", "2000"), 1):
        page.fill(f"#sessions-{stage}", least)
        page.fill(f"#minutes-{stage}", "0")
    expect(page.locator("#reach")).to_contain_text("(2,000 sessions at 50%)")
    press(page, "Approve by steps")
    expect(page.locator("#live")).to_contain_text("about to begin")
    ramp_judging.look()


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name).click()
    page.locator("dialog[open]").get_by_role("button", name=name).click()


def come(met: Met, count: int, harmed: str = "success") -> None:
    """So many sessions, every second of which the candidate answers, and the judge's look at them."""
    for number in range(count):
        met(number % 2 == 0, outcome=harmed if number % 2 == 0 else "success", ago=1000.0)
    ramp_judging.look()


def returns(build: Build, agent: Agent, count: int) -> list[Trajectory]:  # noqa: F811
    """Sessions of what is live in which the mended bucket is again, and the watch's look at them."""
    at = timezone.now() - timedelta(seconds=1000)
    rows = []
    for number in range(count):
        row = build.trajectory(
            f"Meet Bako on friday, {number}",
            agent=agent,
            version=agent.live,
            session_id=f"back {number}",
            started_at=timezone.now(),
            changed_at=at,
            detected_at=at,
        )
        proposed(row, KEY, detector="other_tool")
        rows.append(row)
    claim_watching.look()
    return rows


def test_a_release_comes_back_goes_out_again_and_what_returns_begins_the_next_turn(
    cast: Cast,
    build: Build,
    browser: Browser,
    live_server: LiveServer,
    candidate: Candidate,  # noqa: F811
) -> None:
    claims_better(candidate)
    for role in (Role.REVIEWER, Role.BUILDER):
        Membership.objects.create(user=cast.approver, project=cast.project, role=role)
    password = secrets.token_urlsafe(12)
    cast.approver.set_password(password)
    cast.approver.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in(cast.approver.username, password)
    page = tab.page

    tab.open(f"/p/acme/promotions/candidates/{candidate.pk}/")
    approve_by_steps(page, "better on what failed")
    ramp = Ramp.objects.get()
    come(met_in(build, ramp), 24)
    expect(page.locator("#live")).to_contain_text("stage 2 of 2")
    expect(page.locator("#live")).to_contain_text("50%")

    come(met_in(build, ramp), 120, harmed="failed")
    expect(page.locator("#live")).to_contain_text("Taken back")
    expect(page.locator("#live")).to_contain_text(f"All sessions go to {candidate.baseline}.")
    ramp.refresh_from_db()
    assert (ramp.state, ramp.split.share) == ("taken_back", 0)
    assert Agent.objects.get().live == candidate.baseline

    tab.open(f"/p/acme/promotions/candidates/{candidate.pk}/")
    expect(page.locator("main")).to_contain_text("was taken back")
    page.get_by_label("Let it out again").check()
    approve_by_steps(page, "a tool of ours had failed")
    page.fill("#id_reason", "all is well now")
    press(page, "Finish")
    expect(page.locator("#live")).to_contain_text("finished")
    live = Agent.objects.get()
    assert live.live == candidate.version

    claim_watching.look()
    rows = returns(build, live, 30)
    tab.open(f"/p/acme/failures/buckets/{KEY}/")
    expect(page.locator("#recurrence")).to_contain_text("by the watch, not confirmed yet")
    page.get_by_role("button", name="The same failure").click()
    expect(page.locator("#recurrence")).to_contain_text(f"Confirmed by {cast.approver.username}")
    decide(trajectory=rows[0], actor=Actor(cast.approver), bucket=KEY, corrected=RIGHT)

    tab.open(f"/p/acme/promotions/agents/{live.name}/turns/")
    page.get_by_role("link", name="Next task set").click()
    expect(page.locator(".note.warn")).to_contain_text(f"is back with {candidate.version}")
    page.get_by_role("button", name="Start the next turn").click()
    first = page.locator("#list tbody tr").first
    expect(first).to_contain_text("Meet Bako on friday")
    expect(first).to_contain_text("is back")
    assert tab.overflow() == 0
    assert tab.problems == []
