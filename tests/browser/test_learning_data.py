"""In a browser: an LLM judge that is tried and saved, rollouts that are chosen and written, datasets that are mixed and
launched."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Role, User
from flywheel.accounts.project_settings.gateway_upstream import set_upstream
from flywheel.edge.jobs import Job
from flywheel.environments.models import Environment, Proving, Split, Trial
from flywheel.evals.models import EvalRun
from flywheel.training.models import Dataset
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build
from tests.training.conftest import Room, room  # noqa: F401 a fixture
from tests.training.datasets import test_dataset_mix
from tests.training.rollouts.test_rollout_selection import said
from tests.workers.judge_server import JudgeServer, answer_of, judge_server
from tests.workers.judging.test_attempt_verdicts import recorded
from workers.tasks import handler

PASSWORD = "correct horse battery"
expect.set_options(timeout=PATIENCE_MS)


def named(build: Build, *roles: Role) -> str:
    """Somebody who may sign in."""
    person = User.objects.create_user(username="pat", password=PASSWORD)
    for role in roles:
        Membership.objects.create(user=person, project=build.cast.project, role=role)
    return person.username


def carry_out(kind: Any) -> None:
    """What a worker does with the newest job of a kind."""
    lease = kind.claim(kind.objects.latest("pk").pk)
    assert lease is not None
    with lease:
        handler(lease.job.label)(lease)


def books(data: dict[str, Any], _: dict[str, Any]) -> int:
    """Full marks for a call that books the meeting for the person of the request."""
    person = data["request"][-1]["content"].split()[1]
    try:
        call = json.loads(answer_of(data))
        return int(call["arguments"]["person"] == person)
    except (ValueError, TypeError, KeyError):
        return 0


@pytest.fixture
def judge(build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    monkeypatch.setattr(Job, "nudge", lambda _: None)  # the test is the worker
    with judge_server(books) as server:
        set_upstream(project=build.cast.project, actor=Actor(build.cast.admin), base_url=server.url)
        yield server


def test_a_judge_is_written_tried_and_saved(
    browser: Browser, live_server: LiveServer, build: Build, judge: JudgeServer
) -> None:
    task = recorded(build.task(Split.TRAIN))
    tab = Tab(browser, live_server.url)
    tab.sign_in(named(build, Role.BUILDER), PASSWORD)
    page = tab.page
    tab.open(f"/p/acme/environments/e/{task.environment.name}/")
    tab.click("Edit the verifier")
    parts = page.locator(".rubric-part")
    page.select_option("#kind", "judge")
    tab.click("Add part")
    expect(parts).to_have_count(2)
    page.click("button[aria-label^='Remove'] >> nth=0")
    expect(parts).to_have_count(1)
    tab.press("t")
    expect(parts.locator(".errors").first).to_be_visible()  # criteria and model are wanted
    page.fill("[name=p0-criteria]", "The meeting is booked for the person who is named.")
    page.fill("[name=p0-model]", "rule")
    page.fill("[name=p0-canaries]", "I have booked it <b>for everybody</b>.")
    tab.click("Try")
    expect(page.locator("#trial")).to_contain_text("waiting for a worker")
    carry_out(Trial)
    trial = page.locator("#trial")
    expect(trial).to_contain_text("nothing is saved")
    for example, score in (("recorded failure", "0.00"), ("corrected", "1.00"), ("cheat attempt", "0.00")):
        expect(trial.locator("tr", has_text=example).first.locator("td.num")).to_have_text(score)
    expect(trial).to_contain_text("canar")
    assert any("for everybody" in answer_of_request(body) for body in judge.seen)

    tab.click("Save as the next version")
    expect(page.locator("#proving")).to_be_visible()
    carry_out(Proving)
    expect(page.locator("#proving")).to_have_count(0)
    expect(page.locator(".tile", has_text="Proved")).to_contain_text("1 / 1")
    assert Environment.objects.get().latest.verifier["parts"][0]["type"] == "judge"
    # The draft without its criteria was refused with 422, as it should.
    assert [problem for problem in tab.problems if "422" not in problem] == []
    tab.close()


def answer_of_request(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def test_rollouts_are_chosen_dropped_and_written(browser: Browser, live_server: LiveServer, room: Room) -> None:  # noqa: F811
    run: EvalRun = room.evaluated(said, split=Split.TRAIN, samples=4, success=(True, True, False, True))
    tab = Tab(browser, live_server.url, width=NARROW, colours="dark")
    tab.sign_in(named(room.build, Role.TRAINER), PASSWORD)
    page = tab.page
    tab.open(f"/p/acme/training/rollouts/{run.pk}/")
    kept = page.locator(".tile", has_text="Selected")
    before = kept.inner_text()
    page.fill("[name=reward]", "1")
    page.fill("[name=cap]", "1")
    tab.click("Apply")
    expect(kept).to_contain_text("6 rows")
    assert kept.inner_text() != before
    page.click("#rollouts summary:has-text('Drop') >> nth=0")
    page.fill("#rollouts details[open] [name=reason]", "<i>odd</i>")
    page.click("#rollouts details[open] button")
    tab.click("Dropped by hand")
    expect(page.locator("#rollouts tbody tr")).to_have_count(1)
    expect(page.locator("#rollouts tbody tr")).to_contain_text("<i>odd</i>")
    assert "cap=1" in page.url, "the choice stands"
    page.fill("#dataset-name", "games")
    tab.click("Write dataset")
    page.wait_for_url("**/training/datasets/games/1/")
    expect(page.locator("main")).to_contain_text("Not dropped by hand")
    dataset = Dataset.objects.get(name="games")
    assert (dataset.kind, len(dataset.recipe["dropped"])) == ("sft", 1)
    assert (tab.overflow(), tab.problems) == (0, [])
    tab.close()


def test_two_datasets_are_mixed_and_stand_in_the_launch_form(
    browser: Browser,
    live_server: LiveServer,
    room: Room,  # noqa: F811
) -> None:
    mail, calendar = (
        test_dataset_mix.of(room, room.task_set),
        test_dataset_mix.of(room, test_dataset_mix.other_set(room)),
    )
    tab = Tab(browser, live_server.url)
    tab.sign_in(named(room.build, Role.TRAINER), PASSWORD)
    page = tab.page
    tab.open("/p/acme/training/datasets/")
    tab.click("Mix datasets")
    page.select_option("select[name=kind]", "tasks")
    page.wait_for_url("**kind=tasks**")
    page.fill(f"[name=w{mail.pk}]", "1")
    page.fill(f"[name=w{calendar.pk}]", "2")
    page.check(f"[name=first][value='{mail.pk}']")
    tab.click("Preview")
    expect(page.locator("main")).to_contain_text("9 rows, always in the same shuffled order")
    page.fill("#mix-name", "both")
    tab.click("Write the dataset")
    page.wait_for_url("**/training/datasets/both/1/")
    expect(page.locator("main")).to_contain_text("compared by")
    tab.open(f"/p/acme/training/launch/?base={room.base}&task_set={room.task_set}&algorithm=grpo")
    page.select_option("select[name=dataset]", "both@1")
    expect(page.locator("main")).to_contain_text("Locked.")
    assert page.locator("a[href*='evals/reward/'][href*='calendar']").count(), "the audit that is missing is calendar's"
    assert (tab.overflow(), tab.problems) == (0, [])
    tab.close()
