"""Where a project's gateway sends model calls: one OpenAI-compatible server, chosen by an admin, and what its models
cost.

The key itself is never stored: it is named by the environment variable of the web process that holds it, and the
variable's name must end in `_API_KEY`, so that no other secret of the process can be sent to a server of one's choice,
and the operator must have bound it to that server (`core.network.key_hosts`).
"""

import ipaddress
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.network import key_hosts
from flywheel.edge.refusals import Refused

KEY_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,80}_API_KEY", re.ASCII)
METADATA = ipaddress.ip_address("fd00:ec2::254")
"""Where a cloud answers its machines with their credentials over IPv6; over IPv4 it is a link-local address."""
PRICED: Final = 200
"""Models that prices are kept of."""
DEAREST: Final = 10_000.0
"""Dollars for a million tokens, at most."""


@transaction.atomic
def set_upstream(
    *, project: Project, actor: Actor, base_url: str, api_key_env: str = "", prices: str = ""
) -> dict[str, Any]:
    """Send the project's model calls there from now on; an empty address ends it. `prices` as `read_prices` wants them.
    Raises Refused."""
    chosen = check(base_url, api_key_env) if base_url.strip() else {}
    if chosen and (priced := read_prices(prices)):
        chosen["prices"] = priced
    locked = Project.objects.select_for_update().get(pk=project.pk)
    if locked.upstream != chosen:
        before, locked.upstream = locked.upstream, chosen
        locked.save(update_fields=["upstream"])
        actor.record(
            project=project,
            action="accounts.set_upstream",
            subject=chosen.get("base_url", "no upstream"),
            before=before,
            after=chosen,
        )
    project.upstream = chosen
    return chosen


def check(base_url: str, api_key_env: str) -> dict[str, Any]:
    """The setting as it is stored. Raises Refused."""
    address, variable = base_url.strip().rstrip("/"), api_key_env.strip()
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or not (address.isascii() and address.isprintable()):
        raise Refused("this is not the address of a server, such as https://api.openai.com/v1", field="base_url")
    if " " in address or parts.username is not None or parts.query or parts.fragment:
        raise Refused(
            "leave out logins, spaces, ? and #: the address ends where /chat/completions begins", field="base_url"
        )
    if is_metadata(host):
        raise Refused(
            f"{host} is where a cloud keeps its machines' credentials; no model lives there", field="base_url"
        )
    if variable and not KEY_NAME.fullmatch(variable):
        raise Refused(
            "name the environment variable, not the key: capitals, digits and _, ending in _API_KEY",
            field="api_key_env",
        )
    if variable and (problem := key_hosts.refusal(variable, address)):
        raise Refused(problem, field="api_key_env")
    return {"base_url": address, "api_key_env": variable}


def read_prices(text: str) -> dict[str, list[float]]:
    """Read the prices of a million tokens in and out, in dollars, by model; a line for each. Raises Refused."""
    found: dict[str, list[float]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        model, *words = line.strip().rsplit(None, 2)
        try:
            prices = [float(word) for word in words]
        except ValueError:
            prices = []
        if len(prices) != 2 or not all(0 <= price <= DEAREST for price in prices):
            raise Refused(f"line {number}: {line[:80]!r} is not like gpt-5-mini 0.25 2", field="prices")
        if model in found:
            raise Refused(f"line {number}: {model[:80]!r} has its prices already", field="prices")
        found[model] = prices
    if len(found) > PRICED:
        raise Refused(f"{len(found)} models; {PRICED} are the most", field="prices")
    return found


def written_prices(upstream: Mapping[str, Any]) -> str:
    """The upstream's prices as `read_prices` reads them."""
    rows = upstream.get("prices", {}).items()
    return "\n".join(f"{model} {price_in:.12g} {price_out:.12g}" for model, (price_in, price_out) in rows)


def prices_of(upstream: Mapping[str, Any], model: str) -> tuple[float, float] | None:
    """Return the price of a million of the model's tokens in and out, in dollars; None where nobody has named it."""
    found = upstream.get("prices", {}).get(model)
    return None if found is None else (found[0], found[1])


def is_metadata(host: str) -> bool:
    """Whether this is a link-local or metadata address, which no model is served from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_link_local or address == METADATA


def is_left(journal: Path) -> bool:
    """Whether a call's journal was last written a minute ago: younger ones are of calls under way."""
    try:
        return journal.stat().st_mtime < time.time() - 60
    except OSError:
        return False


def host_of(base_url: str) -> str:
    """The host and port, as people are shown where their key goes."""
    return urlsplit(base_url).netloc


def key_of(api_key_env: str) -> str:
    """The key that the variable holds, or empty."""
    return os.environ.get(api_key_env, "") if KEY_NAME.fullmatch(api_key_env) else ""
