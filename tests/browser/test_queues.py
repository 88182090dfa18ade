"""A day at a queue: twenty items by keys alone, two people at once, a reservation that runs out, a connection cut."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project, User
from flywheel.failures.models import Decision, Failure, Queue, QueueItem, Review
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from flywheel.trajectories.models import Trajectory
from tests.browser.browse import NARROW, PATIENCE_MS, WIDE, Tab
from tests.conftest import Build, Cast
from tests.trajectories.lengthy import long_trajectory
from workers.jobs.detection import detect_waiting

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]

BROKEN = '{"tool": "email.send", "arguments": {"to": '
expect.set_options(timeout=PATIENCE_MS)
State = QueueItem.State


@dataclass(frozen=True)
class Place:
    project: Project
    url: str
    people: dict[str, str]
    """Usernames and their passwords."""
    tabs: list[Tab]
    """Closed at the end: an open page would keep the server, and it the database, busy."""

    def queue(self, build: Build, count: int, **fields: object) -> Queue:
        rows = [build.trajectory(answer=BROKEN, prompt=f"Write to person {n}") for n in range(count)]
        detect_waiting()
        builder = User.objects.get(username="builder")
        wanted = Wanted(**{"name": "mine", "instructions": "Look twice.", **fields})  # type: ignore[arg-type]
        queue = make(project=self.project, actor=Actor(builder), wanted=wanted)
        intake.add(queue=queue, keys=[row.pk for row in rows], actor=Actor(builder))
        return queue

    def sign_in(self, browser: Browser, name: str) -> Tab:
        tab = Tab(browser, self.url)
        self.tabs.append(tab)
        tab.sign_in(name, self.people[name])
        return tab


@pytest.fixture
def place(cast: Cast, live_server: LiveServer) -> Iterator[Place]:
    people = {name: secrets.token_urlsafe(12) for name in ("reviewer", "builder", "trainer")}
    for name, password in people.items():
        person = User.objects.get(username=name)
        person.set_password(password)
        person.save()
    tabs: list[Tab] = []
    yield Place(cast.project, live_server.url, people, tabs)
    for tab in tabs:
        tab.close()


def in_hand(page: Page) -> QueueItem:
    return QueueItem.objects.get(pk=int(page.locator("#decision input[name=item]").get_attribute("value") or 0))


def start(tab: Tab, queue: Queue) -> None:
    """From the queue's page, by its key."""
    tab.open(f"/p/acme/failures/queues/{queue.pk}/")
    tab.press("q")
    tab.page.wait_for_url("**/review/**")
    expect(tab.page.locator("#hold")).to_contain_text("yours")


def press_and_wait(page: Page, key: str) -> None:
    """Press a key that leads to another item."""
    page.evaluate("document.getElementById('desk').dataset.stale = ''")
    page.keyboard.press(key)
    expect(page.locator("#desk[data-stale]")).to_have_count(0)


def test_the_rail_counts_what_still_waits(browser: Browser, place: Place, build: Build) -> None:
    for number in range(3):
        build.trajectory(answer=BROKEN, prompt=f"Write to person {number}")
    detect_waiting()
    tab = place.sign_in(browser, "reviewer")
    tab.open("/p/acme/failures/queue/?order=newest")
    counts = tab.page.locator("a[href='/p/acme/failures/'] .rail-count")
    expect(counts).to_have_text(["3", "3"])
    press_and_wait(tab.page, "y")
    expect(counts).to_have_text(["2", "2"])
    expect(tab.page.locator("#desk")).to_contain_text("1 in the last hour")
    press_and_wait(tab.page, "u")
    expect(counts).to_have_text(["3", "3"])
    assert tab.problems == []


