"""How every kind of page of a running demo fits and loads in Chromium: `python -m tests.browser.pages LINK [--pictures
FOLDER]`, LINK as `make demo` prints it.

It follows the pages' own links and looks at one page of each address pattern: its height in windows of 1440 × 900, when
its largest part was painted, how much its layout shifted (https://web.dev/articles/cls), and what came over the wire on
a visit after the first. It ends with 1 where a page is too much of anything.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlparse

from playwright.sync_api import Error, Response

from tests.browser.browse import Tab, open_browser

HEIGHT = 900
WINDOWS_MAX, PAINT_MS_MAX, SHIFT_MAX, KB_MAX = 3.0, 1000.0, 0.1, 60.0
LONG = {
    "trajectories:index",
    "trajectories:detail",
    "environments:environment",
    "help:glossary",
    "help:guide",
}
"""Lists, trajectories and texts, which are as long as what they hold."""
SKIPPED = ("/account/", "/static/", "/api/", "/admin/", "/export", "/download", ".json", ".csv")
WATCH = """
window.looked = { paint: 0, shift: 0 };
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.looked.paint = entry.startTime;
}).observe({ type: "largest-contentful-paint", buffered: true });
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.looked.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
LINKS = "[...document.querySelectorAll('a[href]')].map((link) => link.href)"
SETTLED_MS = 1200
"""For what a page loads after itself."""


@dataclass(frozen=True, slots=True)
class Look:
    name: str
    """Of the address pattern."""
    path: str
    windows: float
    paint_ms: float
    shift: float
    kb: float

    @property
    def too_much(self) -> list[str]:
        found = []
        if self.windows > WINDOWS_MAX and self.name not in LONG:
            found.append("tall")
        if self.paint_ms > PAINT_MS_MAX:
            found.append("late")
        if self.shift > SHIFT_MAX:
            found.append("shifts")
        if self.kb > KB_MAX:
            found.append("heavy")
        return found


class Weight:
    """Counts what responses take on the wire."""

    def __init__(self, tab: Tab) -> None:
        self.bytes = 0
        tab.page.on("response", self._on)

    def _on(self, response: Response) -> None:
        try:
            sizes = response.request.sizes()
        except Error:  # the page went on before its end
            return
        self.bytes += sizes["responseBodySize"] + sizes["responseHeadersSize"]


def looks(tab: Tab, start: str, pictures: Path | None) -> Iterator[Look]:
    """A look at one page of each pattern that can be reached from the start."""
    from django.urls import Resolver404, resolve

    weight, waiting, seen = Weight(tab), [start], set[str]()
    while waiting:
        address = waiting.pop(0)
        path = urlparse(address).path
        try:
            name = resolve(path).view_name
        except Resolver404:
            continue
        if name in seen:
            continue
        seen.add(name)
        weight.bytes = 0
        tab.page.goto(address)
        tab.page.wait_for_load_state("load")
        tab.page.wait_for_timeout(SETTLED_MS)
        height = tab.page.evaluate("document.documentElement.scrollHeight")
        looked = tab.page.evaluate("window.looked")
        if pictures:
            tab.page.screenshot(path=pictures / f"{name.replace(':', '.')}.png", full_page=True)
        yield Look(name, path, height / HEIGHT, looked["paint"], looked["shift"], weight.bytes / 1000)
        host = urlparse(address).netloc
        for link in tab.page.evaluate(LINKS):
            there = urlparse(urljoin(address, link))
            if there.netloc == host and not any(part in there.path for part in SKIPPED):
                waiting.append(f"{there.scheme}://{host}{there.path}")


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    import django

    django.setup()
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("link", help="as `make demo` prints it")
    parser.add_argument("--pictures", type=Path, help="a folder for a picture of each whole page")
    given = parser.parse_args()
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    base = "{0.scheme}://{0.netloc}".format(urlparse(given.link))
    with open_browser() as browser:
        tab = Tab(browser, base)
        tab.context.add_init_script(WATCH)
        tab.open(given.link)
        tab.page.wait_for_timeout(SETTLED_MS)  # a visit after the first is weighed
        found = []
        for look in looks(tab, tab.page.url, given.pictures):
            found.append(look)
            print(
                f"{look.windows:5.1f} windows {look.paint_ms:6.0f} ms {look.shift:6.3f} {look.kb:7.1f} kB  "
                f"{look.name}  {look.path}  {', '.join(look.too_much)}",
                flush=True,
            )
        print(*tab.problems, sep="\n")
    bad = [look for look in found if look.too_much]
    print(f"{len(found)} pages, {len(bad)} with too much of something, {len(tab.problems)} messages in the console")
    sys.exit(1 if bad or tab.problems else 0)


if __name__ == "__main__":
    main()
