"""Addresses of servers of models and names of their keys, as people enter them."""

import ipaddress
import os
import re
from urllib.parse import urlsplit

from flywheel.core.network.link_local import is_metadata
from flywheel.edge.refusals import Refused

KEY_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,80}_API_KEY", re.ASCII)
HOST_MAX, PART_MAX = 253, 63


def check_address(base_url: str) -> str:
    """The address of a server of models, as it is stored. Raises Refused."""
    address = base_url.strip().rstrip("/")
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    is_plain = address.isascii() and address.isprintable()
    if not host or parts.scheme not in ("http", "https") or not is_plain or not is_host(host):
        raise Refused("expected the address of a server, for example https://api.openai.com/v1", field="base_url")
    if " " in address or parts.username is not None or parts.query or parts.fragment:
        raise Refused(
            "leave out logins, spaces, ? and #: the address ends where /chat/completions begins", field="base_url"
        )
    if is_metadata(host):
        raise Refused(f"{host} is a cloud's address for machine credentials; no model runs there", field="base_url")
    return address


def check_variable(api_key_env: str) -> str:
    """The name of a key, as it is stored. Raises Refused."""
    variable = api_key_env.strip()
    if variable and not KEY_NAME.fullmatch(variable):
        raise Refused(
            "name the key or its environment variable, not the key itself: capitals, digits and _, ending in _API_KEY",
            field="api_key_env",
        )
    return variable


def is_host(host: str) -> bool:
    """Whether this is an IP address, or a name whose parts have the 1 to 63 ASCII characters that one may have."""
    if ":" in host:
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return True
    parts = host.removesuffix(".").split(".")
    return host.isascii() and len(host) <= HOST_MAX and all(0 < len(part) <= PART_MAX for part in parts)


def host_of(base_url: str) -> str:
    """The host and port, as people are shown where their key goes."""
    return urlsplit(base_url).netloc


def key_of(api_key_env: str) -> str:
    """The key that the variable holds, or empty."""
    return os.environ.get(api_key_env, "") if KEY_NAME.fullmatch(api_key_env) else ""
