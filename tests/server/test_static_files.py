import gzip
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.http.response import ResponseHeaders
from django.templatetags.static import static
from django.test import Client

from flywheel.server.static_files import digest

LASTING = "max-age=315360000, public, immutable"
STATIC = Path(settings.BASE_DIR) / "static"


class Answer(NamedTuple):
    status: int
    headers: ResponseHeaders
    body: bytes


def ask(client: Client, address: str, **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = client.get(address, headers=names)
    return Answer(response.status_code, response.headers, response.getvalue())


def test_an_address_that_pages_name_is_kept_for_good(client: Client) -> None:
    address = static("app.css")
    assert address == f"/static/app.css?v={digest('app.css')}"
    answer = ask(client, address)
    assert answer.headers["Cache-Control"] == LASTING
    assert answer.body == (STATIC / "app.css").read_bytes()


@pytest.mark.parametrize("query", ["", "?v=0123456789ab", "?v="])
def test_an_address_of_another_release_is_answered_and_kept_for_a_minute(client: Client, query: str) -> None:
    answer = ask(client, f"/static/app.css{query}")
    assert (answer.status, answer.headers["Cache-Control"]) == (200, "max-age=60, public")


def test_every_file_that_is_worth_it_is_sent_compressed(client: Client) -> None:
    worth_it = [path for path in STATIC.rglob("*.*s") if path.stat().st_size > 512]
    assert len(worth_it) > 10
    for path in worth_it:
        name = path.relative_to(STATIC).as_posix()
        packed = ask(client, static(name), accept_encoding="gzip, deflate, br")
        assert packed.headers["Content-Encoding"] == "gzip", name
        assert packed.headers["Vary"] == "Accept-Encoding"
        assert packed.headers["Content-Length"] == str(len(packed.body))
        assert gzip.decompress(packed.body) == path.read_bytes(), f"compress {name} again"
        plain = ask(client, static(name))
        assert "Content-Encoding" not in plain.headers
        assert plain.body == path.read_bytes()


def test_what_a_browser_has_is_not_sent_again(client: Client) -> None:
    known = ask(client, static("app.js"), accept_encoding="gzip").headers["ETag"]
    again = ask(client, static("app.js"), accept_encoding="gzip", if_none_match=known)
    assert (again.status, again.body) == (304, b"")
    part = ask(client, static("app.js"), range="bytes=0-9", accept_encoding="gzip")
    assert (part.status, part.body) == (206, (STATIC / "app.js").read_bytes()[:10])


def test_a_file_that_is_not_there_is_not_found(client: Client, db: None) -> None:
    assert ask(client, static("nothing.js")).status == 404


def test_while_one_works_on_a_file_its_address_stays(settings: Any) -> None:
    settings.DEBUG = True
    assert static("app.css") == "/static/app.css"
