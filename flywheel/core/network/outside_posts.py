"""One message to a server outside whose address somebody chose: to public addresses and allowed networks alone, within
a total time, with no redirect followed, and with nothing read of the answer but its status."""

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from functools import cache
from urllib.parse import urlsplit

from flywheel.core.network.http_replies import Reply
from flywheel.core.network.link_local import Network, is_metadata, is_private


class AddressRefused(OSError):
    """The server's address is none that messages may be sent to."""


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, deadline: float, allowed: Collection[Network] = ()
) -> int:
    """The status of the answer, before `deadline` of `time.monotonic()`. Raises AddressRefused, TimeoutError,
    ValueError for an address that is none, and what sockets and `http.client` raise."""
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    with contextlib.ExitStack() as ends:
        sock = ends.enter_context(_connected(host, port, deadline, allowed))
        if is_tls:
            sock = ends.enter_context(_trust().wrap_socket(sock, server_hostname=host))
        line = http.client.HTTPConnection(host, port)
        line.sock = sock
        sock.settimeout(_left(deadline))
        line.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, dict(headers))
        return Reply(sock, method="POST").status_until(sock, deadline)


def _connected(host: str, port: int, deadline: float, allowed: Collection[Network]) -> socket.socket:
    """A connection to the first of the host's addresses that answers. The address that is looked at is the one that is
    connected to, so a name that means another address a moment later does not help anybody."""
    problem: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = str(place[0])
        if is_metadata(address):
            raise AddressRefused(f"{host} is at {address}, which is link-local or a cloud's metadata address")
        if is_private(address, allowed):
            raise AddressRefused(f"{host} is at {address}, which is no public address")
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline))
            sock.connect(place)
        except OSError as error:
            sock.close()
            problem = error
        else:
            return sock
    raise problem


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


@cache
def _trust() -> ssl.SSLContext:
    """The certificates that this machine trusts, read once."""
    return ssl.create_default_context()
