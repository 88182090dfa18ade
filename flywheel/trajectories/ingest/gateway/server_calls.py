"""A call of the server that a route leads to: the body that it gets, and the beginning of its answer."""

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from urllib3.response import BaseHTTPResponse

from flywheel.trajectories.ingest.gateway import upstream_connection, version_defaults
from flywheel.trajectories.ingest.gateway.journals.journal import RESPONSE, Journal
from flywheel.trajectories.ingest.gateway.routing import Route

HOP = "X-Flywheel-Hop"
"""Says which Flywheel a call came through, so that one which is its own upstream says so instead of calling itself."""


def body_for(api: str, route: Route, asked: dict[str, Any], body: bytes) -> bytes:
    """The body for the server: the caller's own bytes, unless the route is a version's."""
    if not route.model and not route.attempt:
        return body
    merged = version_defaults.FILL[api](route.defaults, asked)
    return json.dumps({**merged, "model": route.model or asked["model"]}).encode()


def ask(
    api: str, route: Route, headers: Mapping[str, str], sent: bytes, journal: Journal
) -> tuple[BaseHTTPResponse, dict[str, str]]:
    """Send a call on; the answer with its body unread, and its headers for the caller. Raises Unreachable, and NoRoute
    where there is no key for the server."""
    said = {**headers, "Content-Type": "application/json", HOP: this_flywheel()}
    reply = upstream_connection.ask("POST", f"{route.base_url}/{api}", route.key(), said, sent)
    upstream_connection.refuse_redirect(reply)
    passed = upstream_connection.passed_back(reply)
    header = {"status": reply.status, "headers": {name.lower(): value for name, value in passed.items()}}
    journal.write(RESPONSE, json.dumps(header).encode(), hold=True)
    return reply, passed


def out_of_reach(route: Route, error: upstream_connection.Unreachable, journal: Journal) -> str:
    """Note that the server gave no answer. Returns why, in words."""
    reason = f"the upstream {route.host} cannot be reached: {error}"
    journal.end({"how": "unreachable", "error": reason})
    return reason


@functools.cache
def this_flywheel() -> str:
    return hashlib.sha256(f"hop:{settings.SECRET_KEY}".encode()).hexdigest()[:16]
