"""Does a key open its server? The server's list of models is asked for, which costs nothing anywhere."""

import http.client
import json
import time
from typing import NamedTuple

from flywheel.accounts.models.provider_keys import ProviderKey
from flywheel.accounts.models.seals import CannotUnseal
from flywheel.core.network.http_exchange import exchange

TIMEOUT_S = 10.0
SHOWN = 200
"""Characters of what the server says."""


class Tried(NamedTuple):
    works: bool
    words: str


def try_connection(key: ProviderKey) -> Tried:
    """Ask the key's server which models it has, within ten seconds; redirects are not followed."""
    try:
        headers = {"Authorization": f"Bearer {key.unseal()}", "Accept": "application/json", "User-Agent": "flywheel"}
        deadline = time.monotonic() + TIMEOUT_S
        reply, content = exchange(
            "GET", f"{key.base_url}/models", headers=headers, connect_s=TIMEOUT_S, deadline=deadline
        )
    except CannotUnseal as error:
        return Tried(False, str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:  # too long an answer, or a host that is none
        return Tried(False, f"no answer from {key.base_url}: {error or type(error).__name__}")
    status, shown = reply.status, content[:SHOWN].decode(errors="replace")
    if status in (401, 403):
        return Tried(False, f"the server rejects this key ({status}): {shown}")
    if 300 <= status < 400:
        return Tried(False, f"the server redirects to another address ({status}); enter that one")
    if status == 404:
        return Tried(False, "the server has no list of models at this address; most addresses end in /v1")
    if status != 200:
        return Tried(False, f"the server answered {status}: {shown}")
    try:
        names = [row["id"] for row in json.loads(content)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Tried(False, f"not an OpenAI-compatible server; it answered: {shown}")
    return Tried(True, f"{len(names)} models are available with this key")
