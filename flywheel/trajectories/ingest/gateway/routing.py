"""Whose call it is, and which server answers it.

`model: "agent@live"` goes to the server of the agent's live version, with what the version says where the caller says
nothing: its system prompt, tools and sampling. So a promotion takes effect with the next call. `model: "agent"` does
the same where such an agent has a live version that a server answers for; every other model is the upstream's.

While a split of the agent holds there are two ways, one for each arm, of which `arms.arm_choice` takes the call's.

What was found is remembered, and for five seconds a call does not wait for the database: it goes the known way, and
another thread looks whether that still holds. So a revoked key is refused, and a promotion takes effect, within five
seconds. A split is trusted for one after the database has said how it stands, which `watched_splits` asks meanwhile,
and never beyond its lease or without the database: then the live version answers everybody. For when the database
cannot be asked at all the rest is remembered for longer.
"""

import functools
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

from django.db import InterfaceError, InternalError, OperationalError, close_old_connections, connection
from django.http import HttpRequest

from flywheel.accounts.access import KeyRefused, KeyRequest, admit, bearer
from flywheel.accounts.models import Project, Scope
from flywheel.accounts.project_settings.model_prices import price_of
from flywheel.accounts.project_settings.provider_keys import NoKey, secret_for
from flywheel.accounts.project_settings.server_addresses import KEY_NAME, host_of, key_of
from flywheel.agents.models import Agent, Split, Version
from flywheel.agents.splits import open_splits
from flywheel.agents.splits.assignment import Arm
from flywheel.agents.splits.open_splits import OpenSplit
from flywheel.agents.splits.watched_splits import WatchedSplits
from flywheel.agents.weights import chosen_bases, served_weights
from flywheel.core.network.key_hosts import VLLM_KEY
from flywheel.core.traces import openai_messages
from flywheel.core.traces.call_prices import Price
from flywheel.system import env

log = logging.getLogger(__name__)

LIVE = "@live"
PARTS = ("agent", "weights", "adapter")
"""What a version's name and size are made of."""
FRESH_S, TRUSTED_S, SPLIT_TRUSTED_S = 0.5, 5.0, 1.0
"""For how long what was found is not looked up again, and for how long a call does not wait until it is; less of a
split, so that a way back takes effect soon."""
REMEMBERED_S = 900.0
"""How long a key and its routes outlive the database. Keys that are revoked meanwhile cannot be known."""
REMEMBERED = 1000
DATABASE_AWAY_S = 15.0
"""After the database failed, calls with a remembered route do not wait for it again for so long."""
AWAY = OperationalError, InterfaceError, InternalError
"""What says that the database is away, the last that it only reads; any other error is about what it was asked."""


