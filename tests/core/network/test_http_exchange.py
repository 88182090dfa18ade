"""One exchange with a server that somebody chose: how long it takes, and where it may go."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flywheel.core.network import http_exchange
from flywheel.core.network.http_exchange import LinkLocal, NotReached, exchange


class Server(BaseHTTPRequestHandler):
    """Says what it was asked; what its path names is done instead."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/slowly":
            time.sleep(1)
        self.send_response(302 if self.path == "/elsewhere" else 200)
        self.send_header("Location", "/somewhere")
        self.send_header("Content-Length", str(len(body) + 10 * (self.path == "/breaks")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()
    thread.join()


def post(url: str, within_s: float = 30) -> tuple[int, bytes]:
    reply, body = exchange("POST", url, b"hello", connect_s=5, deadline=time.monotonic() + within_s)
    return reply.status, body


def test_it_gives_the_answer_whatever_its_status_and_follows_no_redirect(server: str) -> None:
    assert post(server) == (200, b"hello")
    assert post(f"{server}/elsewhere") == (302, b"hello")


def test_an_answer_that_was_read_holds_no_socket(server: str) -> None:
    reply, _ = exchange("POST", server, b"hello", connect_s=5, deadline=time.monotonic() + 30)
    assert reply.isclosed()


def test_an_answer_that_comes_too_late_is_not_waited_for(server: str) -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        post(f"{server}/slowly", 0.2)
    assert time.monotonic() - begun < 1


def test_a_connection_ends_with_the_wait_for_an_answer() -> None:
    """Whoever still holds the error holds no socket by it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with pytest.raises(TimeoutError) as late:
            post(f"http://127.0.0.1:{listening.getsockname()[1]}", 0.1)
        line = listening.accept()[0]
        with line:
            line.settimeout(30)
            while line.recv(4096):
                pass
    assert late.value


def test_who_was_not_reached_is_told_apart_from_who_broke_off(server: str) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(NotReached):
            post(f"http://127.0.0.1:{unheard.getsockname()[1]}")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=lambda: listening.accept()[0].close())
        thread.start()
        with pytest.raises(OSError, match=r".*") as broken:
            post(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert not isinstance(broken.value, NotReached)


def test_nothing_is_sent_to_a_link_local_address(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by where the connection leads, for a name may lead anywhere."""
    monkeypatch.setattr(http_exchange, "is_metadata", lambda host: host == "127.0.0.1")
    with pytest.raises(LinkLocal):
        post(server)


def test_an_answer_that_breaks_off_is_none(server: str) -> None:
    with pytest.raises(http.client.IncompleteRead):
        post(f"{server}/breaks")


def test_a_stream_is_read_until_it_is_enough(server: str) -> None:
    seen: list[bytes] = []

    def is_enough(part: bytes) -> bool:
        seen.append(part)
        return True

    deadline = time.monotonic() + 30
    _, body = exchange("POST", f"{server}/breaks", b"hello", connect_s=5, deadline=deadline, is_enough=is_enough)
    assert seen == [body] == [b"hello"]
