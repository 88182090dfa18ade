"""Which server may be sent which key.

Builders name a server's address and the variable that holds its key, so they could have any key sent anywhere. The
operator therefore binds each key with a second variable beside it: `OPENAI_API_KEY_HOSTS=api.openai.com` sends
`OPENAI_API_KEY` to that host over https and to no other. Several are separated by commas. `host:port` is that port
alone, over http too: a key in clear text crosses a network only where the port is named. A key without such a variable
goes nowhere. `FLYWHEEL_VLLM_URL` binds `VLLM_API_KEY` to its own address, since the operator names both.
"""

import ipaddress
import os
from urllib.parse import SplitResult, urlsplit

SUFFIX = "_HOSTS"
VLLM_KEY = "VLLM_API_KEY"
"""The variable of the key that this installation's vLLM wants, if it does; vLLM itself reads it so."""


def refusal(variable: str, base_url: str) -> str:
    """Why the server may not have the variable's key; empty when it may."""
    try:
        parts = urlsplit(base_url)
        host, exact = _host(parts), f"{_host(parts)}:{_port(parts)}"
    except ValueError as error:
        return f"{base_url!r} is no address: {error}"
    if parts.username is not None:
        return f"{variable} is not sent to an address with a login"
    bound = _hosts(variable)
    is_private = parts.scheme == "https" or is_loopback(parts.hostname or "")
    if exact in bound or (is_private and host in bound):
        return ""
    if not bound:
        wanted = host if parts.scheme == "https" else exact
        return (
            f"{variable} is bound to no host. An admin enters the key under Settings › Models, or the operator sets "
            f"{variable}{SUFFIX}={wanted} for web and worker"
        )
    return f"{variable} may be sent to {', '.join(bound)} only ({variable}{SUFFIX} says so), not to {parts.netloc}"


def _hosts(variable: str) -> list[str]:
    """List the hosts that the operator has bound the key to, as `host` and `host:port`."""
    bound = [each.strip().lower() for each in os.environ.get(variable + SUFFIX, "").split(",") if each.strip()]
    if variable == VLLM_KEY and (url := os.environ.get("FLYWHEEL_VLLM_URL")):
        parts = urlsplit(url)
        bound.append(f"{_host(parts)}:{_port(parts)}")
    return bound


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Whether a host, by address or name, is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
