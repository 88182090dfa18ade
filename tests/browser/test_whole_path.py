"""One turn of the wheel, clicked: a reviewer, a trainer and an approver, from a proposal to a version live and back."""

import json
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from flywheel.edge.jobs import State
from flywheel.environments.models import Suite, Task, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Decision, Failure
from flywheel.promotions.models import Candidate, Promotion
from flywheel.promotions.suite_standings import standings
from flywheel.training.models import TrainingRun
from flywheel.trajectories.models import Trajectory
from tests.browser.browse import NARROW, PATIENCE_MS, WIDE, Tab
from tests.browser.conftest import Stage
from workers.programs.story_playback import SEED
from workers.reference import story as world

pytestmark = [
    pytest.mark.browser,
    pytest.mark.worker,
    pytest.mark.django_db(transaction=True),
]

STEPS = 12
"""Enough to make a version; what it can do is not what is tested here."""
TRAINING_MS = 240_000

expect.set_options(timeout=PATIENCE_MS)


def test_three_people_turn_the_wheel_once(browser: Browser, stage: Stage) -> None:
    tabs = {name: Tab(browser, stage.url) for name in stage.passwords}
    for name, tab in tabs.items():
        tab.sign_in(name, stage.passwords[name])
    reviewer, trainer, approver, admin = tabs.values()

    review(reviewer, stage)
    task_set = freeze(reviewer, stage)
    baseline = evaluate(reviewer, stage, task_set)
    guard(reviewer, stage, task_set)
    run = train(trainer, stage, task_set)
    assert run.baseline == baseline
    candidate = run.candidates.get()
    approve(approver, stage, candidate)
    roll_back(approver, stage, candidate)
    every_page(browser, stage, admin, run)

    for tab in tabs.values():
        assert tab.problems == []
        tab.close()


def review(tab: Tab, stage: Stage) -> None:
    """By keys alone, as one does who reviews all day."""
    page = tab.page
    tab.press("g", "f")
    page.wait_for_url("**/failures/")
    tab.press("q")
    page.wait_for_url("**/failures/queue/")
    expect(tab.named("Make task")).to_be_visible()
    tab.press("?")
    sheet = page.locator("#keys-sheet")
    for label in ("Confirm & next", "Change the call", "Save and make a task"):
        expect(sheet).to_contain_text(label)
    tab.press("Escape")
    expect(sheet).to_be_hidden()

    confirmed = in_hand(tab)
    tab.press("y")
    expect(page.locator("form.last")).to_contain_text("just now")
    assert latest(confirmed).decision == Decision.CONFIRMED

    tab.press("u")
    expect(page.locator("#decision")).to_have_attribute("data-draft", confirmed.trace_id)
    assert latest(confirmed, current=False).taken_back_at is not None

    row = correctable(tab, stage)
    target = wanted(row)
    bucket = "wrong_tool" if row.proposed_bucket != "wrong_tool" else "wrong_arguments"
    page.keyboard.press(page.locator(f"#decision input[value={bucket}]").get_attribute("data-key") or "")
    expect(page.locator(f"#decision input[value={bucket}]")).to_be_checked()
    tab.press("c")
    expect(page.locator("#correction[data-kind=tool] .editor :focus")).to_have_count(1)
    choose(tab, "tool", target["tool"])
    choose(tab, "editor", "json")
    page.locator("#correction textarea[name=arguments]").fill(json.dumps(target["arguments"]))
    tab.press("Tab")
    expect(page.locator("#correction")).to_contain_text("fits the schema")
    page.locator("h1").click()
    tab.press("n")
    page.keyboard.type("seen in the browser test")
    page.locator("h1").click()
    tab.press("x")
    expect(page.locator("#make")).to_contain_text("proved")
    failure = latest(row)
    assert (failure.decision, failure.bucket, failure.corrected) == (Decision.CHANGED, bucket, target)
    assert failure.note == "seen in the browser test"
    assert Task.objects.get(failure=failure).is_proved


def in_hand(tab: Tab) -> Trajectory:
    return Trajectory.objects.get(trace_id=tab.page.locator("#decision").get_attribute("data-draft"))


def correctable(tab: Tab, stage: Stage) -> Trajectory:
    """Open the first of the queue that is an ordinary failure."""
    rows = stage.project.trajectories.filter(
        label="", proposed_bucket__in=["wrong_arguments", "wrong_tool", "format_error"]
    )
    row = rows.order_by("pk")[0]
    tab.open(f"{stage.here}failures/review/{row.trace_id}/")
    return row


