"""The README's pictures, of a running `make demo`: `python -m tests.browser.screenshots [URL [NAME…]]`.

Reads the logins from FLYWHEEL_HOME. The run and the candidate are the newest ones, so let a run of yours end first.
"""

import json
import sys
from pathlib import Path

from flywheel.system import env
from tests.browser.browse import Tab, open_browser

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DRAWN_MS = 1500
"""Charts are drawn after the page is there."""
PICTURES = {
    "overview": ("trainer", "", ""),
    "review": ("reviewer", "failures/queue/", ""),
    "run": ("trainer", "training/", "tr[data-href*='/runs/'] a"),
    "candidate": ("approver", "promotions/", "tr[data-href*='/candidates/'] a"),
}
"""Who looks, the page, and what is clicked there."""


def main() -> None:
    base, *names = sys.argv[1:] or ["http://127.0.0.1:8000"]
    logins = json.loads((env.home() / "demo_logins.json").read_text())
    IMAGES.mkdir(exist_ok=True)
    with open_browser() as browser:
        for name in names or PICTURES:
            role, path, link = PICTURES[name]
            tab = Tab(browser, base)
            tab.sign_in(role, logins[role])
            tab.open(f"/p/demo/{path}")
            if link:
                tab.page.locator(link).first.click()
                tab.page.wait_for_load_state("load")
            tab.page.wait_for_timeout(DRAWN_MS)
            tab.page.screenshot(path=IMAGES / f"{name}.png")
            print(f"{name}: {tab.page.url}", *tab.problems, sep="\n  ")
            tab.close()


if __name__ == "__main__":
    main()
