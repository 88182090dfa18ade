"""Candidates, promotions and suites by API."""

from collections.abc import Callable

import pytest
from django.test import Client

from flywheel.promotions.models import Candidate
from tests.conftest import Cast

Keys = Callable[..., dict[str, str]]
pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("place", ["candidates", "promotions", "agents/assistant/suites"])
def test_a_cursor_that_is_none_of_ours_is_400(
    cast: Cast, candidate: Candidate, client: Client, key: Keys, place: str
) -> None:
    answer = client.get(f"/api/v1/{place}", {"cursor": "nonsense"}, headers=key("read", by=cast.viewer))
    assert (answer.status_code, "is none of ours" in answer.json()["detail"]) == (400, True)
