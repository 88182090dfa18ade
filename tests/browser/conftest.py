"""The stage of the browser tests: a small story behind a live server, with a real worker, and a browser."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser
from pytest_django.live_server_helper import LiveServer

from flywheel.accounts.models import Project, Role
from flywheel.agents.models import Agent
from tests.browser import browse
from tests.worker import Worker
from workers.programs import story_playback

CUSTOMERS, SESSIONS_BEFORE = 30, 20
ROLES = {
    "reviewer": [Role.REVIEWER, Role.BUILDER],
    "trainer": [Role.TRAINER],
    "approver": [Role.APPROVER],
    "admin": [Role.ADMIN, Role.TRAINER],
}


@dataclass(frozen=True)
class Stage:
    project: Project
    agent: Agent
    url: str
    passwords: dict[str, str]
    worker: Worker

    @property
    def here(self) -> str:
        return f"/p/{self.project.slug}/"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if browse.chromium() is None:
        pytest.skip("there is no Chromium on this machine: install the package chromium")
    with browse.open_browser() as opened:
        yield opened


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Without tabs when the test ends: a page that is left open would go on asking beside all tests that follow."""
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture
def stage(browser: Browser, live_server: LiveServer, worker: Worker) -> Stage:
    """The agent is live and has answered. What it did last week is labelled, this week's waits with its proposals."""
    project = Project.objects.create(slug="acme", name="Acme")
    passwords = {name: secrets.token_urlsafe(12) for name in ROLES}
    for name, roles in ROLES.items():
        person = story_playback.person(project, name, *roles)
        person.set_password(passwords[name])
        person.save()
    story_playback.policy(project)
    agent = story_playback.agent_with_first_version(project)
    story_playback.environment(project, agent)
    now = datetime.now(UTC)
    monday = now - timedelta(days=5)
    before, after = range(SESSIONS_BEFORE), range(SESSIONS_BEFORE, CUSTOMERS)
    story_playback.send_traffic(project, agent, live_server.url, before, begin=now - timedelta(days=10), end=monday)
    story_playback.send_traffic(project, agent, live_server.url, after, begin=monday, end=now)
    story_playback.wait_for_detectors(project)
    story_playback.label_all(project, before=monday)
    return Stage(project, agent, live_server.url, passwords, worker)
