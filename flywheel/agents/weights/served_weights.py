"""Small weights that a process of this installation answers with: which versions, under which names, and where.

A name means one content for ever (`mail-agent-v3-9f8e7d6c5b4a3f2e`: number and digest of the version, so much of it
that nobody can make another project's name theirs), and whoever asks need not know what is loaded. The process says
where it listens, and the token that it wants, in a file that only this installation's account reads.
"""

import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings

from flywheel.agents.models import Version
from flywheel.agents.version_content import TRANSFORMERS
from flywheel.system import env

_NAME = re.compile(r"(?P<agent>.+)-v(?P<number>[0-9]{1,9})-(?P<digest>[0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    url: str
    """Up to where `/v1` begins."""
    token: str


def name_of(version: Version) -> str:
    """The name under which the process answers for the version."""
    return f"{version.agent.name}-v{version.number}-{version.digest[:16]}"


def find(name: str) -> Version | None:
    """The version of this name, with what it is made of; None where there is none."""
    said = _NAME.fullmatch(name)
    if said is None:
        return None
    rows = Version.objects.filter(number=int(said["number"]), digest__startswith=said["digest"])
    # Agents of several projects may have such a name; then their versions are one content.
    return rows.filter(agent__name=said["agent"]).select_related("agent", "weights", "adapter").first()


def is_served(version: Version) -> bool:
    """Whether the process answers for the version: it is of weights stored here, which are small."""
    return version.endpoint.get("kind") == TRANSFORMERS and 0 < size_of(version) <= limit()


def limit() -> int:
    """Bytes that the files of a version may have."""
    return env.served_mb() * 1_000_000


def size_of(version: Version) -> int:
    """Bytes of the version's files; 0 where none of its weights are stored here."""
    if version.weights is None:
        return 0
    return version.weights.size + (version.adapter.size if version.adapter else 0)


def server_of(version: Version) -> Address | None:
    """Where the version is asked; None where the process does not answer for it, or was never started."""
    return address() if is_served(version) else None


def address() -> Address | None:
    """Where the process listens, or did last; None where it was never started."""
    try:
        return Address(**json.loads(_place().read_bytes()))
    except FileNotFoundError:
        return None


def token() -> str:
    """The token that the process wants: the one it has wanted before, or a new one."""
    known = address()
    return known.token if known else secrets.token_urlsafe(32)


def announce(at: Address) -> None:
    """Say where the process listens. The file is replaced by one rename, and nobody else reads it."""
    place = _place()
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    aside.touch(mode=0o600)
    aside.write_text(json.dumps(asdict(at)))
    os.replace(aside, place)


def _place() -> Path:
    place: Path = settings.HOME / "weights_server.json"
    return place