class NoRoute(Exception):
    """No server answers for this model; the message says what to do. `status` and `code` are as OpenAI has them."""

    def __init__(self, message: str, *, code: str, status: int = 400, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code, status
        self.headers = headers or {}
        """Which version would have answered, where that is known."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes, and what is known of it before it is answered."""

    project_id: int
    key_id: int
    base_url: str
    api_key_env: str
    model: str = ""
    """The name that the server knows, where it is not the caller's."""
    agent: str = ""
    version: str = ""
    digest: str = ""
    """Of the version that answers. Agent, version and digest are empty where the upstream answers."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """What the live version says where the caller says nothing."""
    price: Price | None = None
    secret: str = field(default="", repr=False)
    """The key for the server, looked up with the route; or `problem` says why there is none."""
    problem: str = ""
    attempt: int = 0
    """The key of the attempt whose call it is (`attempt_calls`), 0 for all others."""
    arm: Arm | None = None
    """Of the split that holds; None where none does."""
    shadow: "Shadow | None" = None
    """Where a copy of the call goes once it is answered; None where none is made."""

    @property
    def host(self) -> str:
        return host_of(self.base_url)

    @property
    def answered_by(self) -> str:
        """The version that answers, as `agent@3:digest`; empty where the upstream does."""
        return f"{self.agent}@{self.version}:{self.digest}" if self.version else ""

    @property
    def headers(self) -> dict[str, str]:
        """The same as headers of the answer."""
        told = headers_of(f"{self.agent}@{self.version}", self.digest) if self.version else {}
        return {**told, "X-Flywheel-Arm": self.arm} if self.arm else told

    def key(self) -> str:
        """The key for the server. Raises NoRoute where there is none, or none that it may be sent."""
        if self.problem:
            raise NoRoute(self.problem, code="upstream_key_missing", status=503)
        return self.secret


@dataclass(frozen=True, slots=True)
class Shadow:
    """Where copies go while a split's lease holds."""

    split: OpenSplit
    candidate: Route


@dataclass(frozen=True, slots=True)
class Fork:
    """Where calls go while a split of their agent holds."""

    split: OpenSplit
    live: Route
    candidate: Route
    """The same as `live` while the split has only a shadow."""
    otherwise: Route
    """The way for everybody when it does not hold any more: that of the agent's live version."""

    @property
    def project_id(self) -> int:
        return self.otherwise.project_id


def headers_of(version: str, digest: str) -> dict[str, str]:
    return {"X-Flywheel-Version": version, "X-Flywheel-Digest": digest}


def keyed(route: Route) -> Route:
    """The route with the key for its server, or why there is none."""
    if not route.api_key_env:
        return route
    try:
        return replace(route, secret=secret_for(route.project_id, route.api_key_env, route.base_url))
    except NoKey as error:
        return replace(route, problem=str(error))


_known: OrderedDict[str, tuple[float, Route | Fork]] = OrderedDict()
watched_splits = WatchedSplits(TRUSTED_S)
"""Those of the forks that are known."""
_looking: set[str] = set()
"""What another thread looks up at the moment."""
_lock = threading.Lock()
_away_until = 0.0


def route(request: HttpRequest, model: str) -> Route | Fork:
    """The route of this call. Raises KeyRefused, NoRoute, and django.db.Error when the database is away too long.

    The connection to the database is given back before anybody waits for a model.
    """
    token = bearer(request.headers.get("Authorization", ""))
    name = hashlib.sha256(f"{token}\0{model}".encode()).hexdigest()
    known, age_s = _remembered(name)
    if known and is_database_away() and age_s < REMEMBERED_S:
        return _without_split(known)
    if known and _is_trusted(known, age_s):
        if age_s > FRESH_S:
            _look_up_soon(name, token, model)
        return known
    return _look_up(name, token, model)


def _is_trusted(known: Route | Fork, age_s: float) -> bool:
    if isinstance(known, Fork):
        seen_s = min(age_s, time.monotonic() - watched_splits.seen_at(known.split))
        return age_s < TRUSTED_S and seen_s < SPLIT_TRUSTED_S and known.split.is_held
    return age_s < TRUSTED_S


def _without_split(known: Route | Fork) -> Route:
    return known.otherwise if isinstance(known, Fork) else known


def is_database_away() -> bool:
    """Whether it failed a while ago, so that nobody waits for it."""
    return time.monotonic() < _away_until


def lose_database() -> None:
    """It cannot be asked: for a while calls with a remembered route do not wait for it."""
    global _away_until
    _away_until = time.monotonic() + DATABASE_AWAY_S


def _look_up(name: str, token: str, model: str) -> Route | Fork:
    """Ask the database, and remember what it says. Raises KeyRefused, NoRoute and django.db.Error."""
    asked = cast(KeyRequest, HttpRequest())
    began = time.monotonic()
    try:
        try:
            admit(asked, token, Scope.GATEWAY)
            found = find(asked, model)
        finally:
            give_back_connection()
    except (KeyRefused, NoRoute):
        with _lock:
            _known.pop(name, None)
        raise
    except AWAY:
        lose_database()
        known, age_s = _remembered(name)
        if known and age_s < REMEMBERED_S:
            log.warning("the database is away; a gateway call goes the way that its key went before")
            return _without_split(known)
        raise
    if isinstance(found, Fork):
        watched_splits.watch(found.split)
    with _lock:
        if _known.get(name, (0.0,))[0] <= began:  # another thread may have asked later, and been told sooner
            _known[name] = began, found
        _known.move_to_end(name)
        while len(_known) > REMEMBERED:
            _known.popitem(last=False)
    return found


def _look_up_soon(name: str, token: str, model: str) -> None:
    with _lock:
        if name in _looking or is_database_away():
            return
        _looking.add(name)
    try:
        _thread().submit(_look_again, name, token, model)
    except RuntimeError:  # the process ends
        _looking.discard(name)


def _look_again(name: str, token: str, model: str) -> None:
    try:
        _look_up(name, token, model)
    except (KeyRefused, NoRoute, *AWAY):
        pass  # it is forgotten already, or the database is away
    except Exception:
        log.exception("a key of the gateway could not be looked up again")
    finally:
        with _lock:
            _looking.discard(name)


@functools.cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="gateway-keys")


