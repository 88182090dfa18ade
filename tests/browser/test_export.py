"""A builder takes an environment elsewhere, first without and then with its held-out tasks."""

import zipfile

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from tests.browser.browse import NARROW, Tab
from tests.conftest import Build, Cast

PASSWORD = "correct horse battery"


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_builder_downloads_a_package_and_the_ledger_knows(
    browser: Browser, live_server: LiveServer, build: Build, cast: Cast
) -> None:
    task_set = build.task_set(train=3, held_out=2)
    cast.trainer.set_password(PASSWORD)
    cast.trainer.save()
    tab = Tab(browser, live_server.url)
    tab.sign_in(cast.trainer.username, PASSWORD)
    tab.open(f"/p/{cast.project.slug}/environments/e/{task_set.environment_version.environment.name}/")
    tab.click("Task sets")
    tab.click("Export")
    card = tab.page.locator("#export")
    card.get_by_text("Harbor").click()
    with tab.page.expect_download() as waiting:
        tab.page.keyboard.press("d")
    with zipfile.ZipFile(waiting.value.path()) as archive:
        assert len([name for name in archive.namelist() if name.endswith("/task.toml")]) == 3
    card.get_by_label("held-out tasks and their answers").check()
    card.get_by_text("verifiers 0.4").click()
    with tab.page.expect_download() as waiting:
        card.get_by_role("button", name="Download").click()
    assert waiting.value.suggested_filename == "flywheel_mail-verifiers.zip"
    tab.page.reload()
    expect(tab.page.locator("#openings")).to_contain_text("verifiers 0.4 export")
    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    narrow.open(tab.page.url.removeprefix(live_server.url).partition("#")[0])
    assert (tab.overflow(), narrow.overflow()) == (0, 0)
    assert tab.problems + narrow.problems == []
    narrow.close()
    tab.close()
