"""Trajectories into rows: the one way in, for telemetry, imports and rollouts.

`write` merges parts of trajectories into what is stored, in one transaction, and answers what each step came to.
The result depends only on the set of steps that ever arrived, not on their order, their grouping or their repetition:

- A step is known by (project, trace id, span id). The same content again is a duplicate. Other content under a known
  id: the one that has ended wins, then the longer one, then the one with the greater digest. The loser counts as a
  duplicate, since nothing changes.
- Steps are put in order by their start; where a step has no clock, by their place in what was sent (`step_order.py`).
- The trajectory's columns are computed from its steps (`running_totals.py`) and from what they said of the whole
  (`claims.py`).

`store` also writes the ledger row and keeps what was rejected (`batch_ledger.py`); `store_rollouts` is for attempts
that this house made.
"""

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

import psycopg
from django.db import DataError, OperationalError, connection, transaction
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.accounts.project_settings.redaction_policy import redactor_of
from flywheel.agents.models import Version
from flywheel.core import redaction, traces
from flywheel.core.redaction import Redactor
from flywheel.system.sql import copied
from flywheel.trajectories.formats.observability import otlp_documents
from flywheel.trajectories.formats.otlp.spans import Decoded, Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Batch, Source, Trajectory
from flywheel.trajectories.store import attachments, batch_ledger, continuations, detector_wakeup
from flywheel.trajectories.store.aggregates import agent_resolution, claims, derived_costs, running_totals, step_order
from flywheel.trajectories.store.arrivals import incoming_steps, trace_redaction
from flywheel.trajectories.store.arrivals.incoming_steps import Arrival, Reader, Said, fit
from flywheel.trajectories.store.batch_ledger import NO_REQUEST, PROBLEMS_KEPT, Origin, Problem
from flywheel.trajectories.store.continuations import Joined
from flywheel.trajectories.store.group_commit import Together
from flywheel.trajectories.store.rows import trajectory_rows

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 5
SMALL = 2000
"""Steps of a request that others wait for."""
TOGETHER_LOCK_S = 0.3
"""How long they wait for somebody else's trajectory: all that come after them wait too."""

Part = traces.Trace | Span
"""What arrives: a part of a trajectory that its format has mapped, or a span."""


@dataclass(slots=True)
class Written:
    """The result of one `write` for its steps."""

    inserted: int = 0
    updated: int = 0
    duplicate: int = 0
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    """By trace id."""
    warnings: list[str] = field(default_factory=list)
    redactions: Counter[str] = field(default_factory=Counter)
    """How many values were redacted, by kind."""
    is_news: bool = False
    """Whether there is anything for the detectors."""

    @property
    def received(self) -> int:
        return self.inserted + self.updated + self.duplicate


@dataclass(slots=True)
class _Came:
    """The arrivals of one trajectory, and the result of writing them."""

    arrivals: list[Arrival] = field(default_factory=list)
    statements: list[Said] = field(default_factory=list)
    inserted: int = 0
    updated: int = 0
    duplicate: int = 0


@dataclass(slots=True)
class _Delivery:
    """Parts that came together: read, without their secrets, and not written yet."""

    project: Project
    source: str
    version: Version | None
    came: dict[str, _Came]
    warnings: list[str]
    redactions: Counter[str]
    names: set[str]
    """The trajectories that it speaks of: those that it brings steps of, and those that it judges."""


@dataclass(slots=True)
class _Request:
    """A delivery, with what the ledger tells of it."""

    delivery: _Delivery
    format: str
    origin: Origin
    problems: list[Problem]
    held: Counter[str]
    """What was redacted in the problems."""
    redactor: Redactor
    is_kept: bool
    """As it came, since there is no secret in it."""


def store(
    project: Project,
    parts: Sequence[Part],
    *,
    source: str,
    format: str,
    origin: Origin = NO_REQUEST,
    problems: Sequence[Problem] = (),
    shared: bool = False,
) -> Batch:
    """Write the parts, the ledger row that says what became of them, and what was rejected: one transaction.

    The body is kept for replay where `origin` has it and it holds no secret. With `shared`, requests that come at the
    same time may share the transaction.
    """
    redactor, sent = redactor_of(project), origin.sent

    def request(parts: Sequence[Part], problems: Sequence[Problem]) -> _Request:
        delivery = _read(project, parts, source, None, redactor)
        clean, held = batch_ledger.without_secrets(problems, redactor)
        is_kept = (
            sent is not None and not delivery.redactions and not held and trace_redaction.is_clean(sent.rest, redactor)
        )
        return _Request(delivery, format, origin, clean, held, redactor, is_kept)

    came = request(parts, problems)
    if shared and _is_small(came) and (batch := turns.do(came)) is not None:
        return batch
    turns.leave()
    try:
        return patiently(lambda: _store([came])[0])
    except DataError:
        # Something that we took for storable is not: find it, so that it does not cost its siblings.
        log.exception("the database refuses a part of a request of project %s", project.pk)
        good, bad = _apart(project, parts, source)
        left = request(good, [*problems, *bad])
        return patiently(lambda: _store([left])[0])


