"""The demo's story walked in Chromium, from its link to a better version in production: `python -m
tests.browser.first_hour [--seeds 20 21 …] [--pictures FOLDER]`.

Each seed is a Flywheel of its own with other customers. It prints how many clicks and keys the walk took, how long the
machine did (training, evals and pages; nobody thinks in between), how long the review desk took from a key to the next
item, what the gate said, and production's success before and after, a line each. With a folder, the pictures of README
and guides lie there afterwards, light and dark, and the film (`make screenshots`).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Locator

from tests.benching.processes import free_port
from tests.browser.browse import Tab, open_browser
from tests.browser.camera import Camera

PATIENCE_MS = 600_000
REVIEWED = 5
REASON = "better, no harm"
ACT_MS, KEY_MS, PASSING_MS, LAST_MS = 1500, 800, 150, 5000
"""How long the film shows a click, a key, a moment of waiting and the end."""
PASSES_MS = 2000
"""How long such a moment of waiting was."""
CUSTOMERS = 30
"""Trajectories of the new version that are waited for."""
NEXT = """
window.decided = new Promise((done, fail) => {
  setTimeout(() => fail(new Error("no other item came within a minute")), 60_000);
  const before = document.querySelector("#decision").dataset.draft;
  addEventListener("keydown", (event) => {
    const look = () => {
      const now = document.querySelector("#decision")?.dataset.draft;
      if (now === before) requestAnimationFrame(look);
      else requestAnimationFrame(() => done(performance.now() - event.timeStamp));
    };
    look();
  }, { once: true, capture: true });
});
0
"""
"""Milliseconds from a key to the frame that shows another item; an error where none comes."""
LINK = re.compile(r"http://\S+(/account/demo/\S+)")


Share = tuple[float, int]
"""A success rate in percent, and of how many trajectories."""


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: str
    before: Share | None
    after: Share | None


class Visitor:
    """Somebody who does what the line above the page says, and counts each click and key."""

    def __init__(self, tab: Tab, camera: Camera | None) -> None:
        self.tab, self.page, self.camera = tab, tab.page, camera
        self.page.set_default_timeout(PATIENCE_MS)
        self.acts = 0
        self.next_ms: list[float] = []

    def click(self, what: str | Locator) -> None:
        self.acts += 1
        target = self.page.locator(what).first if isinstance(what, str) else what
        if self.camera:
            self.camera.frame(self.page, ACT_MS, at=target)
        target.click()

    def press(self, key: str) -> None:
        self.acts += 1
        self.watch(KEY_MS)
        self.page.keyboard.press(key)

    def go_on(self, act: str, picture: str = "") -> None:
        """Click the scene's button once it says this; what passes meanwhile is filmed, much faster than it passes."""
        button = self.page.locator(".scene .primary").filter(has_text=re.compile("^" + re.escape(act)))
        while self.camera and not button.count():
            self.watch(PASSING_MS)
            self.page.wait_for_timeout(PASSES_MS)
        button.wait_for()
        if picture:
            self.picture(picture)
        before = self.page.url
        self.click(button)
        self.page.wait_for_url(lambda url: url != before)

    def picture(self, name: str) -> None:
        if self.camera:
            self.camera.picture(self.page, name)

    def watch(self, milliseconds: int) -> None:
        if self.camera:
            self.camera.frame(self.page, milliseconds)


def walk(visitor: Visitor, link: str) -> Outcome:
    """The five scenes, one after the other."""
    page = visitor.page
    visitor.tab.open(link)
    before = success(page.locator("main"))
    visitor.picture("overview")
    visitor.go_on("Review")
    page.locator("#decision").wait_for()
    for number in range(REVIEWED):
        if number == 1:
            visitor.picture("review")
        page.evaluate(NEXT)
        visitor.press("y")
        visitor.next_ms.append(page.evaluate("window.decided"))
    visitor.go_on("Open the form")
    visitor.picture("launch")
    visitor.click("#launch-button")
    page.wait_for_url(re.compile("/runs/"))
    visitor.go_on("Open the candidate", picture="run")
    verdict = decide(visitor)
    if verdict.startswith("NOT"):
        return Outcome(verdict, before, None)
    visitor.go_on("Watch production")
    for _ in range(60):
        if (after := success(page.locator("main"))) is not None and after[1] >= CUSTOMERS:
            break
        time.sleep(1)
        page.reload()
        visitor.watch(PASSING_MS)
    visitor.picture("production")
    visitor.watch(LAST_MS)
    return Outcome(verdict, before, after)


