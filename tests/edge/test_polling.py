"""Pages that ask again until a job is over."""

import pytest
from django.test import RequestFactory

from flywheel.edge import polling
from tests.house.test_architecture import ROOT


@pytest.mark.parametrize(("is_over", "status"), [(False, 200), (True, 286)])
def test_the_last_part_ends_the_asking(is_over: bool, status: int) -> None:
    request = RequestFactory().get("/")
    assert polling.progress(request, "_empty.html", {"title": "t"}, is_over=is_over).status_code == status


@pytest.mark.parametrize(("is_over", "status"), [(False, 204), (True, 286)])
def test_what_did_not_change_is_not_sent(is_over: bool, status: int) -> None:
    answer = polling.unchanged(is_over=is_over)
    assert (answer.status_code, answer.content) == (status, b"")


def test_how_the_asking_ends_is_known_in_one_place() -> None:
    sources = (ROOT / "flywheel").rglob("*.py")
    assert [path.name for path in sources if "286" in path.read_text() or "HTMX_STOP" in path.read_text()] == [
        "polling.py"
    ]
