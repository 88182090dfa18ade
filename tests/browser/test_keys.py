"""Every key that the `?` list of the review desk names does what it says, and no other is named."""

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.core.detectors.standard_buckets import BUCKETS
from flywheel.environments.models import Task
from flywheel.failures.models import Decision, Failure, Queue, QueueItem
from flywheel.failures.queues import intake
from flywheel.failures.queues.queue_definitions import Wanted, make
from tests.browser.browse import PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("browser"),
]
expect.set_options(timeout=PATIENCE_MS)
PRESS_AT_ONCE = """
new MutationObserver((_, observer) => {
  const shown = document.querySelector("#decision input[name=item]");
  if (!shown || shown.value === before) return;
  observer.disconnect();
  window.pressedAt = shown.value;
  document.querySelector("#decision [data-key=p]").click();
}).observe(document.body, { childList: true, subtree: true });
var before = document.querySelector("#decision input[name=item]").value;
"""
"""Press `p` in the very moment that another item is shown; a page that is loaded anew knows of no press."""
BROKEN = '{"tool": "calendar.create_event", "arguments": {"person": '


@dataclass(frozen=True)
class Desk:
    """A builder at the second item of a queue; the first is skipped, so that there is a way back."""

    tab: Tab
    queue: Queue

    @property
    def page(self) -> Page:
        return self.tab.page

    @property
    def item(self) -> QueueItem:
        shown = self.page.locator("#decision input[name=item]").get_attribute("value")
        return QueueItem.objects.select_related("trajectory").get(pk=int(shown or 0))

    @property
    def decision(self) -> Failure:
        """The only one that counts."""
        return Failure.objects.get(current=True)

    def open(self) -> None:
        Failure.objects.filter(current=True).update(current=False, taken_back_at=timezone.now())
        now = timezone.now()
        for place, item in enumerate(self.queue.items.order_by("pk")):
            item.reviews.filter(current=True).update(current=False, taken_back_at=now)
            item.state, item.queued_at = QueueItem.State.TO_REVIEW, now + timedelta(microseconds=place)
            item.reserved_by = item.reserved_until = item.outcome = item.closed_at = None
            item.save(update_fields=["state", "queued_at", "reserved_by", "reserved_until", "outcome", "closed_at"])
        self.page.evaluate("sessionStorage.clear()")
        second = self.queue.items.order_by("pk")[1]
        self.tab.open(f"/p/acme/failures/queues/{self.queue.pk}/review/{second.pk}/")
        expect(self.page.locator("#hold")).to_contain_text("yours")
        self.settle()

    def settle(self) -> None:
        """Wait for what the page loads after itself."""
        for late in ("#make button", "#comment-text"):
            expect(self.page.locator(late)).to_be_visible()

    def press(self, key: str) -> None:
        for part in key.replace("mod+", "Control+").replace("shift+", "Shift+").split(" "):
            self.page.keyboard.press(part)

    def away(self, key: str) -> QueueItem:
        """Press a key that leads to another item. Returns the one that was left."""
        before = self.item
        self.page.evaluate("document.getElementById('desk').dataset.stale = ''")
        self.press(key)
        expect(self.page.locator("#desk[data-stale]")).to_have_count(0)
        assert self.item != before
        self.settle()
        return before


@pytest.fixture
def desk(browser: Browser, live_server: LiveServer, cast: Cast, build: Build) -> Iterator[Desk]:
    rows = [build.trajectory(answer=BROKEN, prompt=f"Meet Person{n} on friday") for n in range(4)]
    build.environment()
    detect_waiting()
    queue = make(project=cast.project, actor=Actor(cast.builder), wanted=Wanted("mine"))
    intake.add(queue=queue, keys=[row.pk for row in rows], actor=Actor(cast.builder))
    password = secrets.token_urlsafe(12)
    cast.builder.set_password(password)
    cast.builder.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in("builder", password)
    yield Desk(tab, queue)
    tab.close()


def confirms(desk: Desk, key: str) -> None:
    left = desk.away(key)
    assert (desk.decision.trajectory, desk.decision.decision) == (left.trajectory, Decision.CONFIRMED)


def passes(desk: Desk, key: str) -> None:
    left = desk.away(key)
    assert (desk.decision.trajectory, desk.decision.decision) == (left.trajectory, Decision.REJECTED)


