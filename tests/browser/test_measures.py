"""Figures in a browser: metrics that come after their page, points that open their list, and switching a detector."""

import secrets
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import DetectorSetting
from tests.browser.browse import NARROW, PATIENCE_MS, Tab
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
expect.set_options(timeout=PATIENCE_MS)
HOSTILE = "<img src=x onerror=alert(1)>"
FAR_BELOW = (
    "document.addEventListener('DOMContentLoaded', () => document.querySelector('main').style.paddingTop = '3000px')"
)


@pytest.fixture
def enter(cast: Cast, browser: Browser, live_server: LiveServer) -> Callable[..., Tab]:
    def go(user: User, **more: int) -> Tab:
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save()
        tab = Tab(browser, live_server.url, **more)  # type: ignore[arg-type]
        tab.sign_in(user.username, password)
        return tab

    return go


def traffic(build: Build) -> None:
    for day in (2, 3, 4):
        for number in range(4):
            build.trajectory(
                started_at=datetime(2026, 11, day, 9, number, tzinfo=UTC),
                outcome=[None, "success", "success", "failed"][number],
                tool_names=["email.send", HOSTILE][: 1 + number % 2],
                environment=HOSTILE if number == 3 else "production",
                cost_usd=0.01 * day,
                proposed_bucket="wrong_tool" if number == 3 else "",
            )


def test_metrics_come_after_their_page_and_a_row_opens_its_list(
    cast: Cast, build: Build, enter: Callable[..., Tab]
) -> None:
    traffic(build)
    tab = enter(cast.viewer)
    page = tab.page
    tab.open("/p/acme/trajectories/?q=tool:email.send")
    page.keyboard.press("m")
    expect(page.locator("h1")).to_have_text("Production metrics")
    expect(page.locator("#figures .tile").nth(1)).to_contain_text("66.7")
    expect(page.locator("#figures .tile").nth(1)).to_contain_text("3 without an outcome")
    # Of six charts, that of the tokens has nothing to draw. Those far below the view wait until somebody comes to them.
    assert page.locator("#figures [data-chart]").count() == 6
    for chart in page.locator("#figures [data-chart]").all():
        chart.scroll_into_view_if_needed()
        expect(chart.locator(".js-plotly-plot, .is-nothing")).to_be_visible()
    expect(page.locator("#figures .js-plotly-plot")).to_have_count(5)
    tab.click("By tool")
    expect(page.locator("#figures tbody tr").nth(1)).to_contain_text(HOSTILE)
    tab.click("By environment")
    page.locator("#figures tbody tr", has_text="production").first.locator("a").first.click()
    expect(page.locator("h1")).to_have_text("Trajectories")
    expect(page.locator("tbody tr")).to_have_count(9)
    assert "env%3Aproduction" in page.url
    assert tab.problems == []
    tab.close()


def test_the_drawing_library_is_fetched_once_a_chart_comes_into_view(
    cast: Cast, build: Build, enter: Callable[..., Tab]
) -> None:
    traffic(build)
    tab = enter(cast.viewer)
    page = tab.page
    page.add_init_script(FAR_BELOW)
    tab.open("/p/acme/trajectories/metrics/?from=2026-11-02&to=2026-11-04")
    chart = page.locator("#figures [data-chart]").last
    expect(chart).to_be_attached()
    page.evaluate("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 200)))")
    assert page.evaluate("typeof Plotly") == "undefined"
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".js-plotly-plot, .is-nothing")).to_be_visible()
    assert page.evaluate("typeof Plotly") == "object"
    assert tab.problems == []
    tab.close()


def test_one_day_alone_has_a_day_of_room_on_both_sides(cast: Cast, build: Build, enter: Callable[..., Tab]) -> None:
    traffic(build)
    tab = enter(cast.viewer)
    tab.open("/p/acme/trajectories/metrics/?from=2026-11-03&to=2026-11-03")
    ticks = tab.page.locator("[data-chart-key='metrics-failures-'] .xtick text")
    expect(ticks).to_have_text(["2 Nov 2026", "3 Nov 2026", "4 Nov 2026"])
    assert tab.problems == []
    tab.close()


def test_a_point_of_a_chart_opens_what_it_counts(cast: Cast, build: Build, enter: Callable[..., Tab]) -> None:
    traffic(build)
    tab = enter(cast.viewer)
    page = tab.page
    tab.open("/p/acme/trajectories/metrics/?from=2026-11-02&to=2026-11-04")
    bars = page.locator("[data-chart-key='metrics-failures-'] .bars .point")
    expect(bars).to_have_count(3)
    box = bars.nth(1).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("h1")).to_have_text("Trajectories")
    assert page.locator("input[data-filter]").input_value() == "bucket:wrong_tool started:2026-11-03"
    expect(page.locator("tbody tr")).to_have_count(1)
    assert tab.problems == []
    tab.close()


def test_a_detector_is_switched_off_after_it_was_asked(
    cast: Cast, build: Build, enter: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flywheel.trajectories.store.detector_wakeup.now", lambda _: None)
    wrong = build.trajectory(prompt=HOSTILE, answer='{"tool": "email.send", "arguments": {"to": ')
    detect_waiting()
    decide(trajectory=wrong, actor=Actor(cast.reviewer))
    tab = enter(cast.admin)
    page = tab.page
    tab.open("/p/acme/failures/detectors/")
    page.locator("a", has_text="A call that cannot be read as one").click()
    expect(page.locator("#wrong")).to_contain_text(HOSTILE)
    tab.click("Switch off")
    assert not DetectorSetting.objects.exists()
    page.locator("dialog[open] button", has_text="Switch off").click()
    expect(page.locator("h1 .chip")).to_have_text("off")
    assert not DetectorSetting.objects.get().is_on
    assert tab.problems == []
    tab.close()


@pytest.mark.parametrize(
    "path",
    [
        "trajectories/metrics/?from=2026-11-02&to=2026-11-04&by=tool",
        "failures/detectors/",
        "failures/detectors/broken_output/",
        "failures/agreement/",
    ],
)
def test_a_narrow_window_is_not_wider_than_it_is(
    cast: Cast, build: Build, enter: Callable[..., Tab], path: str
) -> None:
    traffic(build)
    tab = enter(cast.viewer, width=NARROW)
    tab.open(f"/p/acme/{path}")
    tab.page.wait_for_load_state("networkidle")
    assert tab.overflow() == 0
    assert tab.problems == []
    tab.close()
