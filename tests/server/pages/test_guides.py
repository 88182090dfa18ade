"""The guides inside the app: all of them, with links that lead somewhere, and help from each page to its part."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.http import Http404
from django.test import Client
from django.urls import get_resolver

from flywheel.accounts.models import User
from flywheel.server.pages import guides
from tests.accounts.test_access import walk
from tests.conftest import Cast

EVERY = [(folder, path.stem) for folder in ("guides", "design") for path in sorted((guides.DOCS / folder).glob("*.md"))]
LINK = re.compile(r'href="([^"]*)"')


def test_every_guide_is_on_the_shelf_once() -> None:
    shelved = [name for names in guides.SHELF.values() for name in names]
    assert sorted(shelved) == sorted(name for folder, name in EVERY if folder == "guides")


@pytest.mark.parametrize(("folder", "name"), EVERY)
def test_every_link_of_a_guide_leads_to_a_page_and_a_part_that_are_there(folder: str, name: str) -> None:
    found = guides.read(folder, name)
    for target in LINK.findall(found.html):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = found
        if path:
            steps = path.strip("/").split("/")
            assert steps[0] == "help", target
            there = guides.read("design" if steps[1:-1] else "guides", steps[-1])
        assert not anchor or anchor in there.anchors, target


def test_every_page_leads_to_a_part_that_is_there() -> None:
    views = {page.name for page in walk(get_resolver())}
    for view, place in guides.PLACES.items():
        name, _, anchor = place.partition("#")
        assert not anchor or anchor in guides.read("guides", name).anchors, place
        assert view in views or f"{view}:index" in views or view == "settings", view
    assert guides.help_for("evals:compare") == "/help/evals/#compare-two"
    assert guides.help_for("evals:grid") == "/help/evals/", "as its room"
    assert guides.help_for("overview:index") == "/help/"


def test_html_in_a_guide_is_text_and_what_is_not_served_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guides").mkdir()
    text = "# A *guide*\n\n<script>alert(1)</script> [the code](../../workers/x.py) [next](other.md#a-part)\n"
    (tmp_path / "guides/one.md").write_text(text)
    monkeypatch.setattr(guides, "DOCS", tmp_path)
    found = guides.read.__wrapped__("guides", "one")
    assert "&lt;script&gt;" in found.html
    assert "<a>the code</a>" in found.html
    assert 'href="/help/other/#a-part"' in found.html
    with pytest.raises(Http404):
        guides.read.__wrapped__("guides", "none")


@pytest.mark.django_db
def test_a_page_of_a_project_shows_the_way_to_its_help(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    client = sign_in(cast.viewer)
    assert 'href="/help/reviewer/"' in client.get("/p/acme/failures/").content.decode()
    page = client.get("/help/reviewer/").content.decode()
    assert 'id="the-desk"' in page
    assert 'aria-current="page"' in page
    assert client.get("/help/").status_code == 200
    assert client.get("/help/design/gate/").status_code == 200
    assert client.get("/help/no-such-guide/").status_code == 404


@pytest.mark.django_db
def test_every_picture_of_a_guide_is_served_light_and_dark(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    client = sign_in(cast.viewer)
    pictures = [src for each in EVERY for src in re.findall(r'<img [^>]*src="([^"]*)"', guides.read(*each).html)]
    assert "/help/images/run.png" in pictures
    assert "/help/images/run-dark.png" in pictures
    for src in pictures:
        answer = client.get(src)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/png"), src
    assert client.get("/help/images/none.png").status_code == 404
