"""A fix without training in a browser: from a bucket over drafts, a person's or a model's, to a candidate, with a real
worker and a local server that answers by its prompt."""

import json
import secrets
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.environments.models import Split, TaskSet
from flywheel.evals.models import EvalRun
from flywheel.failures.models import Decision, Failure
from flywheel.promotions.live_version import make_first
from flywheel.promotions.models import Candidate
from flywheel.training.models import FixTrial
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import SYSTEM, Build, Cast
from tests.worker import Worker

pytestmark = [
    pytest.mark.browser,
    pytest.mark.worker,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("browser"),
]
expect.set_options(timeout=PATIENCE_MS)

BUCKET = "wrong_arguments"
WRITER = "writer"
PROPOSED = f"{SYSTEM} Take the person from the request, as this <example> does."


class Scripted(BaseHTTPRequestHandler):
    """A chat completion that is right for every other person, and for all where its prompt shows examples; asked as the
    model that proposes, always the same prompt with one."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["messages"][0]["content"]
        if asked["model"] == WRITER:
            content = f"```\n{PROPOSED}\n```"
        else:
            person = asked["messages"][-1]["content"].split()[1]
            knows = "<example>" in prompt or int(person.removeprefix("Person")) % 2
            arguments = {"person": person if knows else "Nobody", "day": "friday"}
            content = json.dumps({"tool": "calendar.create_event", "arguments": arguments})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 20, "total_tokens": 20 + len(prompt) // 4}
        self._answer({"id": "x", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage})

    def _answer(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def task_set(cast: Cast, build: Build, model: str) -> TaskSet:
    """A live version, a failure of it, and tasks like that."""
    agent = build.agent()
    endpoint = {"kind": "openai", "base_url": model, "model": "scripted"}
    parent = build.version(agent, endpoint=endpoint)
    make_first(agent=agent, version=parent, actor=Actor(cast.approver), reason="first")
    task_set = build.task_set(train=16, held_out=24)  # every other one is repaired: 5 of 10 could be luck
    task_set.tasks.filter(split=Split.TRAIN).update(bucket=BUCKET)
    Failure.objects.create(
        project=cast.project,
        trajectory=build.trajectory(agent=agent, version=parent),
        decision=Decision.ADDED,
        bucket=BUCKET,
        note="It forgets who is to be met.",
        corrected={"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "monday"}},
        labelled_by=cast.reviewer,
    )
    return task_set


@pytest.fixture
def tab(cast: Cast, browser: Browser, live_server: LiveServer, task_set: TaskSet) -> Iterator[Tab]:
    """A trainer's."""
    password = secrets.token_urlsafe(12)
    cast.trainer.set_password(password)
    cast.trainer.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in(cast.trainer.username, password)
    yield tab
    assert tab.problems == []
    tab.close()


def test_a_fix_is_tried_from_its_bucket_and_becomes_a_candidate(
    tab: Tab, browser: Browser, live_server: LiveServer, worker: Worker
) -> None:
    page = tab.page
    tab.open(f"/p/acme/failures/buckets/{BUCKET}/")
    tab.click("Try a fix without training")
    page.wait_for_url(f"**/fixes/new/{BUCKET}/")
    expect(page.locator("main")).to_contain_text("It forgets who is to be met.")
    expect(page.locator("#draft-1 textarea").first).to_contain_text("<example>")
    page.fill("#draft-0 textarea[name=draft-0-system_prompt]", f"{SYSTEM} Be polite.")
    tab.click("Add a draft")
    expect(page.locator("#draft-2")).to_be_visible()
    expect(page.locator("#draft-0 textarea").first).to_contain_text("Be polite.")
    tab.click("Remove draft")
    expect(page.locator("#draft-2")).to_have_count(0)
    page.locator("#draft-1").get_by_role("button", name="Remove draft").click()
    expect(page.locator("#draft-1")).to_have_count(0)
    page.locator("#draft-0 details summary", has_text="Descriptions").click()
    page.fill("#draft-0 textarea[name=draft-0-tool-1]", "Send one email.")
    tab.click("Add a draft")
    page.fill("#draft-1 textarea[name=draft-1-system_prompt]", f"{SYSTEM} Be polite.")
    tab.click("Run drafts on training tasks")
    page.wait_for_url("**/fixes/*/")

    expect(page.locator("#held-out")).to_contain_text("Measure the best")
    expect(page.locator("#drafts tbody")).to_contain_text("better")
    expect(page.locator("#drafts tr.current")).to_contain_text("Examples 1")
    trial = FixTrial.objects.get()
    for colours in ("light", "dark"):
        narrow = Tab(browser, live_server.url, width=NARROW, colours=colours, session=tab)
        for path in (f"{trial.pk}/", f"new/{BUCKET}/", ""):
            narrow.open(f"/p/acme/training/fixes/{path}")
            assert narrow.overflow() == 0, path
        assert narrow.problems == []
        narrow.close()
    tab.click("Measure the best on held-out tasks")
    expect(page.locator("#held-out")).to_contain_text("The gate says")
    tab.click("Open candidate")
    candidate = Candidate.objects.get()
    gain = candidate.report["comparison"]["differences"]["success"]
    assert gain["low"] > 0, "the gate looks at latency too, and a busy machine's says nothing of the versions"
    page.wait_for_url(f"**/candidates/{candidate.pk}/")
    tab.click("What changed")
    expect(page.locator("#prompt ins").first).to_contain_text("<examples>")


def test_a_model_proposes_prompts_and_the_best_is_tried(tab: Tab, worker: Worker) -> None:
    page = tab.page
    tab.open(f"/p/acme/training/fixes/new/{BUCKET}/")
    tab.click("Let a model propose prompts")
    page.fill("[name=model]", "")
    page.fill("[name=proposals]", "2")
    expect(page.locator("#cost")).to_contain_text("At most 176 attempts")  # whatever else is still missing
    page.fill("[name=model]", WRITER)
    tab.click("Search for a better prompt")
    page.wait_for_url("**/fixes/searches/*/")
    expect(page.locator("h1")).to_contain_text("succeeded")
    best = page.locator("#proposals tbody tr").nth(1)  # and the last: where all is solved, nothing more is proposed
    expect(best).to_contain_text("best")
    expect(page.locator("#best ins").first).to_contain_text("Take the person from the request")
    best.locator("a").first.click()
    page.locator("#attempts details").first.click()
    expect(page.locator("#attempts pre").first).to_contain_text("Meet Person")
    tab.click("Previous")
    expect(page.locator("h1")).to_contain_text("The current prompt")
    page.get_by_role("link", name="prompt search").click()
    tab.click("Try on all training tasks")
    page.wait_for_url("**/fixes/*/")
    expect(page.locator("#held-out")).to_contain_text("Measure the best")
    expect(page.locator("#drafts tr.current")).to_contain_text("Proposal 1")
    assert not EvalRun.objects.filter(split=Split.HELD_OUT).exists()