def _store(requests: Sequence[_Request], lock_s: float = 10) -> list[Batch]:
    """All of these requests of one project, of which no two speak of the same trajectory; or none."""
    trajectory_rows.hurry(lock_s)
    every = write_all([request.delivery for request in requests])
    batches = [_batch_row(request, written) for request, written in zip(requests, every, strict=True)]
    for batch, request, written in zip(batches, requests, every, strict=True):
        batch_ledger.record(batch)
        sent = request.origin.sent
        batch_ledger.quarantine(batch, request.problems, sent.media_type if sent else "")
        if sent and request.is_kept:
            batch_ledger.keep(batch, sent, written.trajectories)
    if any(written.is_news for written in every):
        detector_wakeup.after_commit(requests[0].delivery.project.pk)
    return batches


def _batch_row(request: _Request, written: Written) -> Batch:
    """The ledger row of a request."""
    problems, redactor = request.problems, request.redactor
    redactions = written.redactions + request.held
    return Batch(
        project=request.delivery.project,
        key=request.origin.key,
        format=request.format,
        sha256=request.origin.sha256,
        trajectories=len(written.trajectories),
        received=written.received + len(problems),
        inserted=written.inserted,
        updated=written.updated,
        duplicate=written.duplicate,
        rejected=len(problems),
        problems=[{"at": item.at, "reason": item.reason} for item in problems[:PROBLEMS_KEPT]],
        warnings=trace_redaction.sentences(written.warnings, redactor) + redaction.warnings(redactions),
        redactions=dict(redactions),
        redactor=redactor.version,
    )


# Requests that share a transaction


def _is_small(request: _Request) -> bool:
    """Whether others may wait for it, which they do not where its trajectories are still to be found."""
    steps = [step for part in request.delivery.came.values() for step in part.arrivals]
    return len(steps) <= SMALL and all(step.stretch is None for step in steps)


def _fits(turn: Sequence[_Request], other: _Request) -> bool:
    """Whether it can be written with these: of the same project, and nobody's trajectory is another's."""
    is_ours = other.delivery.project.pk == turn[0].delivery.project.pk
    return is_ours and all(other.delivery.names.isdisjoint(request.delivery.names) for request in turn)


def _store_together(requests: Sequence[_Request]) -> list[Batch]:
    """Tried once, and waiting for nobody for long: who fails here tries alone."""
    with transaction.atomic():
        return _store(requests, TOGETHER_LOCK_S)


turns = Together(_store_together, _fits)


def _apart(project: Project, parts: Sequence[Part], source: str) -> tuple[list[Part], list[Problem]]:
    """The parts that can be written, and the others as problems. Each is tried alone, and nothing is kept."""
    good: list[Part] = []
    bad: list[Problem] = []
    for index, part in enumerate(parts):
        try:
            with transaction.atomic():
                write(project, [part], source=source)
                transaction.set_rollback(True)
            good.append(part)
        except DataError as error:
            trace = otlp_traces.traces_of(Decoded([part])).traces[0] if isinstance(part, Span) else part
            content = json.dumps(otlp_documents.dump(trace)).encode()
            media_type = "" if source == Source.IMPORT else otlp_traces.JSON
            bad.append(Problem(f"part {index}", f"the database cannot hold it: {error}", content, media_type))
    return good, bad


def store_rollouts(
    project: Project,
    parts: Sequence[traces.Trace],
    *,
    version: Version | None = None,
    source: Source = Source.ROLLOUT,
) -> list[Trajectory]:
    """Store attempts as trajectories, in the order given. Each part is a whole trajectory; no ledger row is written."""
    written = patiently(lambda: write(project, parts, source=source, version=version))
    return [written.trajectories[fit(part.trace_id)] for part in parts]


def write(project: Project, parts: Iterable[Part], *, source: str, version: Version | None = None) -> Written:
    """Merge the parts into what is stored, in one transaction; secrets are not looked for."""
    return write_all([_read(project, parts, source, version, None)])[0]