def test_twenty_items_are_labelled_without_one_mouse_event(browser: Browser, place: Place, build: Build) -> None:
    queue = place.queue(build, 20)
    tab = place.sign_in(browser, "reviewer")
    page = tab.page
    page.add_init_script(
        "window.mouse = 0; for (const kind of ['mousedown', 'mousemove', 'wheel', 'touchstart', 'pointerdown'])"
        " addEventListener(kind, () => window.mouse++, true)"
    )
    tab.open("/p/acme/")
    tab.press("g", "f")
    page.wait_for_url("**/failures/")
    tab.open("/p/acme/failures/queues/")
    tab.press("j", "Enter")
    page.wait_for_url(f"**/queues/{queue.pk}/")
    tab.press("q")
    page.wait_for_url("**/review/**")

    tab.press("?")
    listed = page.locator("#keys-sheet")
    for label in ("Pass: nothing wrong, next", "Fail: with the chosen category", "Decline", "Later: move to the end"):
        expect(listed).to_contain_text(label)
    tab.press("Escape")

    for place_in_queue in range(20):
        match place_in_queue % 5:
            case 0:
                press_and_wait(page, "y")
            case 1:
                press_and_wait(page, "p")
            case 2:
                page.keyboard.press("2")
                expect(page.locator("#decision input[value=wrong_tool]")).to_be_checked()
                press_and_wait(page, "f")
            case 3:
                page.keyboard.press("4")
                page.keyboard.press("n")
                page.keyboard.type("pf1: typed, and no key of the page")
                press_and_wait(page, "Control+Enter")
            case 4:
                page.keyboard.press("d")
                page.keyboard.type("a test run")
                press_and_wait(page, "Enter")
    expect(page.locator("#desk")).to_contain_text("All caught up")
    assert page.evaluate("window.mouse") == 0
    found = Failure.objects.filter(current=True).order_by("pk").values_list("decision", "bucket")
    cycle = [
        (Decision.CONFIRMED, "format_error"),
        (Decision.REJECTED, ""),
        (Decision.CHANGED, "wrong_tool"),
        (Decision.CHANGED, "bad_planning"),
    ]
    assert list(found) == cycle * 4
    assert set(Failure.objects.filter(bucket="bad_planning").values_list("note", flat=True)) == {
        "pf1: typed, and no key of the page"
    }
    assert queue.items.filter(state=State.DECLINED).count() == 4

    for left in range(19, 15, -1):
        press_and_wait(page, "u")
        expect(page.locator("#decision")).to_be_visible()
        assert Review.objects.filter(current=True).count() == left
    assert queue.items.filter(state=State.TO_REVIEW).count() == 4
    assert tab.problems == []


def test_two_reviewers_at_once_never_get_the_same_item(browser: Browser, place: Place, build: Build) -> None:
    queue = place.queue(build, 10)
    tabs = [place.sign_in(browser, name) for name in ("reviewer", "trainer")]
    for tab in tabs:
        start(tab, queue)
    seen: list[int] = []
    for _ in range(5):
        now = [in_hand(tab.page) for tab in tabs]
        assert now[0].pk != now[1].pk
        assert [item.reserved_by.username for item in now if item.reserved_by] == ["reviewer", "trainer"]
        seen += [item.pk for item in now]
        for tab in tabs:
            press_and_wait(tab.page, "y")
    assert len(set(seen)) == 10
    assert queue.items.filter(state=State.DONE).count() == 10
    expect(tabs[0].page.locator("#desk")).to_contain_text("No free items for you")
    expect(tabs[1].page.locator("#desk")).to_contain_text("All caught up")
    assert [problem for tab in tabs for problem in tab.problems] == []


def test_a_reservation_that_runs_out_is_told_and_what_was_written_stays(
    browser: Browser, place: Place, build: Build
) -> None:
    queue = place.queue(build, 1)
    first, second = place.sign_in(browser, "reviewer"), place.sign_in(browser, "trainer")
    start(first, queue)
    first.press("2", "n")
    first.page.keyboard.type("my words")
    QueueItem.objects.update(reserved_until=timezone.now() - timedelta(seconds=1))
    start(second, queue)
    first.page.keyboard.press("Control+Enter")
    alert = first.page.locator("#decision-pane [role=alert]")
    expect(alert).to_contain_text("Your reservation has run out, and trainer has this item")
    expect(first.page.locator("#note")).to_have_value("my words")
    expect(first.page.locator("#hold")).to_contain_text("not yours")
    assert not Review.objects.exists()
    press_and_wait(second.page, "y")
    first.page.locator("#note").focus()
    first.page.keyboard.press("Control+Enter")
    expect(alert).to_contain_text("trainer decided broken format since you opened this")
    expect(first.page.locator("#note")).to_have_value("my words")
    first.page.locator("#note").focus()
    press_and_wait(first.page, "Control+Enter")
    assert Failure.objects.get(current=True).note == "my words"
    for tab in (first, second):
        assert [problem for problem in tab.problems if "422" not in problem] == []


def test_a_connection_cut_in_the_middle_of_a_decision_keeps_it_and_says_so(
    browser: Browser, place: Place, build: Build
) -> None:
    queue = place.queue(build, 2)
    tab = place.sign_in(browser, "reviewer")
    page = tab.page
    start(tab, queue)
    item = in_hand(page)
    tab.press("4", "n")
    page.keyboard.type("written before the cut")
    page.route("**/decide/", lambda route: route.abort("connectionreset"))
    page.keyboard.press("Control+Enter")
    expect(page.locator("#banner")).to_contain_text("Not saved: the server cannot be reached. What you wrote is kept.")
    expect(page.locator("#note")).to_have_value("written before the cut")
    assert not Review.objects.exists()
    with page.expect_response("**/hold/"):
        page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#banner")).to_be_visible()
    page.unroute("**/decide/")
    page.reload()
    expect(page.locator("#note")).to_have_value("written before the cut")
    expect(page.locator("#decision input[value=bad_planning]")).to_be_checked()

    # Cut after the server has saved it: sending it again is the same decision.
    page.route("**/decide/", lambda route: (route.fetch(), route.abort("connectionreset")))
    page.locator("#note").focus()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#banner")).to_contain_text("Not saved: the server cannot be reached")
    assert Review.objects.count() == 1
    page.unroute("**/decide/")
    page.locator("#note").focus()
    press_and_wait(page, "Control+Enter")
    assert Review.objects.get().note == "written before the cut"
    assert in_hand(page) != item
    expect(page.locator("#banner")).to_be_hidden()


