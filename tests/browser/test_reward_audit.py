"""An audit by keys alone: a slip taken back, nothing of the verdicts until the end."""

import secrets

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Role
from flywheel.evals.models import RewardAudit
from flywheel.evals.reward_audits import audit_lifecycle as verbs
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from tests.evals.reward_audits.test_audit_lifecycle import TASKS, evaluated

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]

BY_KEYS = 5
"""The others are judged beforehand: to wait for fifty pages shows nothing that five do not."""
expect.set_options(timeout=PATIENCE_MS)


def test_an_audit_is_judged_blind_by_keys(browser: Browser, live_server: LiveServer, cast: Cast, build: Build) -> None:
    run = evaluated(build, build.version(), build.task_set(train=TASKS, held_out=1))
    audit, _ = verbs.begin(run=run, actor=Actor(cast.builder), size=60)
    password = secrets.token_urlsafe(12)
    person = cast.reviewer
    person.set_password(password)
    person.save()
    Membership.objects.create(user=person, project=cast.project, role=Role.TRAINER)
    tab = Tab(browser, live_server.url, width=NARROW, colours="dark")
    tab.sign_in(person.username, password)
    page, here = tab.page, f"/p/acme/evals/reward-audits/{audit.pk}/"
    tab.open(here)
    items = list(audit.items.select_related("result").order_by("place"))
    for item in items[BY_KEYS:]:
        verbs.judge(item=item, actor=Actor(person), answer="pass" if item.result.success else "fail")

    tab.press("?")
    for label in ("Pass: it did what was asked", "Fail: it did not", "Cannot tell", "Write a note"):
        expect(page.locator("#keys-sheet")).to_contain_text(label)
    tab.press("Escape")
    tab.press("w")
    expect(page.locator("details[open] pre.json").first).to_contain_text("calendar.create_event")

    in_hand = page.locator(".desk-talk .pane-head b")
    for item in items[:BY_KEYS]:
        expect(in_hand).to_have_text(f"Output {item.place} of 60")
        assert not {"as wanted", "wrong tool"} & set(page.locator("main").inner_text().split("\n"))
        if item.place == 2:  # a slip, taken back
            tab.press("c")
            expect(in_hand).to_have_text("Output 3 of 60")
            expect(page.locator("form.last")).to_contain_text("2: cannot tell")
            tab.press("u")
            expect(in_hand).to_have_text("Output 2 of 60")
        if item.place == 3:
            tab.press("n")
            page.keyboard.type("it is plain")
            tab.press("Escape")
        tab.press("p" if item.result.success else "f")
    expect(page.locator("main")).to_contain_text("All outputs are judged")
    assert tab.overflow() == 0
    tab.press("Control+Enter")
    expect(page.locator(".verdict")).to_contain_text("GREEN")
    assert tab.overflow() == 0

    audit = RewardAudit.objects.get(pk=audit.pk)
    assert (audit.is_green, audit.finished_by, audit.result["agreement"]["n"]) == (True, person, 60)
    assert audit.items.get(place=3).note == "it is plain"
    tab.open(f"/p/acme/training/launch/?base={run.version}&task_set={run.task_set}&algorithm=grpo")
    assert tab.problems == []
    tab.close()
