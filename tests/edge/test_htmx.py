"""One address that answers with a page and with a part of it: who gets which, on every page of the resolver."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from flywheel.accounts.models import User
from tests.accounts.test_access import PROJECT_PAGES, World, agent, candidate, evaluated, world
from tests.conftest import Cast

__all__ = ["agent", "candidate", "evaluated", "world"]
RESTORE = {"HX-Request": "true", "HX-History-Restore-Request": "true"}


def is_page(answer: Any) -> bool:
    return bool(answer.content.lstrip().lower().startswith(b"<!doctype"))


@pytest.mark.django_db
def test_whoever_goes_back_gets_the_page_and_no_cache_takes_its_part_for_it(
    world: World, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    client = sign_in(world.everyone)
    wrong, both = {}, 0
    for page in PROJECT_PAGES:
        address = page.url(project=cast.project.slug, **world.of(page))
        whole = client.get(address)
        if whole.status_code != 200 or whole.streaming or not is_page(whole):
            continue
        if not is_page(client.get(address, headers=RESTORE)):
            wrong[page.name] = "a part of it, to whoever goes back"
        part = client.get(address, headers={"HX-Request": "true"})
        if is_page(part):
            continue
        both += 1
        for answer in (whole, part):
            if not {"HX-Request", "HX-History-Restore-Request"} <= set(answer.headers["Vary"].split(", ")):
                wrong[page.name] = f"varies by {answer.headers['Vary']} alone"
    assert wrong == {}
    assert both >= 4