def saves(desk: Desk, key: str) -> None:
    desk.press("2")
    left = desk.away(key)
    assert (desk.decision.trajectory, desk.decision.bucket) == (left.trajectory, "wrong_tool")


def chooses(bucket: str) -> Callable[[Desk, str], None]:
    def check(desk: Desk, key: str) -> None:
        field = desk.page.locator(f"#decision input[name=bucket][value={bucket}]")
        if field.is_checked():  # as the detector proposes it
            desk.press("0" if bucket != "other" else "1")
        desk.press(key)
        expect(field).to_be_checked()

    return check


def in_hand(desk: Desk) -> str:
    return (desk.page.locator("#talk li.current").get_attribute("id") or "").removeprefix("step-")


def steps(by: int) -> Callable[[Desk, str], None]:
    def check(desk: Desk, key: str) -> None:
        heads = desk.page.locator("#talk li[id^=step-]")
        ids = [(heads.nth(place).get_attribute("id") or "").removeprefix("step-") for place in range(heads.count())]
        desk.press("[")
        at = ids.index(in_hand(desk))
        desk.press(key)
        assert ids.index(in_hand(desk)) == max(0, min(len(ids) - 1, at + by))

    return check


def marks(desk: Desk, key: str) -> None:
    desk.press("[")
    desk.press(key)
    expect(desk.page.locator("#failing-step")).to_have_value(in_hand(desk))
    expect(desk.page.locator("#talk .current")).to_contain_text("fails here")


def corrects(desk: Desk, key: str) -> None:
    desk.press(key)
    expect(desk.page.locator("[data-correct]")).to_be_checked()
    expect(desk.page.locator("#correction .editor :focus")).to_have_count(1)


def chooses_kind(kind: str) -> Callable[[Desk, str], None]:
    def check(desk: Desk, key: str) -> None:
        desk.press(key)
        expect(desk.page.locator("[data-correct]")).to_be_checked()
        expect(desk.page.locator(f"#correction[data-kind={kind}] .editor :focus")).to_have_count(1)

    return check


def writes_in(selector: str) -> Callable[[Desk, str], None]:
    def check(desk: Desk, key: str) -> None:
        desk.press(key)
        expect(desk.page.locator(selector)).to_be_focused()

    return check


def makes_a_task(desk: Desk, key: str) -> None:
    left = desk.item
    desk.page.locator("#kind-tool").check()
    desk.page.locator("#correction select[name=tool]").select_option("calendar.create_event")
    desk.page.locator("[name='arg.person']").fill("Person1")
    desk.page.locator("[name='arg.day']").select_option("friday")
    desk.page.evaluate("document.activeElement.blur()")
    desk.press(key)
    expect(desk.page.locator("#make .note")).to_contain_text("created")
    assert Task.objects.get().failure == desk.decision
    assert desk.decision.trajectory == left.trajectory


def goes_on(desk: Desk, key: str) -> None:
    desk.away(key)
    assert not Failure.objects.filter(current=True).exists()


def goes_back(desk: Desk, key: str) -> None:
    decided = desk.away("p")
    desk.away(key)
    assert desk.item == decided


def puts_at_the_end(desk: Desk, key: str) -> None:
    left = desk.away(key)
    last = desk.queue.items.order_by("-queued_at").first()
    assert left == last


def undoes(desk: Desk, key: str) -> None:
    left = desk.away("p")
    desk.away(key)
    assert desk.item == left
    assert not Failure.objects.filter(current=True).exists()


def opens(selector: str) -> Callable[[Desk, str], None]:
    def check(desk: Desk, key: str) -> None:
        desk.press(key)
        expect(desk.page.locator(selector)).to_be_visible()
        desk.press("Escape")
        expect(desk.page.locator(selector)).to_be_hidden()

    return check


