"""The connection to the server that answers: kept alive, guarded, and never redirected.

The address comes from an admin or from a version that was approved, so private addresses are allowed: that is where
models run. What no model runs on is refused when the connection stands, before anything is sent: link-local addresses,
where clouds answer with credentials. The key goes to the chosen host alone.
"""

import os
import socket
import threading
from collections.abc import Mapping

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.response import BaseHTTPResponse

from flywheel.core.network.link_local import is_metadata
from flywheel.edge.numbers import BIGINT, number

CONNECT_S = 5.0
IDLE_S = 120.0
"""How long the upstream may say nothing, before its answer and in it."""
KEPT_ALIVE = 64
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "trailers",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
PASSED_ON = (
    "Accept", "User-Agent", "OpenAI-Beta", "X-Request-Id", "X-Client-Request-Id", "Idempotency-Key", "traceparent",
    "tracestate", "baggage",
)  # fmt: skip
"""Headers of the caller that the upstream sees. Not the caller's key, and no cookie."""
KEPT_BACK = HOP_BY_HOP | {
    "set-cookie", "content-length", "content-security-policy", "strict-transport-security", "alt-svc", "server", "date",
    "permissions-policy", "cross-origin-resource-policy", "access-control-allow-origin",
}  # fmt: skip
"""Headers of the upstream that the caller does not see: they speak of another server."""
OURS = "x-flywheel-"
"""What the headers begin with by which we say who has answered: an upstream cannot say it for us."""


class Unreachable(Exception):
    """The upstream gave no answer. `status` is what the caller gets: 502, or 504 when it took too long."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Guarded(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _checked(super()._new_conn())


class _GuardedTLS(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _checked(super()._new_conn())


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Guarded


class _PoolTLS(HTTPSConnectionPool):
    ConnectionCls = _GuardedTLS


class _Forbidden(OSError):
    pass


def _checked(connected: socket.socket) -> socket.socket:
    host = str(connected.getpeername()[0])
    if is_metadata(host):
        connected.close()
        raise _Forbidden(f"{host} is link-local, which the gateway does not talk to")
    return connected


def ask(
    method: str, url: str, key: str, headers: Mapping[str, str], body: bytes | None = None, timeout_s: float = IDLE_S
) -> BaseHTTPResponse:
    """Send the request and return the answer with its body unread. Raises Unreachable."""
    sent = {"Accept-Encoding": "identity", **headers}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    try:
        parts = urllib3.util.parse_url(url)
        pool = _manager().connection_from_host(parts.host, parts.port, parts.scheme)
        return pool.urlopen(
            method,
            parts.request_uri,
            body=body,
            headers=sent,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=CONNECT_S, read=timeout_s),
        )
    except urllib3.exceptions.NewConnectionError as error:  # a kind of timeout, as urllib3 has it
        raise Unreachable(502, why(error)) from None
    except urllib3.exceptions.ConnectTimeoutError:
        raise Unreachable(504, f"no connection within {CONNECT_S:g} s") from None
    except urllib3.exceptions.ReadTimeoutError:
        raise Unreachable(504, f"no answer within {timeout_s:g} s") from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(502, why(error)) from None


def refuse_redirect(reply: BaseHTTPResponse) -> None:
    """Raises Unreachable for an answer that points elsewhere: neither we nor the caller follow it with a key."""
    if 300 <= reply.status < 400:
        where = reply.headers.get("Location", "nowhere")[:200]
        reply.close()
        raise Unreachable(502, f"it answered {reply.status} to {where}, which is not followed; use the final address")


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The caller's headers that the upstream gets."""
    found = {name: headers[name] for name in PASSED_ON if name in headers}
    return {name: value for name, value in found.items() if value.isascii() and value.isprintable()}


def passed_back(reply: BaseHTTPResponse) -> dict[str, str]:
    """The upstream's headers that the caller gets, its length among them when the body goes through unchanged."""
    dropped = KEPT_BACK | {name.strip().lower() for name in reply.headers.get("Connection", "").split(",")}
    found = {
        name: value
        for name, value in reply.headers.items()
        if name.lower() not in dropped and not name.lower().startswith(OURS) and value.isprintable() and value.isascii()
    }
    if (length := length_of(reply)) is not None:
        found["Content-Length"] = str(length)
    return found


def length_of(reply: BaseHTTPResponse) -> int | None:
    """The length of the body, where the upstream said it before."""
    said = reply.headers.get("Content-Length", "")
    chunked = "chunked" in reply.headers.get("Transfer-Encoding", "").lower()
    return None if chunked else number(said, most=BIGINT)


def why(error: Exception) -> str:
    """In a few words; the upstream's address is told elsewhere, and object addresses tell nobody anything."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) and not isinstance(cause, _Forbidden):
        cause = inner
    text = str(cause) or str(error) or type(error).__name__
    return text.rpartition(">: ")[2][:300]


_made: dict[int, urllib3.PoolManager] = {}
_making = threading.Lock()


def _manager() -> urllib3.PoolManager:
    """One for each process: a socket is not for sharing over a fork."""
    process = os.getpid()
    if process not in _made:
        with _making:
            if process not in _made:
                made = urllib3.PoolManager(num_pools=32, maxsize=KEPT_ALIVE, block=False)
                made.pool_classes_by_scheme = {"http": _Pool, "https": _PoolTLS}
                _made.clear()
                _made[process] = made
    return _made[process]


def forget() -> None:
    """Close what is kept alive."""
    for made in list(_made.values()):
        made.clear()
    _made.clear()
