"""`make screenshots`: the pictures of README and guides, all of one turn of the wheel in a data directory of its own.

After the turn (`make turn`) the version that it promoted answers a few more customers, so that something waits for
review. What the turn measured is the last line of stdout: README's table and its pictures are to be of one run.
"""

import json
import secrets
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flywheel.system import env
from tests.browser.browse import Tab, open_browser
from workers.programs.turn import CUSTOMERS, flywheel_in, turn_wheel

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DRAWN_MS = 1500
"""Charts are drawn after the page is there."""
MORE_CUSTOMERS = range(CUSTOMERS.stop, CUSTOMERS.stop + 30)
PICTURES = {
    "overview": ("", ""),
    "review": ("failures/queue/", ""),
    "run": ("training/", "tr[data-href*='/runs/'] a"),
    "candidate": ("promotions/", "tr[data-href*='/candidates/'] a"),
}
"""The page, and what is clicked there."""


def main() -> None:
    started = time.monotonic()
    home = env.home() / "screenshots"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with flywheel_in(home) as endpoint:
        result = turn_wheel(endpoint, started)
        name, password = go_on(endpoint)
        IMAGES.mkdir(exist_ok=True)
        take(endpoint, name, password)
    print(json.dumps({**result, "seconds": round(time.monotonic() - started, 1)}), flush=True)


def go_on(endpoint: str) -> tuple[str, str]:
    """Let the live version answer more customers; returns the login of somebody who may do everything."""
    from flywheel.accounts.models import Project, Role
    from workers.programs import story_playback

    project = Project.objects.get(slug="default")
    now = datetime.now(UTC)
    story_playback.send_traffic(
        project, project.agents.get(), endpoint, MORE_CUSTOMERS, begin=now - timedelta(hours=2), end=now
    )
    story_playback.wait_for_detectors(project)
    person = story_playback.person(project, "ana", *Role)
    password = secrets.token_urlsafe(12)
    person.set_password(password)
    person.save()
    return person.username, password


def take(endpoint: str, name: str, password: str) -> None:
    with open_browser() as browser:
        tab = Tab(browser, endpoint)
        tab.sign_in(name, password)
        for picture, (path, link) in PICTURES.items():
            tab.open(f"/p/default/{path}")
            if link:
                tab.page.locator(link).first.click()
                tab.page.wait_for_load_state("load")
            tab.page.wait_for_timeout(DRAWN_MS)
            tab.page.screenshot(path=IMAGES / f"{picture}.png")
        print(*tab.problems, sep="\n")
        tab.close()


if __name__ == "__main__":
    main()
