"""Chromium, and tabs that remember what went wrong on the pages they showed."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Locator, Page, Response, sync_playwright

from tests.waiting import PATIENCE_S

PATIENCE_MS = 1000 * PATIENCE_S
"""How long a page may take before the test fails: a laptop that trains a model beside it is slow."""
WIDE, NARROW = 1440, 390
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str | None:
    """Where the browser is, None where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found or ("/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


ABORTED = ("htmx:sendAbort", "htmx:afterRequest")
"""What htmx says of a request that a later one replaced. The second stands before each kind of failure, all of which
have a word of their own."""


class Tab:
    """One page with a session of its own."""

    def __init__(
        self,
        browser: Browser,
        base: str,
        *,
        width: int = WIDE,
        colours: Literal["light", "dark"] = "light",
        session: "Tab | None" = None,
    ) -> None:
        self.base = base
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=colours,
            storage_state=session.context.storage_state() if session else None,
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.problems: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", self._on_error)
        self.page.on("response", self._on_response)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.text.startswith(ABORTED):
            return
        if message.type in ("error", "warning"):
            self.problems.append(f"{self.page.url}: {message.type}: {message.text}")

    def _on_error(self, error: Error) -> None:
        self.problems.append(f"{self.page.url}: uncaught: {error.message}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{self.page.url}: {response.status} from {response.request.method} {response.url}")

    def open(self, path: str) -> None:
        """Go to a path and wait until its scripts ran and nothing more is being fetched for the first view."""
        answer = self.page.goto(path if path.startswith("http") else self.base + path)
        assert answer is not None
        assert answer.ok, f"{path}: {answer.status}"
        self.page.wait_for_load_state("load")

    def sign_in(self, name: str, password: str) -> None:
        self.open("/account/login/")
        self.page.fill("input[name=username]", name)
        self.page.fill("input[name=password]", password)
        self.page.click("button:has-text('Sign in')")
        self.page.wait_for_url(lambda url: "/login" not in url)

    def click(self, text: str) -> None:
        """Click the link or button whose words begin so."""
        self.named(text).click()

    def named(self, text: str) -> Locator:
        words = re.compile(r"^\s*" + r"\s+".join(re.escape(word) for word in text.split()))
        return self.page.locator("main a:visible, main button:visible").filter(has_text=words).first

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(
            self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") or 0
        )

    def close(self) -> None:
        self.context.close()
