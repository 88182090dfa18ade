"""Copies of calls that a candidate answers to nobody: asked after the caller has all of its own answer.

The caller's path only hands the bytes over. Few copies are under way at once, in threads of their own; where these are
taken, or the gateway has much to do, the copy is dropped and counted. Nothing that the candidate asks for is done. A
copy whose process dies is lost: nobody asks again, and what was seen of it is not kept.

The answer goes the way of every call: journal, redaction, store, there with the source `shadow`.
"""

import contextlib
import hashlib
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q

from flywheel.agents.models import Shadow, ShadowCopy
from flywheel.agents.splits.assignment import Unit
from flywheel.agents.splits.met_units import kept
from flywheel.trajectories.formats.values.hostile_json import as_list
from flywheel.trajectories.ingest.gateway import routing, server_calls, upstream_connection, version_defaults
from flywheel.trajectories.ingest.gateway.journals.journal import Journal
from flywheel.trajectories.ingest.gateway.journals.journal_contents import json_object
from flywheel.trajectories.ingest.gateway.recorder import recorder
from flywheel.trajectories.ingest.gateway.relay import Relay, Slots

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Copies under way in one process."""
HEAD_START_S = 0.05
"""Of the caller, who often calls again at once: then the copy's work falls into the time that the model thinks."""
HEADERS = ("Accept", "User-Agent", "OpenAI-Beta")
"""Of the caller, which a copy has too. Not those that name the call: a server would take the two for one."""
OURS_TO_DO = ("function", "custom")
"""Types of tools that the caller carries out, and not the server as it answers."""
HELD_THERE = ("conversation", "previous_response_id", "background", "prompt")
"""Keys by which a call goes on from what a server holds, or leaves something there."""
_IN_BUDGET = (
    Q(is_on=True, copies__lt=F("calls"))
    & (Q(tokens=None) | Q(tokens_used__lt=F("tokens")))
    & (Q(dollars=None) | Q(dollars_used__lt=F("dollars")))
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the live version has answered."""

    shadow: routing.Shadow
    unit: Unit
    head: dict[str, Any]
    """As its journal has it."""
    headers: dict[str, str] = field(repr=False)
    """Of the caller, which a server may see."""
    body: bytes = field(repr=False)
    """As the caller sent it."""


places = Slots(AT_ONCE)
_skipped: Counter[int] = Counter()
"""By split the calls without a copy that are not counted in the database yet."""
_lock = threading.Lock()
_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gateway-shadow")
submit: Callable[..., Any] = _pool.submit


def offer(call: Call, under_way: Slots) -> None:
    """Take a copy over, or drop it. Never waits, and never raises."""
    if not call.shadow.split.is_held:
        return
    try:
        if under_way.taken > under_way.count // 2 or not places.take():
            with _lock:
                is_first = not _skipped
                _skipped[call.shadow.split.row.pk] += 1
            if is_first:
                submit(_count_skipped)
            return
        submit(_answer, call)
    except RuntimeError:  # the process ends
        log.info("a copy is not made, since the process ends")


def _answer(call: Call) -> None:
    """Have a copy answered, within the budget."""
    try:
        time.sleep(HEAD_START_S)
        head = _head(call)
        asked = json_object(call.body)
        if not changes_nothing(asked):
            with _lock:
                _skipped[call.shadow.split.row.pk] += 1
        elif call.shadow.split.is_held and _begin(call, head):
            _ask(call, head, asked)
    except Exception:
        log.exception("a copy of a call was not answered")
    finally:
        places.give_back()
        _count_skipped()


def _begin(call: Call, head: dict[str, Any]) -> bool:
    """Count the copy, and say that it is made; False where the shadow is over or its budget used up."""
    split = call.shadow.split.row.pk
    with _database(), transaction.atomic():
        unit = kept(call.shadow.split, call.unit)
        if not Shadow.objects.filter(_IN_BUDGET, split=split).update(copies=F("copies") + 1):
            return False
        ShadowCopy.objects.create(
            split_id=split,
            kind=unit.kind,
            name=unit.name,
            trace_id=call.head["trace"],
            span_id=call.head["id"][:16],
            copy_trace_id=head["trace"],
        )
    return True


def changes_nothing(asked: dict[str, Any]) -> bool:
    """Whether a copy of the request only makes a model answer: no tool that its server would carry out, and nothing
    that adds to a conversation which it holds."""
    tools = asked.get("tools") or []
    return not any(asked.get(name) for name in HELD_THERE) and all(
        isinstance(tool, dict) and tool.get("type", "function") in OURS_TO_DO for tool in as_list(tools)
    )


def _ask(call: Call, head: dict[str, Any], asked: dict[str, Any]) -> None:
    route = call.shadow.candidate
    sent = server_calls.body_for(head["api"], route, asked, call.body)
    head["overrides"] = version_defaults.overridden(route.defaults, asked)
    journal = Journal.begin(head, sent)
    try:
        headers = {name: call.headers[name] for name in HEADERS if name in call.headers}
        reply, _ = server_calls.ask(head["api"], route, headers, sent, journal)
        for _ in Relay(reply, journal, recorder.put):
            pass
    except upstream_connection.Unreachable as error:
        server_calls.out_of_reach(route, error, journal)
        recorder.put(journal)
    except ConnectionResetError:
        pass  # the answer broke off, which is in the journal


def _head(call: Call) -> dict[str, Any]:
    """The call's head, of the candidate: a trajectory of its own, which continues nothing and has no outcome."""
    route, own = call.shadow.candidate, uuid.uuid4().hex
    return {
        **call.head,
        "id": own,
        "trace": hashlib.sha256(f"shadow {own}".encode()).hexdigest()[:32],
        "parent": "",
        "follows": "",
        "agent": route.agent,
        "version": route.version,
        "claimed": "",
        "answered_by": route.answered_by,
        "arm": None,
        "outcome": "",
        "host": route.host,
        "price": route.price.to_json() if route.price else None,
        "started": time.time(),
        "shadow": {"split": call.shadow.split.row.pk, "of": call.head["trace"]},
    }


def _count_skipped() -> None:
    with _lock:
        counts = dict(_skipped)
        _skipped.clear()
    if not counts:
        return
    try:
        with _database():
            for split, count in counts.items():
                Shadow.objects.filter(split=split).update(skipped=F("skipped") + count)
    except Exception:
        log.exception("%s calls without a copy are not counted", sum(counts.values()))


@contextlib.contextmanager
def _database() -> Iterator[None]:
    """Nobody keeps a connection while a model thinks."""
    try:
        yield
    finally:
        if not connection.in_atomic_block:
            connection.close()
