"""What the redaction policy of today finds in what is stored already, and taking it out.

A dry run counts by kind and by place, with the shape of one example each, and changes nothing. Applied, steps, large
values and the trajectory's own columns are rewritten, requests that were kept as they came and hold any of it are
deleted, and the audit log says so. Copies that people made of it (corrections, tasks, datasets) are not touched.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from django.db import connection, transaction

from flywheel.accounts.models import Project, User, record
from flywheel.core.redact import Finding, Redactor
from flywheel.trajectories import redaction
from flywheel.trajectories.blobs import restore, spill
from flywheel.trajectories.models import Blob, Body, Event, Feedback, Quarantined, Source, Step, Trajectory, Words

AT_ONCE = 100
_STEP = ("name", "error", "model", "tool_name", "tool_call_id")
_TRAJECTORY = ("title", "user_id", "session_id", "metadata", "tools", "tags", "interventions", "said")
MOST_PLACES = 200


@dataclass(slots=True)
class Place:
    """Findings of one kind under one key of one kind of step."""

    kind: str
    step: str
    path: str
    count: int
    shown: str
    """The shape of the first one."""
    trace_id: str


@dataclass(slots=True)
class Report:
    trajectories: int = 0
    touched: int = 0
    """Trajectories in which anything was found."""
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[tuple[str, str, str], Place] = field(default_factory=dict)

    def add(self, found: list[Finding], step: str, trace_id: str) -> None:
        for item in found:
            self.counts[item.kind] += 1
            key = (item.kind, step, item.path)
            if key in self.places:
                self.places[key].count += 1
            elif len(self.places) < MOST_PLACES:
                self.places[key] = Place(item.kind, step, item.path, 1, item.shown, trace_id)

    def by_count(self) -> list[Place]:
        return sorted(self.places.values(), key=lambda place: (-place.count, place.kind, place.path))


def scan(project: Project, redactor: Redactor, limit: int | None = None) -> Report:
    """Look through the newest trajectories, or all of them. Changes nothing."""
    report = Report()
    for row in _newest(project, limit):
        before = sum(report.counts.values())
        report.trajectories += 1
        report.add(redactor.findings(_own(row)), "trajectory", row.trace_id)
        for step in _steps(row):
            report.steps += 1
            report.add(redactor.findings({**_columns(step), **step.body}), step.kind, row.trace_id)
        report.touched += sum(report.counts.values()) > before
    return report


def apply(project: Project, redactor: Redactor, actor: User, limit: int | None = None, through: str = "") -> Report:
    """Take out what is found. A transaction for each trajectory, so that it can be stopped and run again."""
    report = Report()
    for row in _newest(project, limit):
        report.trajectories += 1
        with transaction.atomic():
            locked = Trajectory.objects.select_for_update().get(pk=row.pk)
            counts = _rewrite(locked, redactor, report)
            if counts:  # what detectors made of it quotes what was there: they read it again
                Words.objects.filter(trajectory=locked).delete()
                Trajectory.objects.filter(pk=locked.pk).exclude(source=Source.ROLLOUT).update(detected_at=None)
        report.counts.update(counts)
        report.touched += bool(counts)
    with transaction.atomic():
        report.counts.update(_beside(project, redactor))
        if report.counts:
            record(
                project=project,
                actor=actor,
                action="trajectories.redact",
                subject=f"{report.touched} of {report.trajectories} trajectories",
                through=through,
                redactor=redactor.version,
                counts=dict(report.counts),
            )
    return report


def _newest(project: Project, limit: int | None) -> Iterator[Trajectory]:
    found = Trajectory.objects.filter(project=project).order_by("-id")
    return (found[:limit] if limit is not None else found).iterator(chunk_size=AT_ONCE)


def _steps(row: Trajectory) -> list[Step]:
    found = list(row.steps.order_by("position"))
    for step in found:
        step.trajectory = row
    restore(found)
    return found


def _own(row: Trajectory) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _TRAJECTORY}


def _columns(step: Step) -> dict[str, Any]:
    return {f"column.{name}": getattr(step, name) for name in _STEP}


def _rewrite(row: Trajectory, redactor: Redactor, report: Report) -> Counter[str]:
    own, counts = redactor.value(_own(row))
    if counts:
        Trajectory.objects.filter(pk=row.pk).update(**own)
    gone: set[str] = set()
    for step in _steps(row):
        report.steps += 1
        held = set(step.blobs or ())
        columns, some = redactor.value(_columns(step))
        body, more = redactor.json(_text(step).encode())
        if not some and not more:
            continue
        counts.update(some + more)
        left, values = spill(body)
        Blob.objects.bulk_create(
            [Blob(project_id=row.project_id, sha256=digest, content=value) for digest, value in values.items()],
            ignore_conflicts=True,
        )
        # The digest of what came stays: sent again, it is the same step still.
        Step.objects.filter(pk=step.pk).update(
            body=json.loads(left),
            blobs=sorted(values) or None,
            **{name.removeprefix("column."): value for name, value in columns.items()},
        )
        gone |= held - values.keys()
    for digest in gone:
        if not Step.objects.filter(trajectory__project=row.project_id, blobs__contains=[digest]).exists():
            Blob.objects.filter(project=row.project_id, sha256=digest).delete()
    return counts


def _replace(event: Event, content: bytes) -> None:
    """With the digest that it has when it is sent again, so that it is a duplicate then."""
    digest = hashlib.sha256(event.name.encode() + b"\0" + content).digest()
    same = Event.objects.filter(project=event.project_id, trace_id=event.trace_id, span_id=event.span_id, digest=digest)
    if same.exists():
        Event.objects.filter(pk=event.pk).delete()
    else:
        Event.objects.filter(pk=event.pk).update(body=orjson.loads(content), digest=digest)


def _text(step: Step) -> str:
    """The body as it is stored, byte for byte; with its large values, when it has any."""
    if step.blobs:
        return json.dumps(step.body, ensure_ascii=False, separators=(",", ":"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT body::text FROM trajectories_step WHERE id = %s", [step.pk])
        return str(cursor.fetchone()[0])


def _beside(project: Project, redactor: Redactor) -> Counter[str]:
    """Events, feedback, what is in quarantine, and requests that were kept as they came."""
    counts: Counter[str] = Counter()
    for event in Event.objects.filter(project=project).iterator(chunk_size=AT_ONCE):
        content, found = redactor.json(orjson.dumps(event.body))
        if found:
            counts.update(found)
            _replace(event, content)
    for given in Feedback.objects.filter(project=project).iterator(chunk_size=AT_ONCE):
        said, found = redactor.value({"comment": given.comment, "value": given.value})
        if found:
            counts.update(found)
            Feedback.objects.filter(pk=given.pk).update(**said)
    for item in Quarantined.objects.filter(project=project).iterator(chunk_size=AT_ONCE):
        content = redaction.rejected(bytes(item.content), redactor, counts)
        if content != bytes(item.content):
            Quarantined.objects.filter(pk=item.pk).update(content=content)
    for sent in Body.objects.filter(project=project).iterator(chunk_size=AT_ONCE):
        if redaction.holds_any(bytes(sent.content), sent.encoding, redactor):
            Body.objects.filter(pk=sent.pk).delete()
    return counts
