"""The frame around every page: a room's number is what waits in it for whoever looks."""

import re
from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.accounts.models import User
from tests.conftest import Build, Cast

pytestmark = pytest.mark.django_db


def counts(client: Client) -> dict[str, int]:
    page = client.get("/p/acme/agents/").content.decode()
    rail = page.split('<nav class="rail"', 1)[1].split("</nav>")[0]
    rooms = re.findall(r'data-room="(\w+)"(.*?)</li>', rail, re.DOTALL)
    found = {room: re.search(r'rail-count">(\d+)<', inside) for room, inside in rooms}
    return {room: int(count[1]) for room, count in found.items() if count}


def test_a_room_counts_what_waits_there_for_whoever_looks(
    cast: Cast, build: Build, sign_in: Callable[[User], Client]
) -> None:
    build.trajectory()
    build.trajectory(proposed_bucket="wrong_tool", proposed_score=0.9)
    build.task()
    build.task(is_proved=False)
    build.task(is_proved=False)
    assert counts(sign_in(cast.viewer)) == {}
    assert counts(sign_in(cast.reviewer)) == {"Failures": 1}
    assert counts(sign_in(cast.builder))["Environments"] == 2
