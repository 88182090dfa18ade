"""Reading a trajectory of 35,000 steps: what is in the page stays small, however far one reads, searches or jumps."""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import User
from flywheel.trajectories.models import Trajectory
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from tests.trajectories.lengthy import long_trajectory

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)

MB = 1_000_000
MOST_ELEMENTS = 15_000
WINDOWS = 4


@pytest.fixture
def endless(cast: Cast) -> Trajectory:
    return long_trajectory(cast.project)


@pytest.fixture
def tab(cast: Cast, live_server: LiveServer, browser: Browser) -> Iterator[Tab]:
    password = secrets.token_urlsafe(12)
    person = User.objects.get(username="reviewer")
    person.set_password(password)
    person.save()
    opened = Tab(browser, live_server.url)
    opened.sign_in("reviewer", password)
    yield opened
    opened.close()


def address(row: Trajectory, query: str = "") -> str:
    return f"/p/acme/trajectories/{row.trace_id}/{query}"


def heap(page: Page) -> float:
    """What the page holds, in MB, after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    found: dict[str, Any] = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return float(found["JSHeapUsedSize"]) / MB


def memory(browser: Browser) -> float:
    """What the largest process that draws pages has to itself, in MB: the page with all that its engine needs."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    drawing = [each["id"] for each in found if each["type"] == "renderer"]
    return max(map(own, drawing)) / MB


def own(process: int) -> int:
    """Bytes that a process shares with no other."""
    told = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(kept) * 1024 for kept in re.findall(r"^Private_\w+:\s+(\d+) kB", told, re.MULTILINE))


def is_bounded(page: Page) -> bool:
    elements = int(page.evaluate("document.querySelectorAll('*').length"))
    return elements < MOST_ELEMENTS and page.locator("#windows > .talk").count() <= WINDOWS


def listed(page: Page) -> None:
    """Wait for the lines of the tree."""
    expect(page.locator(".outline .line").first).to_be_visible()


def places(page: Page) -> list[int]:
    """Where the windows in the page begin."""
    return [
        int(start)
        for start in page.evaluate("[...document.querySelectorAll('#windows > .talk')].map((l) => l.dataset.start)")
    ]


SEEN = """
new Promise((done) => {
    const look = () => {
        const here = document.querySelector(".outline .line") && document.querySelector("#windows .turn");
        if (here) requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
        else requestAnimationFrame(look);
    };
    look();
})
"""
"""When the tree and the conversation were drawn, in ms from the click on."""


