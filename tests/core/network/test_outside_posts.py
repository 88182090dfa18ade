"""A message to a server that somebody chose: where it may go, how long it takes, and what is read of the answer."""

import socket
import time
import tracemalloc
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest

from flywheel.core.network.outside_posts import AddressRefused, post
from tests.accounts.notices.listener import Listener, answer, drip, hang, listening, pour

LOOPBACK = [ip_network("127.0.0.0/8")]


@pytest.fixture
def server() -> Iterator[Listener]:
    with listening() as found:
        yield found


def send(url: str, within_s: float = 30, allowed: Any = LOOPBACK) -> int:
    return post(url, b'{"a":1}', {"X-One": "1"}, deadline=time.monotonic() + within_s, allowed=allowed)


def test_the_message_arrives_and_the_status_comes_back(server: Listener) -> None:
    server.behave = lambda handler: answer(handler, 503)
    assert send(f"{server.url}?key=a%20b") == 503
    (got,) = server.received
    assert (got.path, got.body, got.headers["X-One"]) == ("/hook?key=a%20b", b'{"a":1}', "1")


def test_no_redirect_is_followed(server: Listener) -> None:
    server.behave = lambda handler: answer(handler, 307, Location=server.url)
    assert send(server.url) == 307
    assert len(server.received) == 1


@pytest.mark.parametrize("behave", [hang, drip])
def test_a_server_that_never_answers_is_not_waited_for(server: Listener, behave: Any) -> None:
    server.behave = behave
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        send(server.url, 0.3)
    assert time.monotonic() - begun < 2


def test_of_a_gigabyte_nothing_is_read(server: Listener) -> None:
    server.behave = pour
    tracemalloc.start()
    assert send(server.url) == 200
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"])
def test_nothing_is_sent_to_an_address_that_is_not_public(server: Listener, host: str) -> None:
    with pytest.raises(AddressRefused, match="no public address"):
        send(server.url.replace("127.0.0.1", host), allowed=[])
    assert server.received == []


def test_no_network_that_is_allowed_opens_the_metadata_address() -> None:
    with pytest.raises(AddressRefused, match="metadata"):
        send("http://169.254.169.254/latest", allowed=[ip_network("0.0.0.0/0")])


def test_a_name_that_means_another_address_a_moment_later_helps_nobody(
    server: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look-up gives another answer, the first a public one; what was looked at is what is connected to."""
    real, asked = socket.getaddrinfo, []

    def rebinding(host: str, port: int, *more: Any, **options: Any) -> Any:
        asked.append(host)
        return real("203.0.113.9" if len(asked) == 1 else "127.0.0.1", port, *more, **options)

    connected: list[str] = []

    class Line(socket.socket):
        def connect(self, place: Any) -> None:
            connected.append(place[0])
            raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(socket, "socket", Line)
    url = server.url.replace("127.0.0.1", "rebind.example")
    with pytest.raises(ConnectionRefusedError):
        send(url, allowed=[ip_network("203.0.113.0/24")])
    assert connected == ["203.0.113.9"]
    with pytest.raises(AddressRefused):
        send(url, allowed=[ip_network("203.0.113.0/24")])
    assert connected == ["203.0.113.9"]


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            send(f"http://127.0.0.1:{unheard.getsockname()[1]}/")


def test_a_connection_that_is_refused_holds_no_socket(server: Listener) -> None:
    """Warnings are errors: a socket that nobody closed would be one."""
    with pytest.raises(OSError, match=r"SSL|ssl|wrong version|record"):
        send(server.url.replace("http:", "https:"))