EFFECTS: dict[str, Callable[[Desk, str], None]] = {
    "?": opens("#keys-sheet"),
    "mod+k": opens("#palette"),
    "y": confirms,
    "p": passes,
    "f": saves,
    "Enter": saves,
    "mod+Enter": saves,
    **{bucket.shortcut: chooses(bucket.key) for bucket in BUCKETS.values()},
    "[": steps(-1),
    "]": steps(1),
    "s": marks,
    "c": corrects,
    "shift+a": chooses_kind("calls"),
    "shift+s": chooses_kind("avoid"),
    "shift+w": chooses_kind("text"),
    "shift+r": chooses_kind("refuse"),
    "shift+q": chooses_kind("ask"),
    "n": writes_in("#note"),
    "d": writes_in("input[name=reason]"),
    "m": writes_in("#comment-text"),
    "x": makes_a_task,
    "j": goes_on,
    "k": goes_back,
    "e": puts_at_the_end,
    "u": undoes,
}


def named_keys(page: Page) -> dict[str, str]:
    """Keys that the list names, with the address that it says they lead to, if any."""
    found = page.evaluate(
        "Object.fromEntries(Flywheel.keys.active().map("
        "(each) => [each.key, each.element?.dataset.room ? each.element.href : '']))"
    )
    return dict(found)


def test_every_key_of_the_review_desk_does_what_the_list_says(desk: Desk) -> None:
    desk.open()
    desk.away("p")  # so that there is something to undo
    named = named_keys(desk.page)
    rooms = {key: address for key, address in named.items() if address}
    assert len(rooms) >= 7
    assert {key for key in named if key not in rooms} == set(EFFECTS)
    for key, effect in EFFECTS.items():
        desk.open()
        effect(desk, key)
    for key, address in rooms.items():
        desk.open()
        desk.press(key)
        desk.page.wait_for_url(re.compile(rf"^{re.escape(address)}(\?.*)?$"))
    assert desk.tab.problems == []


def test_a_key_pressed_as_soon_as_the_next_item_is_shown_does_not_load_the_page(desk: Desk) -> None:
    """Where a form is shown before it is one of htmx's, whoever is quick sends it as a page without scripts would."""
    desk.open()
    desk.page.evaluate(PRESS_AT_ONCE)
    desk.press("p")
    desk.page.wait_for_function(
        "() => window.pressedAt && document.querySelector('#decision input[name=item]').value !== window.pressedAt",
        timeout=20_000,
    )
    assert QueueItem.objects.filter(state=QueueItem.State.DONE).count() == 2
    assert desk.tab.problems == []


def test_who_chooses_a_tool_goes_on_in_its_fields_by_keys(desk: Desk) -> None:
    desk.open()
    desk.press("c")
    desk.page.locator("#correction select[name=tool]").select_option("calendar.create_event")
    expect(desk.page.locator("[name='arg.person']")).to_be_visible()
    expect(desk.page.locator("#correction select[name=tool]")).to_be_focused()
    desk.press("Tab")
    desk.press("Tab")
    expect(desk.page.locator("#correction .argument :focus")).to_have_count(1)
    assert desk.tab.problems == []


def test_enter_in_the_form_saves_the_bucket_that_is_chosen(desk: Desk) -> None:
    for field in ("input[name=bucket][value=wrong_tool]", "[name='arg.person']"):
        desk.open()
        desk.page.locator("#kind-tool").check()
        desk.page.locator("#correction select[name=tool]").select_option("calendar.create_event")
        desk.page.locator("[name='arg.person']").fill("Person1")
        desk.page.locator("[name='arg.day']").select_option("friday")
        desk.page.locator("#decision input[name=bucket][value=wrong_tool]").check()
        desk.page.locator(field).focus()
        left = desk.away("Enter")
        assert (desk.decision.trajectory, desk.decision.bucket) == (left.trajectory, "wrong_tool"), field
    # On the console htmx says what it was still asking when the form went.
    assert [said for said in desk.tab.problems if "error: htmx:" not in said] == []


def test_no_key_acts_while_one_types_or_a_dialog_is_open(desk: Desk) -> None:
    desk.open()
    before = desk.item
    desk.press("n")
    for key in EFFECTS:
        if "+" not in key:
            desk.press(key)
    expect(desk.page.locator("#note")).to_be_focused()
    desk.press("Escape")
    desk.press("?")
    for key in ("p", "y", "f", "j", "2"):
        desk.press(key)
    expect(desk.page.locator("#keys-sheet")).to_be_visible()
    assert desk.item == before
    assert not Failure.objects.exists()
    assert desk.tab.problems == []


