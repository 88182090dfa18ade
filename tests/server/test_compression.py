import gzip
import re
from collections.abc import Callable, Iterator

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.test import Client
from django.test.client import RequestFactory

from flywheel.accounts.models import User
from flywheel.server.compression import Compression
from tests.accounts.test_access import PROJECT_PAGES, World, agent, candidate, evaluated, world
from tests.conftest import Build, Cast

__all__ = ["agent", "candidate", "evaluated", "world"]
FIRST_VISIT, LATER_PAGE = 450_000, 60_000
"""Bytes over the wire, headers left out: of the overview with all that it loads, and of any page after it."""
NAMED = re.compile(r'(?:src|href|content)="(/static/[^"]+)"')


def answered(response: HttpResponseBase) -> HttpResponseBase:
    request: HttpRequest = RequestFactory(headers={"accept-encoding": "gzip, br"}).get("/")
    return Compression(lambda _: response)(request)  # type: ignore[return-value]


def test_a_page_is_compressed_and_a_stream_is_not_held_back() -> None:
    page = answered(HttpResponse("<p>again</p>" * 100))
    assert page.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in page.headers["Vary"]
    come: list[int] = []

    def events() -> Iterator[bytes]:
        for number in range(3):
            come.append(number)
            yield b"data: event\n\n" * 100

    streamed = answered(StreamingHttpResponse(events(), content_type="text/event-stream"))
    assert isinstance(streamed, StreamingHttpResponse)
    assert "Content-Encoding" not in streamed.headers
    assert next(iter(streamed)) == b"data: event\n\n" * 100
    assert come == [0]
    assert "Content-Encoding" not in answered(FileResponse(iter([b"x" * 1000]))).headers


@pytest.mark.django_db
def test_a_page_that_may_show_a_secret_is_not_compressed(cast: Cast, sign_in: Callable[[User], Client]) -> None:
    admin = sign_in(cast.admin)
    packed = {"accept-encoding": "gzip"}
    for path in ("settings/", "settings/keys/", "trajectories/connect/"):
        page = admin.get(f"/p/acme/{path}", headers=packed)
        assert (page.status_code, page.get("Content-Encoding")) == (200, None), path
        assert "no-store" in page.headers["Cache-Control"]
    assert admin.get("/p/acme/settings/audit/", headers=packed).headers["Content-Encoding"] == "gzip"


def size(client: Client, address: str) -> int:
    return len(client.get(address, headers={"accept-encoding": "gzip"}).getvalue())


@pytest.mark.django_db
def test_pages_of_a_filled_project_are_light(
    cast: Cast, build: Build, world: World, sign_in: Callable[[User], Client]
) -> None:
    for number in range(120):
        build.trajectory(prompt=f"Please move meeting {number} to Friday", proposed_bucket="wrong_tool", label="")
    client = sign_in(world.everyone)
    overview = client.get("/p/acme/").content.decode()
    everywhere = set(NAMED.findall(overview))
    assert any("plotly-basic" in address for address in everywhere)
    assert sum(size(client, address) for address in ("/p/acme/", *everywhere)) < FIRST_VISIT
    weights: dict[str, int] = {}
    for page in PROJECT_PAGES:
        address = page.url(project=cast.project.slug, **world.of(page))
        answer = client.get(address, headers={"accept-encoding": "gzip"})
        if answer.status_code == 200 and not answer.streaming and "html" in answer.headers["Content-Type"]:
            is_packed = answer.get("Content-Encoding") == "gzip"
            html = (gzip.decompress(answer.content) if is_packed else answer.content).decode()
            more = set(NAMED.findall(html)) - everywhere
            weights[address] = len(answer.content) + sum(size(client, each) for each in more)
    assert len(weights) > 100
    assert {address: weight for address, weight in weights.items() if weight >= LATER_PAGE} == {}
