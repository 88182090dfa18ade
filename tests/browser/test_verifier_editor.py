"""A builder composes a verifier with Python in it, sees what it says before anything is saved, saves it, and judges the
rollouts of an old run again; with a real worker and its sandbox."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Membership, Role, User
from flywheel.environments.models import Split
from flywheel.evals.models import EvalRun
from tests.browser.browse import NARROW, Tab
from tests.conftest import Build
from tests.evals.fake import FakeEngine, finished, say
from tests.worker import Worker
from tests.workers.judging.test_attempt_verdicts import recorded
from workers.jobs import eval_runs
from workers.sandbox import host
from workers.sandbox.outcome import Status

PASSWORD = "correct horse battery"
SOURCE = """import json
def verify(trace, target):
    calls = trace["calls"]
    if not calls:
        return {"score": 0.0, "reason": "<b>no call</b>"}
    same = calls[-1]["arguments"] == target["arguments"]
    return {"score": float(same), "reason": "as wanted" if same else "other arguments"}
"""


@pytest.mark.browser
@pytest.mark.worker
@pytest.mark.django_db(transaction=True)
def test_a_builder_composes_tries_saves_and_judges_again(
    browser: Browser, live_server: LiveServer, worker: Worker, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = host.run("def verify(): return 1.0")
    host.close()
    if offered.status is Status.REFUSED:
        pytest.skip(offered.reason)
    run = _old_run(build, monkeypatch)
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=build.cast.project, role=Role.BUILDER)
    tab = Tab(browser, live_server.url)
    page = tab.page
    tab.sign_in("bo", PASSWORD)
    tab.open(f"/p/{build.cast.project.slug}/environments/e/mail/")
    tab.click("Edit the verifier")
    parts = page.locator(".rubric-part")
    expect(parts).to_have_count(1)

    page.select_option("#kind", "regex")
    page.click("button:has-text('Add part')")
    expect(parts).to_have_count(2)
    page.fill("[name=p1-pattern]", "(calendar")
    page.click("button:has-text('Try on these')")
    expect(parts.nth(1).locator(".errors")).to_contain_text("missing )")
    expect(page.locator("[name=p1-pattern]")).to_be_focused()
    page.fill("[name=p1-pattern]", "calendar")
    page.check("[name=p1-required]")
    page.select_option("#kind", "python")
    page.click("button:has-text('Add part')")
    expect(parts).to_have_count(3)
    expect(page.locator("[name=p2-source]")).to_be_focused()
    page.fill("[name=p2-source]", SOURCE)
    expect(page.locator(".source-lines")).to_contain_text("7")
    page.click("button[aria-label='Remove effect']")
    expect(parts).to_have_count(2)
    page.click("button[aria-label='Move python up']")
    expect(parts.nth(0)).to_contain_text("verify(trace, target) in the sandbox")

    page.click("button:has-text('Try on these')")
    trial = page.locator("#trial")
    expect(trial).to_contain_text("nothing is saved")
    expect(trial.locator("tr", has_text="recorded failure").first).to_contain_text("other arguments")
    expect(trial.locator("tr", has_text="leaked target").first).to_contain_text("<b>no call</b>")
    expect(trial.locator("tr", has_text="sample 0").first).to_contain_text("was 0.40")
    expect(trial).to_contain_text("proved")
    _look(tab, "editor")

    old = page.locator("main .note", has_text="which differs from the one above")
    page.click("button[aria-label='Move python down']")
    expect(old).to_be_visible()
    page.click("button[aria-label='Move python up']")
    expect(old).to_have_count(0)
    asked: list[str] = []

    def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.dismiss()

    page.once("dialog", stay)
    page.click(".rail a[data-room=Evals]")
    assert asked == ["beforeunload"]
    expect(page.locator("[name=p0-source]")).to_have_value(SOURCE)

    page.click("button:has-text('Save as the next version')")
    page.wait_for_url(lambda url: url.endswith("/e/mail/"))
    expect(page.locator("main")).to_contain_text("mail@2")
    expect(page.locator("#proving")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("source")

    tab.open(f"/p/{build.cast.project.slug}/evals/{run.pk}/")
    page.select_option("#rescore-version", "2")
    page.click("button:has-text('Score again')")
    tile = page.locator(".tile", has_text="Success now")
    expect(tile).to_contain_text("0")
    expect(page.locator(".tile", has_text="Score changed, same verdict")).to_contain_text("8")
    expect(page.locator("main table.data").last).to_contain_text("other arguments")
    _look(tab, "rescore")
    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    narrow.open(page.url.removeprefix(live_server.url))
    narrow.open(f"/p/{build.cast.project.slug}/environments/e/mail/verifier/")
    _look(narrow, "editor")
    assert (tab.overflow(), narrow.overflow()) == (0, 0)
    # The pattern that cannot be was refused with 422, as it should.
    assert [problem for problem in tab.problems + narrow.problems if "422" not in problem] == []
    narrow.close()
    tab.close()


def _old_run(build: Build, monkeypatch: pytest.MonkeyPatch) -> EvalRun:
    """Four tasks of failures, each answered wrongly twice."""
    with monkeypatch.context() as patched:
        patched.setattr("flywheel.edge.jobs.Job.nudge", lambda _: None)
        patched.setattr(eval_runs, "open_version", lambda _: FakeEngine(lambda _: say("Nobody")))
        task_set = build.task_set(train=4, held_out=0)
        run = finished(build, patched, answer=lambda _: say("Nobody"), task_set=task_set, split=Split.TRAIN)
    for result in run.results.filter(sample=0).select_related("task"):
        recorded(result.task)
    return run


def _look(tab: Tab, name: str) -> None:
    """A picture for whoever wants to see it: FLYWHEEL_SCREENSHOTS=directory."""
    if place := os.environ.get("FLYWHEEL_SCREENSHOTS"):
        size = tab.page.viewport_size or {"width": 0}
        tab.page.screenshot(path=Path(place) / f"{name}-{size['width']}.png", full_page=True)