def wanted(row: Trajectory) -> dict[str, object]:
    """What the customer wanted."""
    requests = world.sessions(100, seed=SEED)
    return next(r.target for r in requests if (r.session_id, r.prompt) == (row.session_id, row.title))


def choose(tab: Tab, name: str, value: object) -> None:
    """Choose in the corrected action, which comes back from the server."""
    tab.page.evaluate("document.getElementById('correction').dataset.stale = ''")
    tab.page.locator(f"#correction select[name={name}]").select_option(str(value))
    expect(tab.page.locator("#correction[data-stale]")).to_have_count(
        0
    )  # else the next choice is made in what goes away
    expect(tab.page.locator(f"#correction select[name={name}]")).to_have_value(str(value))


def latest(row: Trajectory, current: bool = True) -> Failure:
    return row.failures.filter(current=current).latest("pk")


def freeze(tab: Tab, stage: Stage) -> TaskSet:
    page = tab.page
    tab.open(f"{stage.here}environments/e/workplace/")
    tab.click("Make tasks of")
    page.wait_for_url("**/environments/e/workplace/")
    tab.click("Freeze task set")
    expect(page.locator("#set-name")).to_be_focused()
    page.keyboard.type("workplace-requests")  # over the name that is proposed
    tab.press("Enter")
    page.wait_for_load_state("load")
    expect(page.locator("main")).to_contain_text("workplace-requests@1")
    return TaskSet.objects.get()


def evaluate(tab: Tab, stage: Stage, task_set: TaskSet) -> EvalRun:
    page = tab.page
    tab.open(f"{stage.here}environments/sets/{task_set.name}/{task_set.version}/")
    tab.click("Evaluate")
    page.wait_for_url("**/evals/new/**")
    expect(page.locator("input[name=task_set]")).to_have_value(str(task_set))
    page.fill("input[name=version]", f"{stage.agent.name}@live")
    page.fill("input[name=samples]", "1")
    tab.click("Start eval")
    page.wait_for_url(re.compile(r"/evals/\d+/$"))
    run = EvalRun.objects.get()
    stage.worker.finish(run)
    assert run.state == State.SUCCEEDED, run.error
    expect(page.locator(".tiles").first).to_contain_text("Success")
    return run


def guard(tab: Tab, stage: Stage, task_set: TaskSet) -> None:
    """The first regression suite of an agent: two clicks on its page."""
    page = tab.page
    tab.open(f"{stage.here}agents/{stage.agent.name}/")
    page.locator("#suites").get_by_text("Add a suite").click()
    tab.click("Add the suite")
    expect(page.locator(".messages")).to_contain_text("safety@1")
    suite = Suite.objects.get()
    assert (suite.kind, suite.rule, suite.task_set) == ("safety", "no_break", task_set)
    # The baseline was evaluated on the very set, in the same way: found, not asked again.
    expect(page.locator("#suites tbody tr")).to_contain_text(re.compile(r"\d+/\d+"))


def train(tab: Tab, stage: Stage, task_set: TaskSet) -> TrainingRun:
    page = tab.page
    tab.open(f"{stage.here}training/launch/")
    expect(page.locator("#launch-set")).to_have_value(str(task_set))
    with page.expect_response(re.compile("/training/launch/")):
        page.locator("#algorithm-sft").check()
        page.locator("#algorithm-sft").dispatch_event("change")
    page.wait_for_load_state("networkidle")
    page.fill("#id-steps", str(STEPS))
    if page.locator("#launch-reason").count():
        page.fill("#launch-reason", "to see it work")
    page.click("#launch-button")
    page.wait_for_url("**/training/runs/*/")
    run = TrainingRun.objects.get()
    assert (run.algorithm, run.settings["steps"], run.created_by.username) == ("sft", STEPS, "trainer")
    link = page.locator("main a[href*='/candidates/']").first
    expect(page.locator("#live")).to_contain_text("created", timeout=TRAINING_MS)
    expect(link).to_be_visible(timeout=TRAINING_MS)
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED
    return run


