"""A builder looks at what the workers' machines offer, on a wide and on a narrow screen."""

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Membership, Project, Role, User
from flywheel.environments import sandbox_machines
from tests.browser.browse import NARROW, WIDE, Tab
from workers.sandbox.host import GETTING
from workers.sandbox.report import PROBES

PASSWORD = "correct horse battery"


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_builder_sees_what_each_machine_has_and_how_to_get_the_rest(
    browser: Browser, live_server: LiveServer
) -> None:
    project = Project.objects.create(slug="acme", name="Acme")
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=project, role=Role.BUILDER)
    layers = [{"name": n, "state": "on", "stops": p.stops, "found": p.good, "getting": ""} for n, p in PROBES.items()]
    whole = {"layers": layers, "runs": True, "machine": "Linux 6.12, as an ordinary user", "seconds_a_call": 0.02}
    sandbox_machines.keep("worker-1", whole)
    lacking = {**layers[3], "state": "missing", "found": "Function not implemented", "getting": GETTING["landlock"]}
    sandbox_machines.keep("worker-2", {**whole, "layers": [*layers[:3], lacking, layers[4]], "runs": False})

    tab = Tab(browser, live_server.url)
    tab.sign_in("bo", PASSWORD)
    tab.open("/p/acme/environments/")
    tab.click("Sandbox")
    cards = tab.page.locator("main .card")
    expect(cards.nth(0)).to_contain_text("Untrusted code runs here, behind every layer. A call took 20 ms.")
    expect(cards.nth(1)).to_contain_text("Untrusted code is refused here. Missing: landlock.")
    expect(cards.nth(1)).to_contain_text("It needs Linux 5.13 or newer")
    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    narrow.open("/p/acme/environments/sandbox/")
    assert (tab.overflow(), narrow.overflow()) == (0, 0), WIDE
    assert tab.problems + narrow.problems == []
    narrow.close()
    tab.close()
