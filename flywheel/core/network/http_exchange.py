"""One exchange with a server whose address somebody chose: within a total time and size, with no redirect followed, and
never with a link-local address."""

import contextlib
import http.client
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from flywheel.core.network.http_replies import Reply
from flywheel.core.network.link_local import is_metadata


class NotReached(OSError):
    """There is no connection, so the server has surely not begun with it."""


class LinkLocal(OSError):
    """The address is one where clouds keep credentials."""


def exchange(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    connect_s: float,
    deadline: float,
    tls: ssl.SSLContext | None = None,
    is_enough: Callable[[bytes], bool] | None = None,
) -> tuple[Reply, bytes]:
    """The answer, whatever its status, and its body, before `deadline` of `time.monotonic()`. `tls` saves reading the
    certificates that this machine trusts; `is_enough` sees the body part by part, and ends a stream. Raises NotReached,
    LinkLocal, TimeoutError, TooLong, ValueError for a host that is none, and what sockets and `http.client` raise."""
    parts, wait_s = urlsplit(url), max(0.001, min(connect_s, deadline - time.monotonic()))
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = tls or ssl.create_default_context()
        line: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=wait_s, context=context
        )
    else:
        line = http.client.HTTPConnection(host, parts.port, timeout=wait_s)
    with contextlib.closing(line):
        try:
            line.connect()
        except (OSError, http.client.HTTPException) as error:
            raise NotReached(str(error) or type(error).__name__) from error
        if is_metadata(str(line.sock.getpeername()[0])):
            raise LinkLocal("its address is link-local")
        line.sock.settimeout(max(0.001, deadline - time.monotonic()))
        line.request(method, parts.path or "/", body, dict(headers or {}))
        reply = Reply(line.sock, method=method)
        return reply, reply.read_until(line.sock, deadline, is_enough)
