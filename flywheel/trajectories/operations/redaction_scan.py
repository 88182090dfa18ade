"""Search of stored data with today's redaction policy, and the removal of what it finds.

A dry run counts by kind and by place, with the shape of one example each, and changes nothing. Applied, steps, large
values, the trajectory's own columns and what lies beside them (`BESIDE`) are rewritten, requests that were kept as they
came and hold any of it are deleted, and the audit log says so. Copies that people made of it (corrections, tasks,
datasets) are not touched.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import orjson
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.core.redaction import Finding, Redactor
from flywheel.system.sql import bound
from flywheel.trajectories.ingest.otlp_http import Refused, decompress
from flywheel.trajectories.models import Batch, Blob, Body, Event, Feedback, Quarantined, Step, Trajectory, Words
from flywheel.trajectories.store.aggregates import claims
from flywheel.trajectories.store.arrivals import trace_redaction
from flywheel.trajectories.store.rows.blobs import restore, spill

AT_ONCE = 100
_STEP = ("name", "error", "model", "tool_name", "tool_call_id", "finish_reason")
_TRAJECTORY = (
    "title", "agent_name", "version_label", "environment", "user_id", "session_id", "metadata", "tools", "tool_names",
    "attributes", "tags", "interventions", "claims",
)  # fmt: skip
MOST_PLACES = 200
LARGEST_REQUEST = 2**30
"""Bytes of a kept request, decompressed: more than ever came in."""

M = TypeVar("M", bound=models.Model)


@dataclass(slots=True)
class Place:
    """Findings of one kind under one key of one kind of step."""

    kind: str
    step: str
    """The kind of the step, or what else it stands in: `trajectory`, `log event`."""
    path: str
    count: int
    shown: str
    """The shape of the first one."""
    trace_id: str
    """Empty where it stands beside the trajectories."""


@dataclass(slots=True)
class Report:
    trajectories: int = 0
    touched: int = 0
    """Trajectories in which anything was found."""
    steps: int = 0
    beside: int = 0
    """Rows of `BESIDE`."""
    is_cut: bool = False
    """The time was over before all of it was looked through."""
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


def scan(project: Project, redactor: Redactor, limit: int | None = None, within_s: float | None = None) -> Report:
    """Look through the newest trajectories and the newest of what lies beside them, or all. Changes nothing.

    After `within_s` seconds it ends with what it has.
    """
    report = Report()
    until = None if within_s is None else time.monotonic() + within_s
    touched: set[str] = set()
    for said, step, trace_id in _everything(project, limit, report):
        if until is not None and time.monotonic() > until:
            report.is_cut = True
            break
        if found := redactor.findings(said):
            report.add(found, step, trace_id)
            touched.add(trace_id)
    report.touched = len(touched - {""})
    return report


def _everything(project: Project, limit: int | None, report: Report) -> Iterator[tuple[Any, str, str]]:
    """Yield each value to look through, its kind of step or row, and the trajectory; counted in the report."""
    for row in _newest(Trajectory, project, limit):
        report.trajectories += 1
        yield _own(row), "trajectory", row.trace_id
        for step in _steps(row):
            report.steps += 1
            yield {**_columns(step), **step.body}, step.kind, row.trace_id
    for model, (name, said, _) in BESIDE.items():
        for other in _newest(model, project, limit):
            report.beside += 1
            yield said(other), name, ""


def apply(project: Project, redactor: Redactor, actor: Actor, limit: int | None = None) -> Report:
    """Take out what is found. A transaction for each trajectory, so that it can be stopped and run again."""
    report = Report()
    for row in _newest(Trajectory, project, limit):
        with transaction.atomic():
            locked = Trajectory.objects.select_for_update().filter(pk=row.pk).first()
            if locked is None:  # deleted meanwhile
                continue
            counts = _rewrite(locked, redactor, report)
            if counts:  # what detectors made of it quotes what was there: they read it again
                Words.objects.filter(trajectory=locked).delete()
                Trajectory.objects.filter(pk=locked.pk).update(detected_at=None)
        report.trajectories += 1
        report.counts.update(counts)
        report.touched += bool(counts)
    with transaction.atomic():
        for model, (_, _, take_out) in BESIDE.items():
            for other in _newest(model, project, None):
                report.beside += 1
                report.counts.update(take_out(other, redactor))
        if report.counts:
            actor.record(
                project=project,
                action="trajectories.redact",
                subject=f"{report.touched} of {report.trajectories} trajectories",
                redactor=redactor.version,
                counts=dict(report.counts),
            )
    return report


def _newest(model: type[M], project: Project, limit: int | None) -> Iterator[M]:
    found = model._default_manager.filter(project=project).order_by("-id")
    return (found[:limit] if limit is not None else found).iterator(chunk_size=AT_ONCE)


# Trajectories


def _steps(row: Trajectory) -> Iterator[Step]:
    """Some at a time, with their large values: there may be many."""
    found = row.steps.order_by("position").iterator(chunk_size=AT_ONCE)
    while some := list(islice(found, AT_ONCE)):
        for step in some:
            step.trajectory = row
        restore(some)
        yield from some


def _own(row: Trajectory) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in _TRAJECTORY}, "claims": _words(row.claims)}


def _words(said: Any) -> Any:
    """`Trajectory.claims` with nothing in it but words: when something was said, and by which span, is no secret, also
    where it stands under a telling name. A name each, since two may become one."""
    if isinstance(said, dict):
        return [{name: _words(value)} for name, value in said.items()]
    if isinstance(said, list) and not (len(said) == 3 and isinstance(said[1], bool)):
        return [_words(value) for value in said]
    return said if isinstance(said, str) else None


def _with_keys(words: Any, said: Any) -> Any:
    """Put back what `_words` has left out."""
    if isinstance(said, dict):
        pairs = zip(words, said.values(), strict=True)
        return {name: _with_keys(word, old) for each, old in pairs for name, word in each.items()}
    if isinstance(words, list):
        return [_with_keys(*pair) for pair in zip(words, said, strict=True)]
    return said if words is None else words


def _columns(step: Step) -> dict[str, Any]:
    return {f"column.{name}": getattr(step, name) for name in _STEP}


def _rewrite(row: Trajectory, redactor: Redactor, report: Report) -> Counter[str]:
    own, counts = redactor.value(_own(row))
    if counts:
        own["claims"] = claims.cut(_with_keys(own["claims"], row.claims))
        Trajectory.objects.filter(pk=row.pk).update(**_cut(Trajectory, own))
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
            **_cut(Step, {name.removeprefix("column."): value for name, value in columns.items()}),
        )
        gone |= held - values.keys()
    for digest in gone:
        if not Step.objects.filter(trajectory__project=row.project_id, blobs__contains=[digest]).exists():
            Blob.objects.filter(project=row.project_id, sha256=digest).delete()
    return counts


def _cut(model: type[models.Model], values: dict[str, Any]) -> dict[str, Any]:
    """To the widths of the columns, as what arrives is: a placeholder may be longer than what it stands for."""
    return {name: _cut_one(model._meta.get_field(name), value) for name, value in values.items()}


def _cut_one(column: Any, value: Any) -> Any:
    if isinstance(column, ArrayField):
        return [_cut_one(column.base_field, item) for item in value]
    return value[: column.max_length] if isinstance(value, str) else value


def _text(step: Step) -> str:
    """The body as it is stored, byte for byte; with its large values, when it has any."""
    if step.blobs:
        return json.dumps(step.body, ensure_ascii=False, separators=(",", ":"))
    ((body,),) = bound("SELECT body::text FROM trajectories_step WHERE id = %s", [step.pk])
    return str(body)


# Beside them: what a row says, and taking out of it what is found, which answers how much that was


def _event(row: Event, redactor: Redactor) -> Counter[str]:
    content, found = redactor.json(orjson.dumps(row.body))
    if not found:
        return found
    # With the digest that it has when it is sent again, so that it is a duplicate then.
    digest = hashlib.sha256(row.name.encode() + b"\0" + content).digest()
    same = Event.objects.filter(project=row.project_id, trace_id=row.trace_id, span_id=row.span_id, digest=digest)
    if same.exists():
        row.delete()
    else:
        Event.objects.filter(pk=row.pk).update(body=orjson.loads(content), digest=digest)
    return found


def _columns_of(name: str, *columns: str) -> "Beside":
    """Build the entry of `BESIDE` for a model that says something in columns alone."""

    def says(row: models.Model) -> dict[str, Any]:
        return {column: getattr(row, column) for column in columns}

    def take_out(row: models.Model, redactor: Redactor) -> Counter[str]:
        said, found = redactor.value(says(row))
        if found:
            type(row)._default_manager.filter(pk=row.pk).update(**said)
        return found

    return name, says, take_out


def _what_was_rejected(row: Quarantined) -> dict[str, Any]:
    return {"reason": row.reason, "content": trace_redaction.readable(bytes(row.content)).decode(errors="replace")}


def _rejected(row: Quarantined, redactor: Redactor) -> Counter[str]:
    reason, found = redactor.text(row.reason)
    content = trace_redaction.rejected(bytes(row.content), redactor, found)
    if not found:
        return found
    same = Quarantined.objects.filter(project=row.project_id, state=row.state, content=content).exclude(pk=row.pk)
    # Of equal ones one is open, and of what cannot be kept without its secrets there is nothing to replay.
    if row.state == Quarantined.State.OPEN and (not content or same.exists()):
        row.delete()
    else:
        Quarantined.objects.filter(pk=row.pk).update(**_cut(Quarantined, {"reason": reason, "content": content}))
    return found


def _what_was_sent(row: Body) -> bytes:
    """As JSON. Raises Refused for what cannot be read."""
    content = bytes(row.content)
    return trace_redaction.readable(decompress(content, row.encoding, LARGEST_REQUEST) if row.encoding else content)


def _sent_text(row: Body) -> str:
    try:
        return _what_was_sent(row).decode(errors="replace")
    except Refused:
        return ""


def _sent(row: Body, redactor: Redactor) -> Counter[str]:
    try:
        _, found = redactor.json(_what_was_sent(row))
    except Refused:
        found = Counter({"unreadable request": 1})
    if found:
        row.delete()
    return found


Beside = tuple[str, Callable[[Any], Any], Callable[[Any, Redactor], Counter[str]]]
BESIDE: dict[type[Any], Beside] = {
    Event: ("log event", lambda row: row.body, _event),
    Feedback: _columns_of("feedback", "comment", "value"),
    Quarantined: ("rejected", _what_was_rejected, _rejected),
    Batch: _columns_of("ledger", "problems", "warnings"),
    Body: ("kept request", _sent_text, _sent),
}
"""What else holds what was sent: its name, what a row of it says, and taking out what is found."""
