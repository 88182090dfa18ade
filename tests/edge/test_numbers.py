"""Numbers that come in as text, and what happens everywhere to those that are none."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.models import User
from flywheel.edge.numbers import BIGINT, INTEGER, key, number
from tests.accounts.test_access import PROJECT_PAGES, World, agent, candidate, evaluated, world
from tests.conftest import Cast
from tests.house.test_architecture import ROOT

__all__ = ["agent", "candidate", "evaluated", "world"]
NONE = ["", "-", "--1", "+1", "1_0", "1 ", " 1", "1.0", "1e3", "0x1", "²", "٣", "१२", "½", "9" * 4400, "-" + "9" * 4400]


@given(st.integers(min_value=-BIGINT, max_value=BIGINT))
def test_what_is_written_is_read(value: int) -> None:
    assert number(str(value), least=-BIGINT, most=BIGINT) == value
    assert number(str(value)) == (value if 0 <= value <= INTEGER else None)
    assert key(str(value)) == (value if value > 0 else None)


@given(st.text(alphabet=st.sampled_from("0123456789-_+ .e٣²९"), max_size=30) | st.text())
def test_all_else_is_none_and_never_an_error(text: str) -> None:
    value = number(text, least=-BIGINT, most=BIGINT)
    assert (value is not None) == bool(re.fullmatch("-?[0-9]{1,19}", text) and abs(int(text)) <= BIGINT)


@pytest.mark.parametrize("text", NONE, ids=lambda text: repr(text[:8]))
def test_what_python_would_read_or_refuse_is_none(text: str) -> None:
    assert number(text, least=-BIGINT, most=BIGINT) is key(text) is None


@pytest.mark.parametrize(("text", "least", "most", "value"), [("5", 1, 5, 5), ("6", 1, 5, None), ("0", 1, 5, None)])
def test_a_number_out_of_its_range_is_none(text: str, least: int, most: int, value: int | None) -> None:
    assert number(text, least=least, most=most) == value


PARSED_ELSEWHERE = ("core/", "trajectories/formats/", "edge/numbers.py", "system/env.py")
"""What is no address, form or header: the domain's words, telemetry, and the operator's settings."""


def test_nothing_else_reads_numbers_by_hand() -> None:
    package = ROOT / "flywheel"
    by_hand = re.compile(r"\.(isdecimal|isdigit|isnumeric)\(\)|\bint\((request|data|asked)\b")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if by_hand.search(path.read_text())}
    assert {path for path in found if not path.startswith(PARSED_ELSEWHERE)} == set()


FIELDS = {
    *("all", "at", "batch", "count", "cursor", "cols", "days", "edit", "every", "from", "id", "ids", "item", "job"),
    *(
        "like",
        "n",
        "notes",
        "number",
        "page",
        "parts",
        "place",
        "queue",
        "rank",
        "read_as",
        "rollouts",
        "run",
        "samples",
    ),
    *("seed", "seen", "since", "size", "split", "start", "step", "steps", "task", "tasks", "to", "until", "up_to"),
    *("version", "view"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["9" * 4400, "9" * 18, "²"], ids=["long", "beyond integer", "no digit of ours"])
def test_no_page_breaks_on_a_number_that_is_none(
    text: str, world: World, cast: Cast, sign_in: Callable[[User], Client]
) -> None:
    client = sign_in(world.everyone)
    client.raise_request_exception = False
    sent = dict.fromkeys(FIELDS, text)
    wrong: dict[str, Any] = {}
    for page in PROJECT_PAGES:
        address = page.url(project=cast.project.slug, **world.of(page))
        for send in (client.get, client.post):
            with transaction.atomic():
                answer = send(address, sent)
                if answer.status_code >= 500:
                    wrong[f"{send.__name__} {page.name}"] = answer.status_code
                transaction.set_rollback(True)
    assert wrong == {}
