"""The vLLM servers of this installation: which versions they can answer for, and the adapters that they have.

One server has one base in memory and takes LoRA adapters at run time, each under a name of its own. The base is called
by its weights' digest, `base-1a2b3c4d5e6f`; a version by its number and its adapter's digest, `mail-agent-v3-9f8e7d6c`;
one without an adapter by the identity adapter, `identity-1a2b3c4d`. So a name means one content for ever: an adapter is
never loaded over another.
"""

import contextlib
import http.client
import json
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from psycopg.errors import LockNotAvailable

from flywheel.accounts.project_settings.server_addresses import key_of
from flywheel.agents import artifacts
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.version_content import TRANSFORMERS
from flywheel.agents.weights import chosen_bases, lora_adapters
from flywheel.agents.weights.lora_adapters import NotServable
from flywheel.core.network.http_replies import Reply
from flywheel.core.network.key_hosts import VLLM_KEY
from flywheel.edge.jobs import State
from flywheel.evals.models import Engine, EvalRun
from flywheel.system import env

LOADED = 12
"""Adapters that the server has at most; the one that was used longest ago makes room."""
SLOTS = 4
"""Adapters that one batch of the server can hold (`--max-loras`). So many are in the self-test, for each to be seen."""
BESIDE = 6
"""Versions that a self-test asks beside its own, the live one and the bare base. With a probe these are ten adapters
of `LOADED`; and each two of them take 24 answers in shared batches and 6 alone, of 24 tokens at most."""
SPARE = 2
"""Places that they leave free, for what is wanted meanwhile, such as a promotion."""
REMEMBERED = 200
"""The newest runs, by which is told which adapter was used when."""
CONNECT_S = 5.0
TIMEOUT_S = 60.0
"""The longest that one question may take; who cannot wait so long says until when."""
_OURS = re.compile(r".+-[0-9a-f]{8}")


class ServerError(RuntimeError):
    """The vLLM server cannot be used for this; the message says why and what to do."""

    kind = "vllm"


CANNOT = (NotServable, ServerError, artifacts.ArtifactError, OSError)
"""Why a version cannot be answered for now: it, the server, its weights or the disk. A rollback waits for none."""


def base_name(digest: str) -> str:
    """The name under which a server knows the weights of this digest."""
    return f"base-{digest[:12]}"


def name_of(version: Version) -> str:
    """The name under which the server answers for the version."""
    if version.adapter is None:
        return _made_name("identity", version)
    return f"{version.agent.name}-v{version.number}-{version.adapter.digest[:8]}"


def check(version: Version) -> None:
    """Raise NotServable unless a server of the version's base could answer for it."""
    if version.endpoint.get("kind") != TRANSFORMERS or version.weights is None:
        raise NotServable(f"{version} is asked at its own endpoint; no weights of it are stored here")
    if version.adapter is not None:
        lora_adapters.check(version.adapter)


def check_base(version: Version, until: float = inf) -> None:
    """Raise ServerError unless the server serves the version's base, not later than `until`. Only an adapter can be
    loaded at run time; weights of its own are another server's base."""
    assert version.weights is not None
    url = chosen_bases.address_of(version)
    bases, _ = _models(url, until)
    if base_name(version.weights.digest) not in bases:
        raise ServerError(
            f"the server at {url} serves {', '.join(bases) or 'nothing'}, and {version} is made of "
            f"{base_name(version.weights.digest)}. Only adapters are loaded at run time; other weights, such as those "
            f"of a full fine-tune, are a base of their own: {_way_out(version)}, or let the worker ask it"
        )


def _way_out(version: Version) -> str:
    if env.serve():
        return f"choose {version} under Evals › vLLM server, which starts it with these weights"
    return f"serve them (make serve VERSION={version})"


def load(version: Version, until: float = inf) -> str:
    """Have the server ready to answer for the version; its name there. Raises ServerError and NotServable, not later
    than `until`, of `time.monotonic()`."""
    check(version)
    check_base(version, until)
    return _load_at(chosen_bases.address_of(version), version, until)


def has(version: Version) -> bool:
    """Whether the server has it now; one that was started anew has forgotten. Raises ServerError."""
    return name_of(version) in _models(chosen_bases.address_of(version))[1]