def test_the_first_screen_of_a_long_trajectory_is_soon_there(tab: Tab, endless: Trajectory, browser: Browser) -> None:
    """In processor time, the server's and then the page's: what it takes where nothing else is to be done."""
    spent, seen = [], []
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def drawn() -> float:
        return float(
            {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
        )

    for _ in range(4):
        tab.page.goto("about:blank")
        server, page = time.process_time(), drawn()
        tab.page.goto(tab.base + address(endless), wait_until="commit")
        seen.append(round(float(tab.page.evaluate(SEEN))))
        after = drawn()
        spent.append(round((time.process_time() - server + (after - page if after > page else after)) * 1000))
        tab.page.wait_for_load_state("networkidle")
    sizes = heap(tab.page), memory(browser)
    print(f"\nfirst screen {spent} ms of processor time, {seen} ms on the clock; heap, memory {sizes} MB")
    assert min(spent) < 1500
    assert sizes[1] < 300
    assert tab.problems == []


def test_a_long_trajectory_is_read_both_ways(tab: Tab, endless: Trajectory, browser: Browser) -> None:
    page = tab.page
    tab.open(address(endless))
    listed(page)
    expect(page.locator(".turn").first).to_be_visible()
    assert page.locator(".outline .line").count() < 100
    assert is_bounded(page)

    for _ in range(12):
        before = places(page)[-1]
        page.locator(".talk-pane").evaluate("(pane) => pane.scrollTo(0, pane.scrollHeight)")
        page.wait_for_function(
            "(at) => Number(document.querySelector('#windows').lastElementChild.dataset.start) > at", arg=before
        )
    expect(page.locator("#windows > .talk")).to_have_count(WINDOWS)
    assert places(page)[0] > 0
    assert is_bounded(page)
    assert places(page) == list(range(places(page)[0], places(page)[-1] + 1, 40))

    while places(page)[0] > 0:
        before = places(page)[0]
        page.locator(".talk-pane").evaluate("(pane) => pane.scrollTo(0, 0)")
        page.wait_for_function(
            "(at) => Number(document.querySelector('#windows').firstElementChild.dataset.start) < at", arg=before
        )
    assert is_bounded(page)
    used = heap(page)
    print(f"heap after reading on and back {used:.1f} MB, memory {memory(browser):.0f} MB")
    assert memory(browser) < 300
    assert tab.problems == []


def test_the_scroll_stays_where_it_was_when_earlier_steps_arrive(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    tab.open(address(endless, "?step=s20003"))
    listed(page)
    turn = page.locator("#step-s20003")
    expect(turn).to_be_in_viewport()
    page.wait_for_function("() => Number(document.querySelector('#windows').firstElementChild.dataset.start) < 20000")
    expect(turn).to_be_in_viewport()
    expect(turn).to_have_class("turn observation current")


def test_a_choice_is_one_in_every_view_and_in_the_address(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    tab.open(address(endless))
    listed(page)
    page.locator("#line-5").click()
    page.wait_for_url("**step=s5")
    expect(page.locator("#step-s5")).to_have_class("turn observation current")
    expect(page.locator("#step h2")).to_contain_text("Step 6")
    tab.press("v", "w")
    page.wait_for_url("**view=waterfall**")
    expect(page.locator("#line-5")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#line-5 .fill")).to_be_visible()
    page.locator("#step-s8 a[data-step]").click()
    page.wait_for_url("**step=s8**")
    expect(page.locator("#line-8")).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.locator("#line-5")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#step h2")).to_contain_text("Step 6")
    page.go_back()
    page.wait_for_url(lambda url: "waterfall" not in url)
    expect(page.locator("#trace")).to_have_attribute("data-shown", "tree")
    page.go_back()
    expect(page.locator(".line[aria-selected=true]")).to_have_count(0)
    page.reload()
    tab.open(address(endless, "?step=s30001&view=waterfall"))
    listed(page)
    expect(page.locator("#line-30001")).to_be_in_viewport()
    assert tab.problems == []


def test_a_step_that_arrives_after_one_went_back_is_not_shown(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    tab.open(address(endless))
    listed(page)
    held: list[Route] = []
    page.route("**/step/?at=6&**", lambda route: held.append(route))
    page.locator("#line-5").click()
    page.wait_for_url("**step=s5")
    with page.expect_request("**/step/?at=6&**"):
        page.locator("#line-6").click()
    expect(page.locator("#line-6")).to_have_attribute("aria-selected", "true")
    page.go_back()
    expect(page.locator(".line[aria-selected=true]")).to_have_count(0)
    for route in held:
        with suppress(Error):  # nobody waits for it any more
            route.continue_()
    page.wait_for_timeout(500)
    expect(page.locator(".line[aria-selected=true]")).to_have_count(0)
    expect(page.locator("#step")).to_be_empty()
    assert "step=" not in page.url
    assert tab.problems == []


def test_keys_step_find_errors_and_fold(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    tab.open(address(endless))
    listed(page)
    tab.press("j", "j", "j")
    page.wait_for_url("**step=s2")
    tab.press("k")
    page.wait_for_url("**step=s1")
    tab.press("e")
    page.wait_for_url("**step=s1001")
    expect(page.locator(".turn.current")).to_be_in_viewport()
    expect(page.locator("#line-1001")).to_be_in_viewport()
    tab.press("e")
    page.wait_for_url("**step=s2002")
    tab.press("Shift+E", "Shift+E")
    page.wait_for_url("**step=s34034")
    page.locator(".outline").focus()
    tab.press("Home")
    page.wait_for_url("**step=s0")
    tab.press("ArrowLeft")
    expect(page.locator(".outline .line")).to_have_count(1)
    tab.press("ArrowRight")
    expect(page.locator("#line-1")).to_be_visible()
    page.get_by_role("button", name="close all").click()
    expect(page.locator(".outline .line")).to_have_count(1)
    tab.press("e")
    expect(page.locator("#line-1001")).to_be_visible()
    assert tab.problems == []


def test_what_is_looked_for_is_found_far_away(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    tab.open(address(endless))
    listed(page)
    tab.press("/")
    page.keyboard.type("PART-30003-4")
    tab.press("Enter")
    page.wait_for_url("**step=s30003**")
    expect(page.locator("[data-found]")).to_have_text("1 of 1 steps")
    expect(page.locator("#step-s30003")).to_be_in_viewport()
    assert page.evaluate("CSS.highlights.get('found').size") > 0
    page.locator("input[name=find]").fill("no connection")
    tab.press("Enter")
    expect(page.locator("[data-found]")).to_contain_text("of 34")
    tab.press("Escape", "n")
    page.wait_for_url("**step=s31031**")
    tab.press("Shift+N")
    page.wait_for_url("**step=s30030**")
    page.reload()
    expect(page.locator("[data-found]")).to_contain_text("34 steps")
    assert tab.problems == []


def test_values_are_trees_and_are_copied_exactly(tab: Tab, build: Build) -> None:
    page = tab.page
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    given = '{"to": "Ba\\u200bko", "size": 12345678901234567890, "more": {"list": [1, 2]}}'
    row = build.trajectory(answer=f'{{"tool": "email.send", "arguments": {given}}}')
    tab.open(address(row))
    listed(page)
    call = page.locator("#windows .turn.tool")
    expect(call.locator(".tree")).to_contain_text("Ba⟨U+200B⟩ko")
    expect(call.locator(".tree")).to_contain_text("12345678901234567890")
    call.locator("li[data-k=to]").hover()
    page.get_by_role("button", name="value").click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text === 'Ba\\u200bko')")
    call.locator("li[data-k=list] > details > summary").hover()
    page.get_by_role("button", name="path").click()
    page.wait_for_function("() => navigator.clipboard.readText().then((text) => text === 'more.list')")
    call.get_by_role("button", name="text").click()
    expect(page.locator("#windows .turn.tool pre.json")).to_contain_text('"to"')
    assert tab.problems == []


def test_on_a_narrow_screen_one_view_is_shown_at_a_time(tab: Tab, endless: Trajectory) -> None:
    page = tab.page
    page.set_viewport_size({"width": NARROW, "height": 800})
    tab.open(address(endless))
    expect(page.locator("#windows .turn").first).to_be_visible()
    expect(page.locator(".outline")).to_be_hidden()
    page.get_by_role("link", name="Waterfall").click()
    expect(page.locator(".outline .line").first).to_be_visible()
    expect(page.locator("#windows")).to_be_hidden()
    assert tab.overflow() == 0
    assert tab.problems == []