def test_any_step_of_a_long_trajectory_is_marked_at_the_desk(browser: Browser, place: Place, build: Build) -> None:
    row = long_trajectory(place.project, 1_000)
    queue = place.queue(build, 0)
    intake.add(queue=queue, keys=[row.pk], actor=Actor(User.objects.get(username="builder")))
    tab = place.sign_in(browser, "reviewer")
    page, marked = tab.page, tab.page.locator("#failing-step")
    start(tab, queue)
    page.locator("#step-s198").click()
    for _ in range(3):
        tab.press("]")
    expect(page.locator("#window > .note")).to_contain_text("Steps 201–400")
    expect(page.locator("#step-s200.current")).to_be_visible()
    tab.press("[")
    expect(page.locator("#window > .note")).to_contain_text("Steps 1–200")
    for end in (400, 600, 800, 1000):
        page.locator("[data-window=next]").click()
        expect(page.locator("#window > .note")).to_contain_text(f"–{end:,}".replace(",", " "))
    page.locator("#step-s900").click()
    tab.press("s")
    expect(marked).to_have_value("s900")
    expect(page.locator("#step-s900")).to_contain_text("fails here")
    page.reload()
    expect(marked).to_have_value("s900")
    tab.press("2", "Control+Enter")
    expect(page.locator("#decision")).to_have_count(0)
    assert (Failure.objects.get().bucket, Failure.objects.get().step) == ("wrong_tool", "s900")
    assert tab.problems == []


def test_all_of_a_long_text_and_json_as_it_was_written_are_read_at_the_desk(
    browser: Browser, place: Place, build: Build
) -> None:
    queue = place.queue(build, 1)
    row = queue.items.get().trajectory
    row.steps.filter(position=1).update(body={"output": [{"role": "user", "content": "x" * 25_000 + " the end"}]})
    row.steps.filter(position=2).update(
        body={"output": [{"role": "assistant", "content": '{"tool": "email.send", "arguments": {"to": "Bako"}}'}]}
    )
    tab = place.sign_in(browser, "reviewer")
    start(tab, queue)
    talk = tab.page.locator("#talk")
    expect(talk).to_contain_text("Only the beginning is shown")
    talk.get_by_role("button", name="Show all").click()
    expect(talk).to_contain_text("the end")
    call = talk.locator(".turn.tool")
    expect(call.locator(".tree")).to_be_visible()
    tab.page.keyboard.press("]")
    tab.page.keyboard.press("]")
    expect(talk.locator(".turn.tool.current")).to_be_visible()
    call.get_by_role("button", name="text", exact=True).click()
    expect(call.locator("pre.json")).to_be_visible()
    expect(talk.locator(".turn.tool.current")).to_be_visible()
    expect(call.locator("header a.num")).to_have_attribute("href", f"/p/acme/trajectories/{row.trace_id}/?step=s2")
    call.get_by_role("button", name="tree", exact=True).click()
    expect(call.locator(".tree")).to_be_visible()
    expect(call).to_contain_text("fails here")
    tab.page.keyboard.press("s")
    expect(call).not_to_contain_text("fails here")
    assert tab.problems == []


def test_the_pages_fit_a_narrow_window_and_break_no_policy(browser: Browser, place: Place, build: Build) -> None:
    queue = place.queue(build, 6, needed=2)
    Trajectory.objects.update(title="A request that is quite long and does not break " + "x" * 120)
    wide = place.sign_in(browser, "builder")
    start(wide, queue)
    item = in_hand(wide.page)
    paths = ["", "new/", f"{queue.pk}/", f"{queue.pk}/edit/", f"{queue.pk}/review/{item.pk}/", "?archived=1"]
    for width, colours in ((WIDE, "light"), (NARROW, "dark")):
        tab = Tab(browser, place.url, width=width, colours=colours, session=wide)  # type: ignore[arg-type]
        for path in paths:
            tab.open(f"/p/acme/failures/queues/{path}")
            tab.page.wait_for_load_state("networkidle")
            assert tab.page.locator("h1").count() == 1, path
            assert tab.overflow() == 0, (path, width)
        assert tab.problems == []
        tab.close()
