"""Every link that a page makes leads to a page, and no filter that we write ourselves is refused there."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from re import findall
from urllib.parse import parse_qsl, urldefrag, urljoin, urlsplit

import pytest
from django.test import Client
from django.urls import Resolver404, resolve

from flywheel.accounts.models import User
from tests.accounts.test_access import World, agent, candidate, evaluated, world
from tests.browser.test_accessible import lived_in

__all__ = ["agent", "candidate", "evaluated", "lived_in", "world"]
pytestmark = pytest.mark.django_db(transaction=True)
LINKS = {"href", "hx-get", "data-href", "data-preview"}
OURS = "http://testserver"
NO_PAGES = (f"{OURS}/static/", f"{OURS}/account/logout/")
REFUSALS = (
    "Search not run.",
    "No metrics.",
    "The last 30 days are shown.",
    "Filter ignored.",
    'class="errors"',
    "is unknown",
)
"""What pages say to an address that they do not understand."""
AT_MOST = 2
"""Addresses that are opened for each thing that a view can be asked for."""


class Links(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attrs if name in LINKS and value and tag != "link"}

    def handle_data(self, data: str) -> None:
        self.found |= set(findall(r'"(/p/[^"\s<>]*)"', data))  # of charts, which name theirs in JSON


def links(page: str, address: str) -> Iterator[str]:
    """Addresses on this server, as paths with their queries."""
    for link in sorted(Links(page).found):
        where = urldefrag(urljoin(OURS + address, link)).url
        # The menu of fields begins a filter; the list says what it can go on with.
        is_begun = any(name == "q" and value.endswith(":") for name, value in parse_qsl(urlsplit(where).query))
        if where.startswith(f"{OURS}/") and not (is_begun or where.startswith(NO_PAGES)):
            yield where.removeprefix(OURS)


def wishes(address: str) -> set[tuple[str, str]]:
    """What a view is asked for: each parameter, and each field that a filter names. Facets combine them without end."""
    parts = urlsplit(address)
    try:
        view = resolve(parts.path).view_name
    except Resolver404:
        view = parts.path
    query = parse_qsl(parts.query)
    fields = {f"q {field}" for name, value in query if name == "q" for field in findall(r"([\w.]+)[:<>=]", value)}
    return {(view, name) for name in {"", *(name for name, _ in query), *fields}}


def test_every_link_leads_somewhere(lived_in: World, sign_in: Callable[[User], Client]) -> None:
    client = sign_in(lived_in.everyone)
    client.raise_request_exception = False
    waiting, come_by, opened = deque(["/", "/p/acme/"]), {"/": "", "/p/acme/": ""}, Counter[tuple[str, str]]()
    wrong: dict[str, str] = {}
    while waiting:
        address = waiting.popleft()
        answer = client.get(address)
        links_on_it: set[str] = set()
        if answer.status_code in (301, 302):
            links_on_it = {urljoin(address, answer.headers["Location"])}
        elif answer.status_code not in (200, 204, 286):
            wrong[f"{come_by[address]} → {address}"] = str(answer.status_code)
        elif not answer.streaming and answer.headers.get("Content-Type", "").startswith("text/html"):
            page = answer.content.decode()
            if refusal := next((words for words in REFUSALS if words in page), ""):
                wrong[f"{come_by[address]} → {address}"] = refusal
            links_on_it = set(links(page, address))
        for link in sorted(links_on_it):
            if link not in come_by and any(opened[wish] < AT_MOST for wish in wishes(link)):
                opened.update(wishes(link))
                come_by[link] = address
                waiting.append(link)
    assert wrong == {}, "\n".join(f"{way}: {what}" for way, what in wrong.items())
    assert len({name for name, _ in opened}) > 80
