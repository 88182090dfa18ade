"""Which server may be sent which key.

Whoever may make versions names a server's address and the variable that holds its key, so they could have any key sent
anywhere. The operator binds a key with a second variable beside it: `OPENAI_API_KEY_HOSTS=api.openai.com` sends
`OPENAI_API_KEY` to that host over https and to no other. Several stand with commas. `host:port` is that port alone,
over http too: a key in clear text has to be asked for.
"""

import os
from urllib.parse import urlsplit

SUFFIX = "_HOSTS"


def refusal(variable: str, base_url: str) -> str:
    """Why the server may not have the variable's key; empty when it may."""
    bound = os.environ.get(variable + SUFFIX)
    if bound is None:
        return ""
    parts = urlsplit(base_url)
    host = (parts.hostname or "").lower()
    try:
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError as error:
        return f"{base_url!r} is no address: {error}"
    named = {f"{host}:{port}"} | ({host} if parts.scheme == "https" else set())
    if named & {each.strip().lower() for each in bound.split(",") if each.strip()}:
        return ""
    return f"{variable} may be sent to {bound or 'no host'} only ({variable}{SUFFIX} says so), not to {parts.netloc}"