def write_all(deliveries: Sequence[_Delivery]) -> list[Written]:
    """As `write`, for several of one project, source and version, of which no two speak of the same trajectory.

    Raises Raced where two turn out to.
    """
    if not any(delivery.came for delivery in deliveries):
        return [Written(warnings=each.warnings, redactions=each.redactions) for each in deliveries]
    project, source, version = deliveries[0].project, deliveries[0].source, deliveries[0].version
    now = timezone.now()
    with transaction.atomic(savepoint=False):
        joined = _joined(deliveries)
        came = _gathered(deliveries, joined)
        names = {joined.home(name) for each in deliveries for name in each.names}
        stored = attachments.locked(project, names | joined.absorbed.keys())
        gone = _absorbed(stored, came, joined)
        blank = _blank(project, source, now)
        new = {trace_id: _new(blank, trace_id) for trace_id in came if trace_id not in stored}
        came |= {trace_id: _Came() for trace_id in stored if trace_id not in came}
        fresh, replaced = _merge(stored, came)
        said = {trace_id: part.statements for trace_id, part in came.items()}
        counted = attachments.join(project, stored, new, said, joined.adopted)
        is_import = source == Source.IMPORT
        told = {
            trace_id: claims.merge(row, came[trace_id].statements, later_holds=is_import)
            for trace_id, row in sorted({**stored, **new}.items())
        }
        changed = [row for trace_id, row in sorted(stored.items()) if told[trace_id] or fresh[trace_id]]
        for row in changed:
            row.changed_at = now
        agent_resolution.resolve(project, [*new.values(), *changed], version)
        if source not in Source.ATTEMPTS:
            derived_costs.derive(project, {**stored, **new}, fresh)
        moved = _place(stored, new, fresh, replaced)
        trajectory_rows.insert_trajectories(list(new.values()))
        trajectory_rows.update_trajectories(list(dict.fromkeys([*changed, *counted])))
        continuations.store(project, joined, {**stored, **new}, gone)
        trajectory_rows.write_steps({**stored, **new}, fresh, replaced, now)
        trajectory_rows.move_steps(moved)
    every, is_news = stored | new, bool(new or changed)
    return [_written(delivery, came, every, is_news, joined) for delivery in deliveries]


def _joined(deliveries: Sequence[_Delivery]) -> Joined:
    """Find the trajectories of the traces that are part of another's."""
    if deliveries[0].source != Source.PRODUCTION:
        return Joined()
    came = {trace_id: part.arrivals for each in deliveries for trace_id, part in each.came.items()}
    found = continuations.join(deliveries[0].project, came, set[str]().union(*(each.names for each in deliveries)))
    if found.homes and len(deliveries) > 1:
        raise trajectory_rows.Raced
    return found


def _gathered(deliveries: Sequence[_Delivery], joined: Joined) -> dict[str, _Came]:
    """Group the arrivals by trajectory. Copies, since a transaction that is run again begins with what came."""
    came: dict[str, _Came] = {}
    for delivery in deliveries:
        for trace_id, part in delivery.came.items():
            own = came.setdefault(joined.home(trace_id), _Came())
            own.arrivals = [*own.arrivals, *part.arrivals] if own.arrivals else part.arrivals
            own.statements += part.statements
    return came


def _absorbed(stored: dict[str, Trajectory], came: dict[str, _Came], joined: Joined) -> list[Trajectory]:
    """Take stored trajectories back that have become part of others. Raises Raced when somebody has touched one."""
    gone = [stored.pop(trace_id) for trace_id in sorted(joined.absorbed) if trace_id in stored]
    for row in gone:
        if not continuations.is_free(row):
            raise trajectory_rows.Raced
        arrivals, said = continuations.taken_back(row)
        part = came.setdefault(joined.absorbed[row.trace_id], _Came())
        part.arrivals, part.statements = [*part.arrivals, *arrivals], [*part.statements, *said]
        part.inserted -= len(arrivals)  # they are in the ledger already
    return gone


def _written(
    delivery: _Delivery, came: Mapping[str, _Came], every: Mapping[str, Trajectory], is_news: bool, joined: Joined
) -> Written:
    """Return the result of one delivery for its steps."""
    own = [came[trace_id] for trace_id in {joined.home(trace_id) for trace_id in delivery.came}]
    named = {joined.home(trace_id) for trace_id in delivery.names}
    return Written(
        inserted=sum(part.inserted for part in own),
        updated=sum(part.updated for part in own),
        duplicate=sum(part.duplicate for part in own),
        trajectories={trace_id: every[trace_id] for trace_id in named if trace_id in every},
        warnings=delivery.warnings,
        redactions=delivery.redactions,
        is_news=is_news,
    )


# What `write` does with each trajectory


def _read(
    project: Project, parts: Iterable[Part], source: str, version: Version | None, redactor: Redactor | None
) -> _Delivery:
    reader = Reader(redactor)
    came = _by_trajectory(list(parts), version, reader)
    judged = {each.trace_id for part in came.values() for said in part.statements for each in said.judgments}
    names = came.keys() | judged  # an evaluator judges others too
    return _Delivery(project, source, version, came, reader.warnings[:PROBLEMS_KEPT], reader.redactions, names)


