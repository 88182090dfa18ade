"""The builder guide's "A Python verifier", walked unbroken in Chromium at a person's pace, and how long each part took:
`python -m tests.browser.walk [URL]`, of a running `make demo` in which nobody has walked it yet.

It does what the guide says and nothing else: 1.5 s before each click, 40 ms a character, 2 s for each output of the
audit (judged passed and failed in turns: how long is measured, not who is right), 10 s to read the trial.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator

from flywheel.system import env
from tests.browser.browse import Tab, open_browser

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "builder.md"
CLICK_S, CHARACTER_MS, OUTPUT_S, READ_S = 1.5, 40, 2.0, 10.0
OUTPUTS = 50
PATIENCE_MS = 900_000


class Walker:
    """Somebody at the keyboard. `hands` is what was waited for the person and not for the machine, in seconds."""

    def __init__(self, tab: Tab) -> None:
        self.tab, self.page = tab, tab.page
        self.page.set_default_timeout(PATIENCE_MS)
        self.hands = 0.0
        self.parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.parts[name] = time.monotonic() - began
        print(f"{self.parts[name]:8.1f} s  {name}", flush=True)

    def think(self, seconds: float) -> None:
        self.hands += seconds
        time.sleep(seconds)

    def click(self, what: str | Locator) -> None:
        self.think(CLICK_S)
        (self.tab.named(what) if isinstance(what, str) else what).click()

    def choose(self, field: str, option: str) -> None:
        self.think(CLICK_S)
        self.page.select_option(field, option)

    def write(self, field: str, text: str) -> None:
        """As one who selects what stands there and types over it."""
        self.think(CLICK_S)
        self.page.locator(field).first.fill("")
        self.hands += len(text) * CHARACTER_MS / 1000
        self.page.locator(field).first.press_sequentially(text, delay=CHARACTER_MS)

    def wait_for(self, selector: str, text: str = "") -> None:
        self.page.locator(selector).filter(has_text=text).first.wait_for()


def source() -> str:
    """The verifier that the guide says to paste."""
    (found,) = re.findall(r"```python\n(   def verify.*?)```", GUIDE.read_text(), re.DOTALL)
    return "\n".join(line.removeprefix("   ") for line in found.splitlines())


def walk(walker: Walker, here: str) -> None:
    page, tab = walker.page, walker.tab
    tab.open(f"{here}environments/")
    with walker.part("the verifier made and tried"):
        walker.click("workplace")
        walker.click("Edit the verifier")
        walker.choose("#kind", "python")
        walker.click("Add part")
        walker.wait_for(".rubric-part textarea[name$=source]")
        walker.click(page.locator("button[aria-label^=Remove]").first)
        page.locator(".rubric-part").nth(1).wait_for(state="detached")
        walker.think(CLICK_S)
        page.fill(".rubric-part textarea[name$=source]", source())
        walker.click("Try on these")
        walker.wait_for("#trial", "nothing is saved")
        walker.think(READ_S)
    with walker.part("saved, and every task proved"):
        walker.click("Save as the next version")
        page.wait_for_url(re.compile(r"/e/workplace/$"))
        page.locator("#proving").wait_for(state="detached")
    with walker.part("frozen"):
        walker.click("Freeze task set")
        walker.write("#freeze [name=name]", "strict")
        walker.click(page.locator("#freeze button[type=submit], #freeze button:not([type])").first)
        page.wait_for_url(re.compile(r"strict"))
    evaluate(walker, "train")
    with walker.part(f"{OUTPUTS} outputs audited"):
        walker.click("Audit the reward")
        walker.write("[name=size]", str(OUTPUTS))
        walker.click("Start the audit")
        judge(walker)
    with walker.part("back to the set"):
        walker.click("strict@1")
        page.wait_for_url(re.compile(r"strict"))
    evaluate(walker, "held_out")


def evaluate(walker: Walker, split: str) -> None:
    with walker.part(f"evaluated on {split} tasks"):
        walker.click("Evaluate")
        walker.click(walker.page.locator(f"[name=split][value={split}]"))
        walker.click("Start eval")
        walker.wait_for("main", "succeeded")


def judge(walker: Walker) -> None:
    page = walker.page
    for place in range(1, OUTPUTS + 1):
        walker.wait_for(".desk-talk .pane-head b", f"Output {place} of {OUTPUTS}")
        walker.think(OUTPUT_S)
        walker.tab.press("p" if place % 2 else "f")
    walker.wait_for("main", "All outputs are judged")
    walker.tab.press("Control+Enter")
    page.locator(".verdict").wait_for()


def main() -> None:
    base = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000"
    logins = json.loads((env.home() / "demo_logins.json").read_text())
    with open_browser() as browser:
        tab = Tab(browser, base)
        tab.sign_in("trainer", logins["trainer"])
        walker = Walker(tab)
        began = time.monotonic()
        try:
            walk(walker, "/p/demo/")
        except Exception:
            tab.page.screenshot(path="walk.png", full_page=True)
            raise
        print(f"{time.monotonic() - began:8.1f} s  all of it, of which a person's hands and eyes {walker.hands:.0f} s")
        print(*tab.problems, sep="\n")


if __name__ == "__main__":
    main()