def load_arms(version: Version, beside: Sequence[Version] = ()) -> tuple[list[str], list[str]]:
    """Have the server ready for a self-test: the names of its arms, the version's first, and of its probes.

    The arms are the version and what its answers must not be mixed up with: those of the live version of its agent, of
    the bare base, and of the first of `beside` that load, `BESIDE` at most and as many as leave room for what else is
    in use. Probes fill the server's slots. Raises ServerError and NotServable.
    """
    check(version)
    check_base(version)
    assert version.weights is not None
    arms = {name_of(one): _place(one) for one in (version, *_live_beside(version))}
    arms[_made_name("identity", version)] = lora_adapters.identity(version.weights)
    probes = _probes(version)[: max(1, SLOTS - len(arms))]
    others = {name: one for one in beside if (name := name_of(one)) not in arms}
    wanted = arms | dict.fromkeys(probes, lora_adapters.probe(version.weights))
    found = _ensure(chosen_bases.address_of(version), wanted, beside=others)
    names = [*arms, *found]
    return names, probes[: max(1, SLOTS - len(names))]


def load_live(url: str) -> list[str]:
    """Have the server at this address answer for every live version that it can, and for the other version of an open
    split, for the gateway; their names. Raises ServerError."""
    bases, _ = _models(url)
    names = []

    live = ("live__agent", "live__weights", "live__adapter")
    for agent in Agent.objects.exclude(live=None).select_related(*live).order_by("pk"):
        version = agent.live
        if version is not None and version.weights and base_name(version.weights.digest) in bases:
            try:
                name = _load_at(url, version)
            except CANNOT:
                continue
            Agent.objects.filter(pk=agent.pk, live=version).update(served=name)
            names.append(name)
    parts = [f"{arm}__{part}" for arm in ("live", "candidate") for part in ("agent", "weights", "adapter")]
    for split in Split.objects.filter(closed_at=None).exclude(served={}).select_related(*parts).order_by("pk"):
        other = split.live if split.is_holdback else split.candidate
        if split.served.get(str(other.pk)) and other.weights and base_name(other.weights.digest) in bases:
            with contextlib.suppress(*CANNOT):  # its calls say so, and are judged
                names.append(_load_at(url, other))
    return names


def hand_over(version: Version, *, within_s: float) -> tuple[str, str]:
    """Have the server ready before the version goes live: its name there, and why there is none. Both are empty where
    no server is to answer for it."""
    if not env.vllm_url() or version.endpoint.get("kind") != TRANSFORMERS:
        return "", ""
    try:
        return load(version, time.monotonic() + within_s), ""
    except CANNOT as error:
        return "", str(error)


def _load_at(url: str, version: Version, until: float = inf) -> str:
    """Have the server there, which has the version's base, answer for it; its name there."""
    check(version)
    _ensure(url, {name_of(version): _place(version)}, until)
    return name_of(version)


def _made_name(kind: str, version: Version) -> str:
    assert version.weights is not None
    return f"{kind}-{version.weights.digest[:8]}"


def _probes(version: Version) -> list[str]:
    """Every name that the probe has there."""
    return [_made_name(f"probe{number}", version) for number in range(SLOTS - 1)]


def _place(version: Version) -> Path:
    assert version.weights is not None
    return artifacts.local(version.adapter) if version.adapter else lora_adapters.identity(version.weights)


def _live_beside(version: Version) -> list[Version]:
    """The live version of the agent, where it can be asked at the same server."""
    live = version.agent.live
    if live is None or live.weights_id != version.weights_id:
        return []
    try:
        check(live)
    except NotServable:
        return []
    return [live]


@transaction.atomic
def _ensure(
    url: str, wanted: Mapping[str, Path], until: float = inf, beside: Mapping[str, Version] | None = None
) -> list[str]:
    """Have the server load what is missing, and the first of `beside` for which there is room and which load; which of
    these it has then.

    One process at a time, so that two do not take each other's room.
    """
    _wait_for_turn(url, until)
    _, loaded = _models(url, until)
    ours = [name for name in loaded if _OURS.fullmatch(name)]
    in_use = {*wanted, *_in_use()}
    others = beside or {}
    fitting = _fitting(others, in_use, LOADED - SPARE - len(in_use.intersection([*wanted, *ours])))
    missing = [name for name in (*wanted, *fitting) if name not in loaded]
    for name in _too_many(url, ours, LOADED - len(missing), {*in_use, *fitting}) if missing else ():
        _call(url, "POST", "/v1/unload_lora_adapter", {"lora_name": name}, until)
        loaded.remove(name)
    for name, place in wanted.items():
        if name not in loaded:
            _put(url, name, place, until)
    taken: list[str] = []
    for name in dict.fromkeys([*fitting, *others]):  # for one that does not load the next
        if len(taken) < len(fitting) and (name in loaded or _takes(url, name, others[name], until)):
            taken.append(name)
    return taken


