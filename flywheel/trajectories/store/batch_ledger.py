"""Records of a request beside its steps: the ledger row, what was rejected, and the request as it came."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from django.db import connection

from flywheel.accounts.models import ApiKey
from flywheel.core.redaction import Redactor
from flywheel.system.sql import planned
from flywheel.trajectories.models import Batch, Quarantined
from flywheel.trajectories.store.arrivals import trace_redaction

PROBLEMS_KEPT = 100
QUARANTINED_KEPT = 1000
"""Rejected spans or lines of one request that are kept as they came."""


@dataclass(slots=True)
class Problem:
    """A rejected part of a request."""

    at: str
    """`span 3`, `line 17`"""
    reason: str
    content: bytes = b""
    """What was rejected, as it came; empty where it could not be cut out."""
    media_type: str = ""
    """Of the content, where it is another than the request's."""


@dataclass(slots=True)
class Sent:
    """A request as it came, to be kept."""

    media_type: str
    encoding: str
    body: bytes
    rest: bytes = b""
    """The body, decompressed, where it may say more than its spans and what was rejected of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The request that parts came by, as the ledger tells of it."""

    key: ApiKey | None = None
    sha256: str = ""
    """Of its body, after decompression."""
    sent: Sent | None = None
    """The body, where it may be kept."""


NO_REQUEST = Origin()


_LEDGER = [field for field in Batch._meta.concrete_fields if not field.primary_key]
_RECORD = (
    f"INSERT INTO trajectories_batch ({', '.join(str(field.column) for field in _LEDGER)})"  # noqa: S608
    f" VALUES ({', '.join(['%s'] * len(_LEDGER))}) RETURNING id"
)


def record(batch: Batch) -> None:
    """Insert the ledger row; with every request, so not by way of the ORM."""
    values = [getattr(batch, field.attname) for field in _LEDGER]
    written = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
    ((batch.pk,),) = planned(_RECORD, written)
    batch._state.adding = False
    batch._state.db = connection.alias


def without_secrets(problems: Sequence[Problem], redactor: Redactor) -> tuple[list[Problem], Counter[str]]:
    held: Counter[str] = Counter()
    clean = [
        replace(
            item, reason=redactor.text(item.reason)[0], content=trace_redaction.rejected(item.content, redactor, held)
        )
        for item in problems
    ]
    return clean, held


def quarantine(batch: Batch, problems: Sequence[Problem], media_type: str) -> None:
    kept = [
        Quarantined(
            project_id=batch.project_id,
            batch=batch,
            at=item.at[:64],
            reason=item.reason[:500],
            format=batch.format,
            media_type=item.media_type or media_type,
            content=item.content,
            received_at=batch.received_at,
        )
        for item in problems[:QUARANTINED_KEPT]
        if item.content
    ]
    Quarantined.objects.bulk_create(kept, ignore_conflicts=True)


def keep(batch: Batch, sent: Sent, trace_ids: Iterable[str]) -> None:
    planned(
        "INSERT INTO trajectories_body (project_id, sha256, media_type, encoding, content, trace_ids, received_at)"
        " SELECT %s::bigint, %s, %s, %s, %s::bytea, %s::varchar[], %s::timestamptz"
        " WHERE NOT EXISTS (SELECT 1 FROM trajectories_retention WHERE project_id = %s AND bodies_days = 0)"
        " ON CONFLICT DO NOTHING",
        [
            batch.project_id,
            batch.sha256,
            sent.media_type,
            sent.encoding,
            sent.body,
            sorted(trace_ids),
            batch.received_at,
            batch.project_id,
        ],
    )
