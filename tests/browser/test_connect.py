"""A team connects its agent: opens the page, makes a key, runs the example, and the page sees it by itself."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import ApiKey, Membership, Project, Role, User
from tests.browser.browse import NARROW, WIDE, Tab
from tests.waiting import PATIENCE_S

PASSWORD = "correct horse battery"


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_page_sees_the_first_trace_by_itself(
    browser: Browser, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flywheel.trajectories.store.detector_wakeup.soon", lambda _: None
    )  # there is no worker to wake
    project = Project.objects.create(slug="acme", name="Acme")
    admin = User.objects.create_user(username="ada", password=PASSWORD)
    Membership.objects.create(user=admin, project=project, role=Role.ADMIN)
    tab = Tab(browser, live_server.url)
    tab.sign_in("ada", PASSWORD)
    tab.open("/p/acme/trajectories/")
    tab.click("Connect an agent")
    page = tab.page
    live = page.locator("#live")
    expect(live).to_contain_text("Waiting for the first request")
    expect(page.locator("#text-openai")).to_contain_text("fw_YOUR_KEY")
    tab.click("gateway")
    expect(page.locator("#text-gateway")).to_contain_text("X-Flywheel-Trace-Id")
    expect(page.locator("a[data-holds='openai gateway']")).to_have_attribute("aria-current", "true")
    tab.click("OpenTelemetry, Python")
    expect(page.locator("#with-gateway")).to_be_hidden()

    tab.click("Make a key")
    expect(page.locator("#with-opentelemetry-python [role=status]")).to_contain_text("is created")
    script = page.locator("#text-opentelemetry-python").inner_text()
    key = ApiKey.objects.get()
    assert f"fw_{key.public}_" in script
    tab.click("curl")
    expect(page.locator("#with-opentelemetry-python")).to_be_hidden()
    expect(page.locator("#text-curl")).to_contain_text(f"fw_{key.public}_")
    assert page.url.endswith("?with=curl")

    ApiKey.objects.update(scopes=["read"])
    run(script, tmp_path)
    expect(live).to_contain_text("this key has no scope 'ingest'")
    ApiKey.objects.update(scopes=["ingest"])
    run(script, tmp_path)
    expect(live).to_contain_text("First trajectory: Where is my order A-17?")
    expect(live).to_contain_text("2 steps, 1 model call.")
    expect(live).not_to_contain_text("no scope")
    expect(live).to_contain_text("it works")
    expect(page.locator("#live[hx-get]")).to_have_count(0)
    page.reload()
    assert key.public not in page.content(), "it was shown once"

    live.locator("a", has_text="Check the last hour").click()
    expect(live).to_contain_text("First trajectory")
    here = page.url
    assert tab.overflow() == 0
    assert tab.problems == []
    for width, colours in ((WIDE, "dark"), (NARROW, "light")):
        other = Tab(browser, live_server.url, width=width, colours=colours, session=tab)  # type: ignore[arg-type]
        other.open(here)
        assert other.page.locator("h1").count() == 1
        assert other.overflow() == 0
        assert other.problems == []
        other.close()
    tab.close()


def run(script: str, folder: Path) -> None:
    """The example as it was copied from the page."""
    path = folder / "agent.py"
    path.write_text(script)
    subprocess.run([sys.executable, str(path)], check=True, capture_output=True, timeout=PATIENCE_S)