def decide(visitor: Visitor) -> str:
    """Have the sealed tasks asked, wait for the suites, give a reason and promote what is eligible; the verdict."""
    page, verdict = visitor.page, visitor.page.locator(".verdict").first
    sealed = page.locator("#final form button")
    if sealed.count():
        visitor.click(sealed.first)
        visitor.click("dialog[open] [data-confirm-yes]")
        page.locator("#final .chip.ok, #final .chip.warn, #final .chip.bad").first.wait_for()
        page.reload()
    while verdict.inner_text().startswith("Not ready"):
        time.sleep(1)
        page.reload()
    visitor.picture("candidate")
    words = verdict.inner_text()
    if page.locator("#decision [name=override]").count():
        return f"NOT ELIGIBLE: {words}"
    visitor.acts += len(REASON)
    page.fill("#decision [name=reason]", REASON)
    visitor.click(page.locator("#decision .primary"))
    visitor.click("dialog[open] [data-confirm-yes]")
    page.locator(".scene", has_text="is live").wait_for()
    return words


def success(main: Locator) -> Share | None:
    """The live version's success in production, in percent, and of how many; None where none was reported."""
    found = re.search(r"Success in production\s+([0-9.]+)\s*%.*?n\s*([0-9,]+)", main.inner_text(), re.DOTALL)
    return (float(found[1]), int(found[2].replace(",", ""))) if found else None


@contextmanager
def demo(seed: int) -> Iterator[tuple[str, str, float]]:
    """A Flywheel of its own with the demo of this seed: its address, the link into it, and how long it took to load."""
    home, port, started = Path(tempfile.mkdtemp(prefix="flywheel-first-hour-")), free_port(), time.monotonic()
    variables = {"FLYWHEEL_HOME": str(home), "FLYWHEEL_PORT": str(port), "FLYWHEEL_STORY_SEED": str(seed)}
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "flywheel.server.supervisor", "--demo"],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert supervisor.stdout is not None
        link = next((found[1] for line in supervisor.stdout if (found := LINK.search(line))), "")
        if not link:
            sys.exit("the demo did not start; what it said stands above")
        yield f"http://127.0.0.1:{port}", link, time.monotonic() - started
    finally:
        supervisor.terminate()
        supervisor.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def visit(browser: Browser, seed: int, camera: Camera | None) -> None:
    with demo(seed) as (address, link, loaded_s):
        tab = Tab(browser, address)
        visitor = Visitor(tab, camera)
        began = time.monotonic()
        found = walk(visitor, link)
        took = time.monotonic() - began
        print(
            f"seed {seed}: {visitor.acts} clicks and keys, {took:.0f} s after {loaded_s:.0f} s of loading; production "
            f"{found.before} -> {found.after}; {found.verdict}; from key to next item "
            f"{', '.join(f'{ms:.0f}' for ms in visitor.next_ms)} ms",
            *tab.problems,
            sep="\n  ",
            flush=True,
        )
        tab.close()
    if camera:
        print(f"the film has {camera.develop('first-hour'):,} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.browser.first_hour", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[20], help="each another demo")
    parser.add_argument("--pictures", type=Path, help="a folder for the pictures and the film of the first seed")
    given = parser.parse_args()
    with open_browser() as browser:
        for number, seed in enumerate(given.seeds):
            visit(browser, seed, Camera(given.pictures) if given.pictures and number == 0 else None)


if __name__ == "__main__":
    main()
