"""OTLP logs: the events that carry what a model was given and wrote, or that judge it, beside their spans.

They are kept whether their spans are there or not (`attachments.py`), and stand among the span's own events whenever it
is read. Records that are no such events are accepted and let go: they are neither kept nor counted in the ledger.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import orjson
from django.utils import timezone

from flywheel.accounts.models import ApiKey, Project
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.core import redaction
from flywheel.core.redaction import Redactor
from flywheel.trajectories.formats.otlp.otlp_logs import LogEvent, Logs
from flywheel.trajectories.formats.semantics import judgments, otlp_traces
from flywheel.trajectories.models import Batch, Event, Step, Trajectory
from flywheel.trajectories.store import attachments, batch_ledger, detector_wakeup
from flywheel.trajectories.store.batch_ledger import PROBLEMS_KEPT, Problem
from flywheel.trajectories.store.merge import patiently
from flywheel.trajectories.store.rows import trajectory_rows

FORMAT = "otlp-logs"

ROLES = (
    "gen_ai.system.message",
    "gen_ai.content.prompt",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
)
"""The order of events that the clock does not tell apart; whatever is not named comes after these."""


def store_logs(project: Project, sent: Logs, *, sha256: str = "", key: ApiKey | None = None) -> Batch | None:
    """Keep the events of a request, and the ledger row that says what became of them: one transaction.

    Without any event there is nothing to keep, and no row.
    """
    if not sent.events and not sent.rejected:
        return None
    redactor = redactor_of(project)
    problems, redactions = batch_ledger.without_secrets(
        [Problem(f"log record {item.index}", item.reason, item.content) for item in sent.rejected], redactor
    )
    kept = [_row(project, event, redactor, redactions) for event in sent.events]

    def work() -> tuple[Batch, bool]:
        trajectory_rows.hurry()
        now = timezone.now()
        attachments.address(project, kept)
        trace_ids = {row.trace_id for row in kept}
        judged = [attachments.row_of(project, said) for row in kept for said in _judgments(row)]
        stored = attachments.held(project, trace_ids)
        attached = attachments.attach(project, stored, judged, kept, now)
        batch = Batch.objects.create(
            project=project,
            key=key,
            format=FORMAT,
            sha256=sha256,
            trajectories=len(trace_ids),
            received=len(kept) + len(sent.rejected),
            inserted=len(attached.events),
            updated=0,
            duplicate=len(kept) - len(attached.events),
            rejected=len(sent.rejected),
            problems=[{"at": item.at, "reason": item.reason} for item in problems[:PROBLEMS_KEPT]],
            warnings=redaction.warnings(redactions),
            redactions=dict(redactions),
            redactor=redactor.version,
        )
        batch_ledger.quarantine(batch, problems, otlp_traces.JSON)
        return batch, attached.is_news

    batch, is_news = patiently(work)
    if is_news:
        detector_wakeup.after_commit(project.pk)
    return batch


def _row(project: Project, event: LogEvent, redactor: Redactor, redactions: Counter[str]) -> Event:
    body = {"time_ns": str(event.time_ns), "attributes": event.attributes, "body": event.body}
    content = orjson.dumps({name: value for name, value in body.items() if value not in (None, {}, "")})
    content, found = redactor.json(content)
    redactions.update(found)
    digest = hashlib.sha256(event.name.encode() + b"\0" + content).digest()
    return Event(
        project=project,
        trace_id=event.trace_id,
        span_id=event.span_id,
        name=event.name,
        at=attachments.moment(event.time_ns) if event.time_ns else None,
        body=orjson.loads(content),
        digest=digest,
    )


def _judgments(row: Event) -> Iterable[judgments.Judgment]:
    if row.name != judgments.EVALUATION:
        return ()
    event = attachments.log_event(row)
    return judgments.evaluation(row.trace_id, row.span_id, event.event().attributes, event.time_ns)


# Reading


def put_back(steps: Sequence[Step], trajectories: Iterable[Trajectory]) -> None:
    """Give each step the events that came for it as logs: one read for all of them, none where no events came."""
    spoken = {row.pk: row for row in trajectories if row.event_count}
    wanted = [step for step in steps if step.is_span and step.trajectory_id in spoken]
    if not wanted:
        return
    found = Event.objects.filter(
        project__in={row.project_id for row in spoken.values()},
        trace_id__in=[row.trace_id for row in spoken.values()],
        span_id__in={step.span_id for step in wanted},
    )
    by_span: dict[tuple[int, str, str], list[Event]] = {}
    for event in found:
        by_span.setdefault((event.project_id, event.trace_id, event.span_id), []).append(event)
    for step in wanted:
        row = spoken[step.trajectory_id]
        own = by_span.get((row.project_id, row.trace_id, step.span_id), [])
        step.log_events = [attachments.log_event(event) for event in sorted(own, key=_order)]


def _order(event: Event) -> tuple[int, int, bytes]:
    rank = ROLES.index(event.name) if event.name in ROLES else len(ROLES)
    return int(event.body["time_ns"]), rank, bytes(event.digest)
