"""A builder plays a game by hand and works at a desk by calling tools, in a browser."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Membership, Project, Role, User
from flywheel.core.envs.kinds import KINDS
from flywheel.environments.models import Play, Split, Task
from flywheel.environments.playground import episode_moves as verbs
from flywheel.environments.versions.environment_terms import Terms
from flywheel.environments.versions.environment_versions import environment
from tests.browser.browse import NARROW, Tab

PASSWORD = "correct horse battery"


def tasks(project: Project, builder: User, kind: str) -> list[Task]:
    """Two tasks to train on, as the kind makes them."""
    made = environment(
        project=project, name=kind, actor=Actor(builder), config={}, verifier={"kind": kind}, terms=Terms(kind)
    )
    generate = KINDS[kind].generate
    assert generate is not None
    return [
        Task.objects.create(
            project=project,
            environment=made,
            number=number,
            prompt=pure.prompt,
            state=dict(pure.state),
            target=dict(pure.target),
            cluster=pure.cluster,
            split=Split.TRAIN,
            digest=str(number),
            created_by=builder,
        )
        for number, pure in enumerate(generate(2, seed=3), 1)
    ]


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_builder_plays_by_hand(browser: Browser, live_server: LiveServer) -> None:
    project = Project.objects.create(slug="acme", name="Acme")
    builder = User.objects.create_user(username="bo", password=PASSWORD)
    Membership.objects.create(user=builder, project=project, role=Role.BUILDER)
    tasks(project, builder, "tictactoe")
    work = tasks(project, builder, "workplace")[0]

    tab = Tab(browser, live_server.url)
    tab.sign_in("bo", PASSWORD)
    tab.open("/p/acme/environments/e/tictactoe/")
    tab.press("y")
    expect(tab.page.locator("h1")).to_contain_text("Playing t-1")
    while not tab.page.locator(".verdict").count():
        play = Play.objects.get(task__environment__name="tictactoe")
        move = verbs.hint(play)
        assert move is not None
        tab.page.fill("textarea[name=text]", move.content)
        tab.press("Control+Enter")
        expect(tab.page.locator(".board td.new").first).to_be_visible()
        expect(tab.page.locator(".card header").first).to_contain_text(f"{len(play.moves) + 1} of at most")
    expect(tab.page.locator(".verdict")).to_contain_text("1.00")
    tab.press("u")
    expect(tab.page.locator("textarea[name=text]")).to_be_visible()
    expect(tab.page.locator(".verdict")).to_have_count(0)

    tab.open(f"/p/acme/environments/e/workplace/tasks/{work.number}/")
    tab.click("Play it")
    tab.page.select_option("select[name=tool]", "contacts.delete_contact")
    tab.page.fill("input[name=argument-contact_id]", "00000003")
    tab.click("Call contacts.delete_contact")
    expect(tab.page.locator(".turn.observation")).to_be_visible()
    expect(tab.page.locator("#state tr", has_text="deleted")).to_contain_text("00000003")
    tab.press("h")
    expect(tab.page).to_have_url(re.compile("hint=1"))
    here = tab.page.url
    narrow = Tab(browser, live_server.url, width=NARROW, colours="dark", session=tab)
    narrow.open(here)
    if folder := os.environ.get("FLYWHEEL_SCREENSHOTS"):
        for name, each in (("play-1440", tab), ("play-390", narrow)):
            each.page.screenshot(path=Path(folder, f"{name}.png"), full_page=True)
    assert (tab.overflow(), narrow.overflow()) == (0, 0)
    assert tab.problems + narrow.problems == []
    narrow.close()
    tab.close()
