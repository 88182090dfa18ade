import re
from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.models import User
from tests.conftest import Cast

SignIn = Callable[[User], Client]
pytestmark = pytest.mark.django_db
TOKEN = re.compile(r"\w{64}")
"""Drawn anew for each answer."""
RAIL = b'<nav class="rail"'


def test_a_page_that_may_not_be_seen_keeps_the_rooms(cast: Cast, sign_in: SignIn) -> None:
    answer = sign_in(cast.viewer).get("/p/acme/settings/")
    assert answer.status_code == 403
    assert RAIL in answer.content
    assert b'href="/p/acme/failures/"' in answer.content


@pytest.mark.parametrize("path", ["trajectories/0123/", "no-such-room/", "evals/999/"])
def test_a_page_that_is_not_there_keeps_the_rooms(cast: Cast, sign_in: SignIn, path: str) -> None:
    answer = sign_in(cast.viewer).get(f"/p/acme/{path}")
    assert answer.status_code == 404
    assert RAIL in answer.content


def test_a_page_of_a_project_of_others_shows_nothing_of_it(cast: Cast, client: Client, sign_in: SignIn) -> None:
    for stranger in (sign_in(cast.stranger), client):
        answers = [stranger.get(f"/p/{slug}/no-such-room/") for slug in ("acme", "nowhere")]
        assert [answer.status_code for answer in answers] == [404, 404]
        there, nowhere = (re.sub(TOKEN, "", answer.content.decode()) for answer in answers)
        assert there == nowhere
        assert "rail" not in there


def test_a_page_that_failed_keeps_the_rooms_where_they_can_be_read(
    cast: Cast, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    client = sign_in(cast.viewer)
    client.raise_request_exception = False
    monkeypatch.setattr("flywheel.agents.pages.agents.render", fail)
    answer = client.get("/p/acme/agents/")
    assert (answer.status_code, RAIL in answer.content) == (500, True)
    monkeypatch.setattr("flywheel.server.shell._around", fail)
    answer = client.get("/p/acme/agents/")
    assert (answer.status_code, RAIL in answer.content) == (500, False)
    assert b"The server log has the details" in answer.content