BOOKED = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "friday"}}


def test_every_kind_of_correction_is_written_by_keys_alone(desk: Desk) -> None:
    words: dict[str, tuple[str, dict[str, object]]] = {
        "shift+w": ("It is booked.", {"text": "It is booked."}),
        "shift+r": ("I must not.", {"refuse": "I must not."}),
        "shift+q": ("Which day?", {"ask": "Which day?"}),
        "shift+s": ("Nothing to do.", {"avoid": [], "text": "Nothing to do."}),
    }
    for key, (written, wanted) in words.items():
        begins(desk, key)
        desk.press("mod+a")
        desk.page.keyboard.type(written)
        desk.away("mod+Enter")
        assert desk.decision.corrected == wanted
    begins(desk, "c")
    fills(desk, "")
    desk.away("mod+Enter")
    assert desk.decision.corrected == BOOKED
    begins(desk, "shift+a")
    fills(desk, "1.")
    goes_to(desk, "correction-tool", "Shift+Tab")
    fills(desk, "")
    desk.away("mod+Enter")
    assert desk.decision.corrected == {"calls": [BOOKED, BOOKED], "order": "given"}
    assert desk.tab.problems == []


def test_calls_are_added_and_removed_by_keys(desk: Desk) -> None:
    begins(desk, "shift+a")
    calls = desk.page.locator("#correction .call")
    for key, count in (("shift+a", 3), ("shift+d", 2)):
        desk.press("Escape")
        desk.press(key)
        expect(calls).to_have_count(count)
        expect(calls.last.locator(":focus")).to_have_count(1)
    assert desk.tab.problems == []


def test_a_draft_of_another_kind_comes_back(desk: Desk) -> None:
    begins(desk, "shift+r")
    desk.page.keyboard.type("I must not.")
    desk.page.evaluate("document.getElementById('correction').dataset.stale = ''")
    desk.press("Escape")
    drawn = desk.page.locator("#correction[data-kind=refuse]:not([data-stale])")  # anew, as its words are others
    expect(drawn).to_have_count(1)
    desk.page.reload()
    words = desk.page.locator("#correction[data-kind=refuse] textarea[name=text]")
    expect(words).to_have_value("I must not.")
    assert desk.tab.problems == []


def test_what_was_saved_is_no_draft_any_more(desk: Desk) -> None:
    begins(desk, "shift+r")
    desk.page.keyboard.type("I must not.")
    desk.press("Escape")
    assert desk.page.evaluate(DRAFTS)
    desk.away("mod+Enter")
    assert desk.decision.corrected == {"refuse": "I must not."}
    desk.page.wait_for_function(f"() => !({DRAFTS})")
    assert desk.tab.problems == []


DRAFTS = "Object.keys(sessionStorage).some((name) => name.startsWith('flywheel.draft.'))"


def begins(desk: Desk, key: str) -> None:
    desk.open()
    desk.press("2")
    desk.press(key)
    expect(desk.page.locator("#correction .editor :focus")).to_have_count(1)


def goes_to(desk: Desk, field: str, key: str = "Tab") -> None:
    desk.page.wait_for_function("() => !document.querySelector('#correction.htmx-request, #correction .htmx-request')")
    for _ in range(12):
        if desk.page.evaluate("document.activeElement.id") == field:
            return
        desk.press(key)
    raise AssertionError(f"{key} does not reach {field}")


LISTENS = "() => document.querySelector('#correction')?.['htmx-internal-data']?.listenerInfos?.length > 0"


def fills(desk: Desk, prefix: str) -> None:
    """Choose the tool in the field that has the focus, and go on with Tab to its arguments."""
    # Nobody is so quick after the form has come, but a test is: its script listens a moment later.
    desk.page.wait_for_function(LISTENS)
    desk.press("ArrowDown")
    expect(desk.page.locator(f"[name='{prefix}arg.person']")).to_be_visible()
    goes_to(desk, f"{prefix}arg.person")
    desk.page.keyboard.type("Bako")
    goes_to(desk, f"{prefix}arg.day")
    desk.page.keyboard.type("fri")
    desk.press("Tab")
    expect(desk.page.locator(f"[name='{prefix}arg.day']")).to_have_value("friday")
