"""Quarantine of rejected data: it waits here, as it came, until a person has looked at it.

It is replayed through the very path that a request takes: decoded, stripped of secrets, stored, with a ledger row of
its own. A person may edit it first, as JSON; what came is kept beside it. Something that is still wrong stays open,
under its new reason.
"""

import base64
import hashlib
import io
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, Min, QuerySet
from django.utils import timezone
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1 import trace_pb2

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.edge.refusals import Refused, Stale
from flywheel.trajectories.formats.files.file_formats import parse_file
from flywheel.trajectories.formats.otlp import otlp_logs
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.models import Batch, Quarantined, Source
from flywheel.trajectories.store import log_events
from flywheel.trajectories.store.arrivals.incoming_steps import fit
from flywheel.trajectories.store.batch_ledger import Origin
from flywheel.trajectories.store.merge import Part, store

GROUPS_SHOWN = 50
NOTHING = "there is nothing in it that can be stored"
EDITABLE = 200_000
"""Characters that are shown and can be edited in a page; more is downloaded."""
HEX_SHOWN = 2048
AT_ONCE_S = 10.0
"""How long a click on a whole group may work; the rest waits for the next one."""


class StillWrong(Refused):
    """A replayed item that is rejected again; the message says why."""


class Decided(Stale):
    """Somebody has replayed or dismissed it already."""


@dataclass(frozen=True, slots=True)
class Group:
    """Items rejected for one cause."""

    kind: str
    reason: str
    """Of the newest."""
    count: int
    first: Any
    last: Any


@dataclass(frozen=True, slots=True)
class Shown:
    """A rejected item, as text."""

    text: str
    is_editable: bool
    note: str = ""
    """Why it cannot be edited, or what the text is not."""


def groups(rows: QuerySet[Quarantined]) -> list[Group]:
    """By cause, the one that was seen last first."""
    found = (
        rows.order_by()
        .values("kind")
        .annotate(count=Count("pk"), first=Min("received_at"), last=Max("received_at"), newest=Max("pk"))
        .order_by("-newest")[:GROUPS_SHOWN]
    )
    reasons = Quarantined.objects.in_bulk([row["newest"] for row in found])
    return [
        Group(row["kind"], reasons[row["newest"]].reason, row["count"], row["first"], row["last"])
        for row in found
        if row["newest"] in reasons
    ]


# Showing


def shown(item: Quarantined) -> Shown:
    """The content as JSON where it can be read, else as text, or as bytes."""
    content = bytes(item.content)
    if item.media_type and item.media_type != otlp_traces.JSON:
        return _protobuf(content)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Shown(_hex(content), False, "It is not UTF-8, so it is shown as bytes.")
    try:
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _cut(text, "It is not valid JSON.")
    return _cut(text)


def _cut(text: str, note: str = "") -> Shown:
    if len(text) <= EDITABLE:
        return Shown(text, True, note)
    too_long = "It is too long to be edited here; this is its beginning. Download it instead."
    return Shown(text[:EDITABLE], False, too_long)


def _protobuf(content: bytes) -> Shown:
    request = trace_pb2.TracesData()
    try:
        request.ParseFromString(content)
        row = MessageToDict(request, use_integers_for_enums=True)
    except (DecodeError, ValueError):
        return Shown(_hex(content), False, "Its protobuf cannot be read, so it is shown as bytes.")
    for group in row.get("resourceSpans", ()):
        for scoped in group.get("scopeSpans", ()):
            for span in scoped.get("spans", ()):
                for holder in (span, *span.get("links", ())):
                    ids = holder.keys() & {"traceId", "spanId", "parentSpanId"}
                    holder.update({name: base64.b64decode(holder[name]).hex() for name in ids})
    return _cut(json.dumps(row, indent=2, ensure_ascii=False))


def _hex(content: bytes) -> str:
    lines = []
    for at in range(0, min(len(content), HEX_SHOWN), 16):
        part = content[at : at + 16]
        seen = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {seen}")
    if len(content) > HEX_SHOWN:
        lines.append(f"… {len(content) - HEX_SHOWN} bytes more")
    return "\n".join(lines)


_ADVICE = [
    (
        r"base64",
        "The sender writes ids as protobuf's JSON does. OTLP over HTTP wants them in hex: use an OTLP exporter.",
    ),
    (r"log record|look like OTLP logs|resourceLogs", "Point the exporter of logs at /v1/logs."),
    (r"look like OTLP metrics|resourceMetrics", "Point the exporter of metrics at /v1/metrics."),
    (r"all zero|missing", "A span that was never recorded was sent. Here you can give it the ids that it lacks."),
    (
        r"not UTF-8",
        "A sender puts bytes into a string attribute. It must encode or drop them; nothing here can be read.",
    ),
    (r"no known format", "Convert it to a known format; the import page lists them."),
    (
        r"not valid JSON",
        "The line is cut off or was written by hand. Complete it here, or dismiss it and import the file again.",
    ),
    (r"nested", "A value is nested too deep. Flatten it into a string."),
    (
        r"hex digits|bytes, expected",
        "Give the id the expected length: pad or hash the ids of other tracers.",
    ),
]


def advice(reason: str) -> str:
    """Explain the usual cause behind a reason, and what to do; empty when there is nothing to add to it."""
    return next((text for pattern, text in _ADVICE if re.search(pattern, reason)), "")


# Replaying