def approve(tab: Tab, stage: Stage, candidate: Candidate) -> None:
    page = tab.page
    tab.press("g", "p")
    page.wait_for_url("**/promotions/")
    page.locator(f"tr[data-href$='/candidates/{candidate.pk}/'] a").first.click()
    page.wait_for_url("**/candidates/*/")
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.locator("main")).to_contain_text("Gate checks")
    stands = standings(candidate.version_eval, candidate.baseline_eval)
    expect(page.locator("#standings tbody")).to_contain_text(stands[0].words)
    against = candidate.verdict != Candidate.Verdict.ELIGIBLE or not stands[0].is_passed
    # What is missing is told before the name is typed again.
    tab.click("Approve and promote")
    expect(page.locator("#confirm")).to_be_hidden()
    page.fill("#decision textarea[name=reason]", "the browser test wants it live")
    if against:
        tab.click("Approve and promote")
        expect(page.locator("#confirm")).to_be_hidden()
        page.check("#decision input[name=override]")
    confirm_approval(tab, stage, against)
    page.wait_for_url("**/promotions/")
    stage.agent.refresh_from_db()
    assert stage.agent.live == candidate.version
    move = Promotion.objects.get(candidate=candidate)
    assert (move.approved_by.username, move.proposed_by.username) == ("approver", "trainer")  # type: ignore[union-attr]
    assert move.against_the_gate == against


def confirm_approval(tab: Tab, stage: Stage, against: bool) -> None:
    """The agent's name is typed where the gate is overridden, and only there."""
    tab.click("Approve and promote")
    dialog = tab.page.locator("#confirm")
    yes = dialog.locator("[data-confirm-yes]")
    if against:
        expect(yes).to_be_disabled()
        grey = yes.evaluate("button => getComputedStyle(button).backgroundColor")
        dialog.locator("#confirm-retype").fill(stage.agent.name)
        expect(yes).not_to_have_css("background-color", grey)
    yes.click()


def roll_back(tab: Tab, stage: Stage, candidate: Candidate) -> None:
    page = tab.page
    tab.click("Roll back to version")
    dialog = page.locator("dialog[open]")
    dialog.get_by_text("Cancel").click()
    expect(dialog).to_have_count(0)
    tab.click("Roll back to version")
    dialog.get_by_role("button", name="Roll back").click()
    expect(page.locator("main, .messages").first).to_contain_text(f"{candidate.baseline} is live again")
    stage.agent.refresh_from_db()
    assert stage.agent.live == candidate.baseline


def every_page(browser: Browser, stage: Stage, session: Tab, run: TrainingRun) -> None:
    """Each room and one page of each kind of thing: wide and light, narrow and dark."""
    here, candidate = stage.here, run.candidates.get()
    row = stage.project.trajectories.filter(source="production").latest("pk")
    task = Task.objects.latest("pk")
    rooms = ["agents", "trajectories", "failures", "environments", "evals", "training", "promotions", "settings"]
    paths = [
        here,
        *(f"{here}{room}/" for room in rooms),
        f"{here}trajectories/{row.trace_id}/",
        f"{here}failures/queue/",
        f"{here}failures/buckets/wrong_arguments/",
        f"{here}environments/e/workplace/",
        f"{here}environments/e/workplace/tasks/{task.number}/",
        f"{here}environments/sets/{run.task_set.name}/{run.task_set.version}/",
        f"{here}evals/new/",
        f"{here}evals/{run.baseline_id}/",
        f"{here}evals/{run.evaluation_id}/against/{run.baseline_id}/",
        f"{here}training/launch/",
        f"{here}training/runs/{run.pk}/",
        f"{here}training/datasets/",
        f"{here}promotions/candidates/{candidate.pk}/",
        f"{here}agents/{stage.agent.name}/",
        f"{here}promotions/agents/{stage.agent.name}/suites/?change=safety",
        f"{here}agents/{stage.agent.name}/versions/{candidate.version.number}/",
        "/account/",
    ]
    pictures = {
        here: "overview",
        f"{here}failures/queue/": "review",
        f"{here}training/runs/{run.pk}/": "run",
        f"{here}promotions/candidates/{candidate.pk}/": "candidate",
    }
    for width, colours in ((WIDE, "light"), (NARROW, "dark")):
        tab = Tab(browser, stage.url, width=width, colours=colours, session=session)  # type: ignore[arg-type]
        for path in paths:
            tab.open(path)
            if tab.page.locator("h1").count() != 1:
                tab.problems.append(f"{path}: not one h1")
            if over := tab.overflow():
                tab.problems.append(f"{path}: {over} px wider than {width} px")
            if width == WIDE and path in pictures and (folder := os.environ.get("FLYWHEEL_SCREENSHOTS")):
                tab.page.screenshot(path=Path(folder) / f"{pictures[path]}.png")
        shade = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 200) == (colours == "dark"), shade
        tab.close()
        assert tab.problems == []
