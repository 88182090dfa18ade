"""Keys for model servers: those that an admin entered for a project, and the operator's variables beside them.

Whoever names a key by its variable, in an endpoint or for the gateway, gets the project's own of that name where there
is one, and else the environment's. Either goes only to where somebody with the right to say so has bound it: the
project's to the server that it was entered for, the environment's to the hosts that the operator named.
"""

import os
from urllib.parse import urlsplit

from django.db import transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.accounts.models.provider_keys import ProviderKey
from flywheel.accounts.models.seals import CannotUnseal
from flywheel.accounts.project_settings.server_addresses import KEY_NAME, check_address, host_of, key_of
from flywheel.core.network import key_hosts
from flywheel.edge.refusals import Refused

LONGEST = 4_000
"""Characters of a key."""


class NoKey(Exception):
    """The key that is named cannot be had, or may not be sent there; the message says what to do."""


@transaction.atomic
def enter(*, project: Project, actor: Actor, name: str, base_url: str, secret: str) -> ProviderKey:
    """Keep a key for a server, in place of the one of this name, if there is one. Raises Refused."""
    address, name, secret = check_address(base_url), name.strip(), secret.strip()
    if not KEY_NAME.fullmatch(name):
        raise Refused(
            f"{name[:80]!r} is not a valid key name: use capitals, digits and _, ending in _API_KEY",
            field="name",
        )
    parts = urlsplit(address)
    if parts.scheme != "https" and parts.port is None and not key_hosts.is_loopback(parts.hostname or ""):
        raise Refused(
            "over http, anyone who can see the traffic can read the key; add the port if you mean it, or use https",
            field="base_url",
        )
    if not secret or len(secret) > LONGEST or not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise Refused(f"expected a key of 1 to {LONGEST} visible characters without spaces", field="secret")
    row = ProviderKey.objects.select_for_update().filter(project=project, name=name).first()
    before = row.base_url if row else None
    row = row or ProviderKey(project=project, name=name)
    row.base_url, row.created_by = address, actor.user
    row.seal(secret)
    row.save()
    actor.record(project=project, action="accounts.enter_provider_key", subject=name, base_url=address, before=before)
    return row


@transaction.atomic
def remove(*, key: ProviderKey, actor: Actor) -> None:
    """Forget a key. What names it has none from now on, or the environment's."""
    key.delete()
    actor.record(project=key.project, action="accounts.remove_provider_key", subject=key.name, base_url=key.base_url)


def refusal(project_id: int, variable: str, base_url: str) -> str:
    """Why the server may not have this key; empty when it may. Whether there is a key is not asked."""
    if key := _own(project_id, variable):
        return _elsewhere(key, base_url)
    return key_hosts.refusal(variable, base_url)


def secret_for(project_id: int, variable: str, base_url: str) -> str:
    """The key itself, for this server. Raises NoKey."""
    if key := _own(project_id, variable):
        if problem := _elsewhere(key, base_url):
            raise NoKey(problem)
        try:
            return key.unseal()
        except CannotUnseal as error:
            raise NoKey(str(error)) from None
    if problem := key_hosts.refusal(variable, base_url):
        raise NoKey(problem)
    found = key_of(variable)
    if not (found.isascii() and found.isprintable()):
        raise NoKey(f"the environment variable {variable} holds characters that no header can carry")
    if not found:
        raise NoKey(
            f"there is no key {variable}: have an admin enter it under Settings › Models, or the operator set this "
            f"environment variable for web and worker"
        )
    return found


def operators() -> list[tuple[str, str]]:
    """List the keys of the environment that are bound to hosts, with those hosts."""
    bound = [name.removesuffix(key_hosts.SUFFIX) for name in os.environ if name.endswith("_API_KEY" + key_hosts.SUFFIX)]
    return [(name, os.environ[name + key_hosts.SUFFIX]) for name in sorted(bound) if os.environ.get(name)]


def _own(project_id: int, variable: str) -> ProviderKey | None:
    return ProviderKey.objects.filter(project=project_id, name=variable).first() if project_id else None


def _elsewhere(key: ProviderKey, base_url: str) -> str:
    """Why the server is not the one that the key was entered for; empty where it is."""
    wanted, there = _origin(key.base_url), _origin(base_url)
    if there == wanted:
        return ""
    return f"{key.name} is for {host_of(key.base_url)}; it is not sent to {base_url[:200]!r}"


def _origin(base_url: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port of an address; None for what is none, or has a login."""
    try:
        parts = urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return None if parts.username is not None else (parts.scheme, parts.hostname, port)