def _remembered(name: str) -> tuple[Route | Fork | None, float]:
    """Return the route found before, and its age in seconds."""
    with _lock:
        at, found = _known.get(name, (0.0, None))
    return found, time.monotonic() - at


def give_back_connection() -> None:
    """Let others have this thread's connection to the database while it waits for a model."""
    if not connection.in_atomic_block:
        close_old_connections()


def find(request: KeyRequest, model: str) -> Route | Fork:
    """The route with the key for its server, or one for each arm of a split."""
    project, key_id = request.project, request.key.pk
    name = model.removesuffix(LIVE)
    agents: Any = Agent.objects.filter(project=project, name=name).annotate(split=open_splits.OPEN)
    agents = agents.select_related(*(f"live__{part}" for part in PARTS))
    agent = agents.first() if name else None
    is_served = agent is not None and agent.live is not None and bool(_server_of(agent.live, agent.served))
    if name != model or is_served:
        return _fork(agent, key_id) or keyed(_live(project, key_id, agent, name))
    if not project.upstream:
        raise NoRoute(
            f"no server answers for the model {model!r}: this project's gateway has no upstream "
            "(Settings › Gateway), and no agent of this name has a live version that a server answers for",
            code="no_upstream",
        )
    upstream = project.upstream
    price = price_of(project.pk, model)
    return keyed(Route(project.pk, key_id, upstream["base_url"], upstream.get("api_key_env", ""), price=price))


def problem_of(split: Split) -> str:
    """Why calls cannot be sent to one of the split's versions, so that the live one answers everybody; else empty."""
    try:
        _arms(split, split.agent, split.agent.served, 0)
    except NoRoute as missing:
        return str(missing)
    return ""


def _fork(agent: Any, key_id: int) -> Fork | None:
    """The ways of both arms; None without a split that holds, or where an arm leads nowhere, so that nothing could be
    compared."""
    split = (open_splits.find(agent) or open_splits.find_shadow(agent)) if agent is not None and agent.split else None
    if split is None:
        return None
    row = split.row
    try:
        live, candidate = _arms(row, agent, split.served, key_id)
    except NoRoute as missing:
        log.warning("a ramp of %s does not go on, its live version answers everybody: %s", agent, missing)
        return None
    if row.share == 0:
        copied = replace(live, shadow=Shadow(split, candidate))
        return Fork(split, copied, copied, live)
    otherwise = candidate if row.is_holdback else live
    return Fork(split, replace(live, arm="live"), replace(candidate, arm="candidate"), otherwise)


def _arms(split: Split, agent: Agent, served: str, key_id: int) -> list[Route]:
    """The ways to the split's versions. Raises NoRoute where there is none, or no key for it."""
    return [way_to(split, one, agent, served, key_id) for one in (split.live, split.candidate)]


def way_to(split: Split, version: Version, agent: Agent, served: str, key_id: int = 0) -> Route:
    """The way to one of the split's versions; `served` is the agent's. Raises NoRoute where there is none, or no key
    for it."""
    names = split.served | ({str(agent.live_id): served} if served else {})
    way = keyed(_way(agent.project_id, key_id, version, names.get(str(version.pk), "")))
    way.key()
    return way


def served(project: Project) -> list[Version]:
    """The live versions that calls can be sent to."""
    live = Version.objects.filter(pk__in=Agent.objects.filter(project=project).values("live"))
    return [
        version
        for version in live.select_related(*PARTS).order_by("agent__name")
        if _server_of(version, version.agent.served)
    ]


