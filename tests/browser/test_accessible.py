"""axe-core over every page of every room: wide and narrow, light and dark."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.resources import files
from typing import Any, Literal

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import Browser
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.failures.labels.decisions import decide
from flywheel.failures.models import Queue, QueueItem
from flywheel.failures.queues.reviews import give
from flywheel.trajectories.annotations import comments
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.store.merge import store
from tests.accounts.test_access import PROJECT_PAGES, World, agent, candidate, evaluated, world
from tests.browser.browse import NARROW, WIDE, Tab
from tests.conftest import Build, Cast, proposed
from tests.trajectories.talking import body_of, episode

__all__ = ["agent", "candidate", "evaluated", "world"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
]
AXE = files("axe_playwright_python") / "axe.min.js"
SERIOUS = ("serious", "critical")
ROOMS = [
    ("trajectories", "failures"),
    ("environments",),
    ("evals",),
    ("agents", "training", "promotions"),
    ("overview", "settings"),
]
"""The pages of each test; they are many."""
RUN = """async (rules) => {
  const { violations } = await axe.run({ resultTypes: ["violations"], ...(rules && { runOnly: rules }) });
  return violations.map(({ id, impact, nodes }) => [impact, id, nodes.slice(0, 3).map(({ html, any }) =>
    html.slice(0, 160) + (any[0]?.data?.contrastRatio ? ` ${any[0].data.contrastRatio}` : ""))]);
}"""


RULES: dict[Literal["light", "dark"], list[str] | None] = {"light": None, "dark": ["color-contrast"]}
"""The rules that are run in each colours, null for all: of all of them one alone sees colours."""
COME_TO_CHARTS = """async () => {
  for (const chart of document.querySelectorAll("[data-chart]")) {
    chart.scrollIntoView();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  scrollTo(0, 0);
}"""
"""Each is drawn once it is seen."""
OTHER_PANELS = "[data-panels] .tabs a[href^='#']:not([aria-current=true])"


@pytest.fixture
def lived_in(cast: Cast, build: Build, world: World) -> World:
    """The rooms as they are after a while: proposals, labels, a queue at work, talk."""
    for number in range(12):
        trace = f"{number + 1:032x}"
        spans = otlp_traces.decode(body_of(episode(trace, calls=1 + number % 3)), otlp_traces.PROTOBUF).spans
        store(cast.project, spans, source=Source.PRODUCTION, format="otlp")
    rows = list(Trajectory.objects.filter(project=cast.project, source=Source.PRODUCTION).order_by("pk"))
    now = timezone.now()
    for number, row in enumerate(rows):
        Trajectory.objects.filter(pk=row.pk).update(
            started_at=now - timedelta(days=number), outcome=("success", "failed", None)[number % 3]
        )
        if number % 2 == 0:
            proposed(row, "wrong_tool", detector="calls", evidence="It called another.")
            Trajectory.objects.filter(pk=row.pk).update(proposed_bucket="wrong_tool", proposed_score=0.9)
    decide(trajectory=rows[1], actor=Actor(cast.reviewer), bucket="wrong_tool", note="the other one")
    decide(trajectory=rows[3], actor=Actor(cast.reviewer))
    queue = Queue.objects.get(pk=world.values["failures", "pk"])
    for row in rows[4:8]:
        QueueItem.objects.create(queue=queue, trajectory=row)
    give(item=QueueItem.objects.filter(queue=queue).order_by("pk")[1], actor=Actor(cast.builder), bucket="wrong_tool")
    named = Trajectory.objects.get(trace_id=world.values["trajectories", "trace_id"])
    step = named.steps.latest("position").span_id
    comments.say(trajectory=named, actor=Actor(cast.builder), text="Is this right, @everyone?", step=step)
    return world


@pytest.fixture
def tab(browser: Browser, live_server: LiveServer, world: World, sign_in: Callable[[User], Client]) -> Iterator[Tab]:
    tab = Tab(browser, live_server.url)
    cookie = sign_in(world.everyone).cookies["sessionid"]
    tab.context.add_cookies([{"name": "sessionid", "value": cookie.value, "url": live_server.url}])
    # Before any script of the page, by the debugger: the page's policy stays on.
    tab.context.add_init_script(AXE.read_text())
    yield tab
    tab.close()


def overflow(tab: Tab) -> int:
    """Pixels, once charts have followed the window."""
    for _ in range(20):
        if tab.overflow() == 0:
            return 0
        tab.page.wait_for_timeout(100)
    return tab.overflow()


def keeps_out(tab: Tab) -> dict[str, Any]:
    """What is wrong with what the tab shows, by width and colours."""
    wrong: dict[str, Any] = {}
    tab.page.set_viewport_size({"width": WIDE, "height": 900})
    tab.page.wait_for_function("() => !document.querySelector('.htmx-request')")
    tab.page.evaluate(COME_TO_CHARTS)
    for width in (WIDE, NARROW):
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # resized
        if too_wide := overflow(tab):
            wrong[f"{width}"] = f"wider than the window by {too_wide}"
        for colours, rules in RULES.items():
            tab.page.emulate_media(color_scheme=colours)
            if found := [each for each in tab.page.evaluate(RUN, rules) if each[0] in SERIOUS]:
                wrong[f"{width} {colours}"] = found
    return wrong


@pytest.mark.parametrize("rooms", ROOMS, ids=" ".join)
def test_no_page_of_these_rooms_keeps_anybody_out(
    rooms: tuple[str, ...], lived_in: World, cast: Cast, tab: Tab, sign_in: Callable[[User], Client]
) -> None:
    client = sign_in(lived_in.everyone)
    addresses = []
    if "trajectories" in rooms:
        trace = lived_in.values["trajectories", "trace_id"]
        step = Trajectory.objects.get(trace_id=trace).steps.latest("position").span_id
        addresses = [f"/p/acme/trajectories/{trace}/?step={step}", f"/p/acme/trajectories/{1:032x}/"]
    if "settings" in rooms:
        addresses = [reverse("accounts:profile")]
    for page in PROJECT_PAGES:
        if page.room in rooms:
            address = page.url(project=cast.project.slug, **lived_in.of(page))
            answer = client.get(address)
            is_page = answer.status_code == 200 and "html" in answer.headers["Content-Type"]
            if is_page and b"<!doctype" in answer.content[:20]:
                addresses.append(address)
    assert len(addresses) >= 5 * len(rooms)
    wrong: dict[str, Any] = {}
    for address in addresses:
        tab.open(address)
        wrong |= {f"{address} {how}": found for how, found in keeps_out(tab).items()}
        for panel in tab.page.eval_on_selector_all(OTHER_PANELS, "tabs => tabs.map(({ hash }) => hash)"):
            tab.page.click(f"[data-panels] .tabs a[href='{panel}']")
            wrong |= {f"{address}{panel} {how}": found for how, found in keeps_out(tab).items()}
    assert wrong == {}
    assert tab.problems == []