def _by_trajectory(parts: Sequence[Part], version: Version | None, reader: Reader) -> dict[str, _Came]:
    came: dict[str, _Came] = {}
    spans = reader.spans([part for part in parts if isinstance(part, Span)])
    for part in parts:
        if isinstance(part, Span):
            known = came.get(part.trace_id)
            if known is None:
                known = came[part.trace_id] = _Came()
            arrival, said = next(spans)
            known.arrivals.append(arrival)
        else:
            if version is not None:
                part = replace(part, agent=version.agent.name, version=str(version.number))
            if reader.redactor is not None:
                part = trace_redaction.part(part, reader.redactor, reader.redactions)
            known = came.setdefault(fit(part.trace_id), _Came())
            steps, said = incoming_steps.part(part)
            known.arrivals += steps
        known.statements.append(said)
    return came


def _blank(project: Project, source: str, now: datetime) -> Trajectory:
    """Build the trajectory that each new one begins as."""
    return Trajectory(project=project, source=source, started_at=now, received_at=now, changed_at=now)


def _new(blank: Trajectory, trace_id: str) -> Trajectory:
    """A copy with values of its own."""
    made = copied(blank)
    made.trace_id = trace_id
    for name in _OWN:
        setattr(made, name, getattr(made, name).copy())
    return made


_OWN = tuple(field.attname for field in Trajectory._meta.concrete_fields if field.default in (list, dict))
"""Columns whose value can be changed in its place."""


def _merge(
    stored: dict[str, Trajectory], came: dict[str, _Came]
) -> tuple[dict[str, list[Arrival]], dict[str, dict[str, int]]]:
    """Return, by trajectory, the steps that have to be written, and the stored steps (span id to key) they replace."""
    heads = trajectory_rows.heads_of(
        [(row.pk, step.span_id) for trace_id, row in stored.items() for step in came[trace_id].arrivals]
    )
    fresh: dict[str, list[Arrival]] = {}
    replaced: dict[str, dict[str, int]] = {}
    for trace_id, part in came.items():
        known = heads.get(stored[trace_id].pk, {}) if trace_id in stored else {}
        best: dict[str, Arrival] = {}
        for step in part.arrivals:
            rival = best.get(step.span_id)
            head = known.get(step.span_id)
            if (rival is not None and rival.rank >= step.rank) or (head is not None and head.rank >= step.rank):
                part.duplicate += 1
                continue
            if rival is not None:
                part.duplicate += 1  # of one that came in the same request, and is written only once
            elif head is not None:
                part.updated += 1
            else:
                part.inserted += 1
            best[step.span_id] = step
        fresh[trace_id] = list(best.values())
        replaced[trace_id] = {span_id: known[span_id].pk for span_id in best if span_id in known}
    return fresh, replaced


def _place(
    stored: dict[str, Trajectory],
    new: dict[str, Trajectory],
    fresh: dict[str, list[Arrival]],
    replaced: dict[str, dict[str, int]],
) -> list[tuple[int, int]]:
    """Number the steps and add up the figures. Returns the stored steps that move."""
    for trace_id, row in new.items():
        running_totals.mark_untimed(row, fresh[trace_id])
        step_order.number(row, fresh[trace_id], (), 0)
        running_totals.add(row, fresh[trace_id])
    earliest: dict[int, int] = {}
    for trace_id, row in stored.items():
        if fresh[trace_id]:
            known_untimed = step_order.UNTIMED in row.claims
            running_totals.mark_untimed(row, fresh[trace_id])
            whole = known_untimed or step_order.UNTIMED in row.claims or replaced[trace_id]
            earliest[row.pk] = -1 if whole else min(step.start_us or 0 for step in fresh[trace_id])
    tails = step_order.tails(earliest)
    moved: list[tuple[int, int]] = []
    for trace_id, row in stored.items():
        if not fresh[trace_id]:
            continue
        tail = [step for step in tails[row.pk] if step.span_id not in replaced[trace_id]]
        base = row.step_count - len(tails[row.pk])
        moved += step_order.number(row, fresh[trace_id], tail, base)
        if replaced[trace_id]:
            running_totals.add_again(row, fresh[trace_id], replaced[trace_id].values())
        else:
            running_totals.add(row, fresh[trace_id])
    return moved


def patiently(work: Callable[[], T]) -> T:
    """Run `work` in a transaction, again when another writer was faster or the database broke a deadlock."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with transaction.atomic():
                return work()
        except trajectory_rows.Raced:
            if attempt == ATTEMPTS:
                raise
        except OperationalError as error:
            if attempt == ATTEMPTS or connection.in_atomic_block or not isinstance(error.__cause__, _VICTIM):
                raise
            time.sleep(random.uniform(0, 0.05 * attempt))
    raise AssertionError("unreachable")


_VICTIM = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
