"""Raw requests that are kept, once more through decoding and storing.

What is stored already counts as a duplicate, so it may be done at any time and any number of times. It brings back what
was lost, and what an older version could not read.
"""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from flywheel.accounts.models import Project
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.values.hostile_json import FormatError
from flywheel.trajectories.ingest.otlp_http import Refused, decompress
from flywheel.trajectories.models import Body, Source
from flywheel.trajectories.store.batch_ledger import Origin, Problem
from flywheel.trajectories.store.merge import store


@dataclass(slots=True)
class Report:
    requests: int = 0
    inserted: int = 0
    updated: int = 0
    duplicate: int = 0
    rejected: int = 0
    unread: int = 0


def replay(project: Project, since: datetime) -> Report:
    """Store again what arrived since then, in the order of its arrival."""
    report = Report()
    at = 0
    bodies = Body.objects.filter(project=project, received_at__gte=since).order_by("pk")
    while (row := bodies.filter(pk__gt=at).first()) is not None:
        at = row.pk
        report.requests += 1
        content = bytes(row.content)
        try:
            if row.encoding:
                content = decompress(content, row.encoding, settings.INGEST_MAX_BYTES)
            decoded = otlp_traces.decode(content, row.media_type)
        except (FormatError, Refused):
            report.unread += 1
            continue
        # What is rejected again is in quarantine since it came, or a person has decided about it.
        problems = [Problem(f"span {item.index}", item.reason) for item in decoded.rejected]
        batch = store(
            project,
            decoded.spans,
            source=Source.PRODUCTION,
            format="otlp",
            origin=Origin(sha256=row.sha256),
            problems=problems,
        )
        report.inserted += batch.inserted
        report.updated += batch.updated
        report.duplicate += batch.duplicate
        report.rejected += batch.rejected
    return report