def _fitting(names: Iterable[str], in_use: Collection[str], room: int) -> list[str]:
    """The first of these, each of which wants room where it is not in use."""
    found: list[str] = []
    for name in names:
        if name in in_use or room > 0:
            room -= name not in in_use
            found.append(name)
    return found[:BESIDE]


def _put(url: str, name: str, place: Path, until: float) -> None:
    _call(url, "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(place)}, until)


def _takes(url: str, name: str, version: Version, until: float) -> bool:
    try:
        _put(url, name, _place(version), until)
    except CANNOT:
        return False
    return True


def _wait_for_turn(url: str, until: float) -> None:
    with connection.cursor() as cursor:
        if until < inf:
            wait_ms = max(1, int(1000 * (until - time.monotonic())))
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{wait_ms}ms"])
        try:
            # By its port, since one server may be called by several names.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{__name__} {urlsplit(url).port}"])
        except OperationalError as error:
            if not isinstance(error.__cause__, LockNotAvailable):
                raise
            raise ServerError(f"the vLLM server at {url} is being asked to load something else") from error


def _too_many(url: str, loaded: Collection[str], room: int, in_use: set[str]) -> list[str]:
    """Those that must go, the longest unused first. Raises ServerError when too many are in use."""
    last: dict[str, int] = {}
    for run in _runs().defer("isolation").order_by("-pk")[:REMEMBERED]:
        last.setdefault(name_of(run.version), run.pk)
    free = sorted((name for name in loaded if name not in in_use), key=lambda name: last.get(name, 0))
    excess = max(0, len(loaded) - room)
    if excess > len(free):
        raise ServerError(
            f"the server at {url} has {len(loaded)} adapters, {len(loaded) - len(free)} of them in use; "
            f"Flywheel keeps {LOADED} there at most. Wait until an eval run is over"
        )
    return free[:excess]


def _in_use() -> set[str]:
    """Those of live versions, those of both arms of an open split, and those that a run asks at the moment: until its
    self-test is over all of its arms, then its version alone."""
    names = set(Agent.objects.exclude(served="").values_list("served", flat=True))
    for served in Split.objects.filter(closed_at=None).values_list("served", flat=True):
        names.update(name for name in served.values() if name)
    for run in _runs().filter(state=State.RUNNING):
        names.add(name_of(run.version))
        if "passed" not in run.isolation:
            made = (_made_name("identity", run.version), *_probes(run.version))
            names.update(run.isolation.get("arms", ()), made)
    return names


def _runs() -> QuerySet[EvalRun]:
    rows = EvalRun.objects.filter(engine=Engine.VLLM).select_related("version__agent", "version__weights")
    return rows.select_related("version__adapter").defer("summary", "judges")


def _models(url: str, until: float = inf) -> tuple[list[str], list[str]]:
    """The bases that the server serves, and the adapters, in the order in which they were loaded."""
    try:
        rows = _call(url, "GET", "/v1/models", until=until)["data"]
        return [row["id"] for row in rows if not row["parent"]], [row["id"] for row in rows if row["parent"]]
    except (KeyError, TypeError) as error:
        raise ServerError(f"{url}/v1/models does not answer as vLLM does: {error!r}") from error


def _call(url: str, method: str, path: str, body: dict[str, Any] | None = None, until: float = inf) -> Any:
    """Call the server and return its answer. Raises ServerError for everything but success."""
    key = key_of(VLLM_KEY)
    if not url:
        raise ServerError("no vLLM server is set: start one with make serve, and set FLYWHEEL_VLLM_URL to its address")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    begun = time.monotonic()
    deadline = max(begun + 0.001, min(begun + TIMEOUT_S, until))
    parts = urlsplit(url)
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    line = made(str(parts.hostname), parts.port, timeout=min(CONNECT_S, deadline - begun))
    try:
        line.request(method, path, None if body is None else json.dumps(body), headers)
        reply = Reply(line.sock, method=method)
        content = reply.read_until(line.sock, deadline)
        if reply.status != 200:
            raise ServerError(f"{url}{path} answered {reply.status}: {content[:500].decode(errors='replace')}")
        return json.loads(content) if method == "GET" else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise ServerError(f"the vLLM server at {url} does not answer: {error or type(error).__name__}") from error
    finally:
        line.close()