def _server_of(version: Version, served: str) -> Any:
    """Where the live version is asked, as an endpoint says it; empty where no server answers for it. A program's model
    answers for it: whoever asks is the program. Small weights that vLLM does not have are asked in a process of ours,
    which was started at some time."""
    if version.endpoint.get("kind") in ("openai", "program"):
        return version.endpoint if version.endpoint.get("base_url") else {}
    if served and (url := chosen_bases.server_with(version)):
        key = VLLM_KEY if key_of(VLLM_KEY) else ""
        return {"base_url": f"{url}/v1", "model": served, "api_key_env": key}
    if ours := served_weights.server_of(version):
        return {"base_url": f"{ours.url}/v1", "model": served_weights.name_of(version), "secret": ours.token}
    return {}


def _live(project: Project, key_id: int, agent: Any, name: str) -> Route:
    if agent is None:
        raise NoRoute(f"the agent {name!r} does not exist in this project", code="model_not_found", status=404)
    if agent.live is None:
        raise NoRoute(
            f"the agent {name!r} has no live version; promote one under Promotions", code="model_not_found", status=404
        )
    if agent.split and (back := open_splits.taken_back(agent)):
        return _way(project.pk, key_id, back.live, back.served.get(str(back.live_id), ""))
    return _way(project.pk, key_id, agent.live, agent.served)


def _way(project_id: int, key_id: int, version: Version, served: str) -> Route:
    """The way to a version's server. Raises NoRoute."""
    endpoint = _server_of(version, served)
    headers = headers_of(str(version), version.digest)
    if not endpoint and version.is_program:
        raise NoRoute(
            f"{version} names no server for its model; call the model by its own name, or "
            "make a version whose endpoint has base_url and model",
            code="version_not_served",
            headers=headers,
        )
    if not endpoint:
        raise _unserved(version, headers)
    variable = endpoint.get("api_key_env", "")
    return Route(
        project_id,
        key_id,
        endpoint["base_url"].rstrip("/"),
        variable if KEY_NAME.fullmatch(variable) else "",
        model=endpoint["model"],
        agent=version.agent.name,
        version=str(version.number),
        digest=version.digest,
        defaults=defaults_of(version),
        price=price_of(project_id, endpoint["model"], endpoint, f"version:{version.pk}"),
        secret=endpoint.get("secret", ""),
    )


def _unserved(version: Version, headers: dict[str, str]) -> NoRoute:
    """Say what it would take for a server to answer with weights that are live."""
    size, limit = served_weights.size_of(version), served_weights.limit()
    is_starting = served_weights.is_served(version)
    if is_starting:
        why = (
            "Flywheel does, in a process that was not started (make up does; python -m workers.policies.small_weights)"
        )
    elif not size:
        why = "no weights of it are stored here"
    else:
        why = f"it has {size:,} bytes of weights, and FLYWHEEL_SERVED_MB has Flywheel answer with {limit:,} at most"
    return NoRoute(
        f"no server answers for {version}: {why}. {_by_vllm(version)}A version with the endpoint "
        '{"kind": "openai", "base_url", "model"} needs no weights here: make one, evaluate it and promote it',
        code="version_loading" if is_starting else "version_not_served",
        status=503 if is_starting else 400,
        headers=headers,
    )


def _by_vllm(version: Version) -> str:
    """Say what it would take for vLLM to answer with a version's weights; empty where it cannot."""
    if not env.serve():
        return f"Serve them with vLLM (make serve VERSION={version}, and FLYWHEEL_VLLM_URL for web and workers). "
    if not served_weights.size_of(version):
        return ""
    if chosen_bases.server_with(version):
        return (
            f"The vLLM server that was started with its base has not loaded {version}: Evals › vLLM server says how it "
            "is, and choosing its base there again starts it anew, with what is live. "
        )
    return f"Have an admin choose {version} under Evals › vLLM server, which starts vLLM with its base. "


def defaults_of(version: Version) -> dict[str, Any]:
    """Return what the version says where the caller says nothing: `{"tools", "system", "temperature", …}`."""
    said = {
        "tools": openai_messages.chat_tools(version.tools),
        "system": version.system_prompt,
        "chat_template_kwargs": version.endpoint.get("chat_template_kwargs"),
    }
    return {**version.sampling, **{name: value for name, value in said.items() if value}}