def replay(*, item: Quarantined, actor: Actor, text: str | None = None) -> Quarantined:
    """Send it through decoding and storing again, as it came or as `text` (JSON). Raises StillWrong and Decided."""
    try:
        with transaction.atomic():
            row = _open(item)
            batch = _again(row, text)
            actor.record(
                project=row.project,
                action="trajectories.replay",
                subject=f"quarantined {row.pk}",
                edited=text is not None,
                batch=batch.pk,
                trajectory=row.trace_id,
            )
            return _decide(row, Quarantined.State.REPLAYED, actor)
    except StillWrong as error:
        if text is None:
            Quarantined.objects.filter(pk=item.pk, state=Quarantined.State.OPEN).update(reason=str(error)[:500])
        raise


def dismiss(*, item: Quarantined, actor: Actor) -> Quarantined:
    """Say that nothing is to be done about it. Raises Decided."""
    with transaction.atomic():
        row = _decide(_open(item), Quarantined.State.DISMISSED, actor)
        actor.record(project=row.project, action="trajectories.dismiss", subject=f"quarantined {row.pk}")
    return row


@dataclass(slots=True)
class Replayed:
    """The result of replaying a group."""

    replayed: int = 0
    wrong: int = 0
    left: int = 0
    """Not tried yet: the time was over."""


def replay_group(*, project: Project, kind: str, actor: Actor) -> Replayed:
    """Replay all that wait for this cause, as they came."""
    report = Replayed()
    until = time.monotonic() + AT_ONCE_S
    keys = list(_waiting(project, kind).order_by("pk").values_list("pk", flat=True))
    for done, pk in enumerate(keys):
        if time.monotonic() > until:
            report.left = len(keys) - done
            break
        item = Quarantined.objects.filter(pk=pk).first()
        try:
            if item is not None:
                replay(item=item, actor=actor)
                report.replayed += 1
        except StillWrong:
            report.wrong += 1
        except Decided:
            pass
    return report


def dismiss_group(*, project: Project, kind: str, actor: Actor) -> int:
    """Dismiss all that wait for this cause. Returns how many."""
    with transaction.atomic():
        count = _waiting(project, kind).update(
            state=Quarantined.State.DISMISSED, decided_by=actor.user, decided_at=timezone.now()
        )
        if count:
            actor.record(project=project, action="trajectories.dismiss", subject=f"{count} quarantined", kind=kind)
    return count


def _waiting(project: Project, kind: str) -> QuerySet[Quarantined]:
    return Quarantined.objects.filter(project=project, kind=kind, state=Quarantined.State.OPEN)


def _open(item: Quarantined) -> Quarantined:
    rows = Quarantined.objects.select_for_update(of=("self",)).select_related("project", "batch__key")
    row = rows.get(pk=item.pk)
    if row.state != Quarantined.State.OPEN:
        raise Decided(f"it was {row.state} already")
    return row


def _decide(row: Quarantined, state: str, actor: Actor) -> Quarantined:
    row.state, row.decided_by, row.decided_at = state, actor.user, timezone.now()
    row.save(update_fields=["state", "decided_by", "decided_at", "trace_id"])
    return row


def _again(row: Quarantined, text: str | None) -> Batch:
    """Store it as a request of its own, and remember which trajectory it went into."""
    content, media_type = bytes(row.content), row.media_type
    if text is not None:
        content, media_type = _written(text), media_type and otlp_traces.JSON
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        if row.format == log_events.FORMAT:
            batch, row.trace_id = _store_event(row, content, sha256)
            return batch
        parts = _spans(content, media_type) if media_type else _lines(content)
    except FormatError as error:
        raise StillWrong(str(error)) from None
    if not parts:
        raise StillWrong(NOTHING)
    batch = store(
        row.project,
        parts,
        source=Source.PRODUCTION if media_type else Source.IMPORT,
        format=row.format,
        origin=Origin(key=row.batch.key, sha256=sha256),
    )
    if batch.rejected:
        raise StillWrong(batch.problems[0]["reason"])
    row.trace_id = fit(parts[0].trace_id)
    return batch


def _store_event(row: Quarantined, content: bytes, sha256: str) -> tuple[Batch, str]:
    """As a request of logs; and the trajectory that it is about. Raises FormatError."""
    sent = otlp_logs.decode(content, otlp_traces.JSON)
    if sent.rejected:
        raise StillWrong(sent.rejected[0].reason)
    batch = log_events.store_logs(row.project, sent, sha256=sha256, key=row.batch.key)
    if batch is None:
        raise StillWrong(NOTHING)
    return batch, sent.events[0].trace_id


def _written(text: str) -> bytes:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise StillWrong("it holds half of a character (a lone surrogate)") from None
    except RecursionError:
        raise StillWrong("it is nested too deep to be read") from None
    except ValueError as error:
        raise StillWrong(f"your text is not JSON: {error}") from None


def _spans(content: bytes, media_type: str) -> Sequence[Part]:
    decoded = otlp_traces.decode(content, media_type)
    if decoded.rejected:
        raise StillWrong(decoded.rejected[0].reason)
    return decoded.spans


def _lines(content: bytes) -> Sequence[Part]:
    parts: list[Part] = []
    for parsed in parse_file(io.BytesIO(content)):
        if parsed.trace is None:
            raise StillWrong(parsed.error or "it refers to a trajectory in another part; import the whole file")
        parts += parsed.spans or [parsed.trace]
        if parsed.late:
            parts.append(parsed.late)
    return parts
