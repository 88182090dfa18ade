"""The shadow of a ramp: answers to copies of calls, compared with the live version's, and what that says of sessions.

A pair is compared once both answers are stored; one of which an answer never comes is lost. What is counted is the
session: the mean over its calls of the candidate's faults less the live version's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import connection, transaction
from django.db.models import Count, F, QuerySet

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import Project
from flywheel.agents.models import Shadow, ShadowCopy, Split
from flywheel.core.evidence.statistics.estimates import Estimate, clustered_rate, latency_ratio, ratio_of_sums
from flywheel.core.evidence.statistics.sequential.paired_difference import (
    PairedDifference,
    more_wealth,
    paired_interval,
)
from flywheel.edge.refusals import check_choice
from flywheel.failures.detectors import detector_settings
from flywheel.promotions.models import Ramp, ShadowVerdict
from flywheel.promotions.ramps.shadow_pairs import pair_of
from flywheel.system.sql import clock
from flywheel.trajectories.models import Step, Trajectory
from flywheel.trajectories.store.rows.trajectory_rows import homes_of
from flywheel.trajectories.store.stored_traces import complete, step_of

State = ShadowCopy.State
COPIES: Final = 50
"""Compared in one look: those whose answers are there come first."""
LOST_AFTER: Final = timedelta(minutes=10)
"""An answer that is not stored by then never will be: no call takes as long."""
SHOWN: Final = 5_000
"""Sessions, the newest, of which the page tells tokens and time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something by which an answer can be wrong."""

    key: str
    label: str
    margin: float
    """The candidate's share may be higher by so much before the ramp is held."""


FAULTS: Final = (
    Fault("unsafe", "unsafe actions", 0.0),
    Fault("invalid", "invalid calls", 0.0),
    Fault("error", "server errors and timeouts", 0.05),
)
"""Calls whose live server was out of reach have no copy, so that errors need a margin."""
HELD_AT: Final = len(FAULTS) / 0.05
"""The wealth at which one of them holds the ramp: by chance in 5% of ramps at most, all together."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """The numbers of one fault."""

    fault: Fault
    live: float | None
    candidate: float | None
    """Mean share of the calls of a session."""
    difference: PairedDifference
    wealth: float

    @property
    def is_found(self) -> bool:
        return self.wealth >= HELD_AT


@dataclass(frozen=True, slots=True)
class ShadowNumbers:
    sessions: int
    """That are over and have a compared call."""
    compared: int
    """Calls."""
    waiting: int
    """Copies whose answer is on its way."""
    lost: int
    differ: int
    shadow: Shadow
    faults: list[FaultRow]
    same_tools: Estimate | None
    """Mean share of the calls of a session at which both call the same tools."""
    same_arguments: Estimate | None
    """Of these, with the same arguments."""
    tokens: Estimate | None
    time: Estimate | None
    """How many times as many tokens, and as long, the candidate takes."""
    verdicts: dict[str, int]
    """Of people, by their newest word on each pair."""

    @property
    def verdict_words(self) -> list[tuple[str, int]]:
        labels = dict(ShadowVerdict.Verdict.choices)
        return [(str(labels[key]), count) for key, count in sorted(self.verdicts.items())]


class _Session(NamedTuple):
    """Means over its calls, and sums of tokens where both answers have them; in the order of `_SESSIONS`."""

    newest: float
    live_unsafe: float
    candidate_unsafe: float
    live_invalid: float
    candidate_invalid: float
    live_error: float
    candidate_error: float
    same_tools: float
    same_arguments: float | None
    live_tokens: float | None
    candidate_tokens: float | None
    live_ms: float | None
    candidate_ms: float | None


_SESSIONS = """
SELECT max(id) AS newest,
       avg((pair->'live'->>'unsafe')::bool::int), avg((pair->'candidate'->>'unsafe')::bool::int),
       avg((pair->'live'->>'invalid')::bool::int), avg((pair->'candidate'->>'invalid')::bool::int),
       avg((pair->'live'->>'error')::bool::int), avg((pair->'candidate'->>'error')::bool::int),
       avg((pair->>'same_tools')::bool::int), avg((pair->>'same_arguments')::bool::int),
       sum((pair->'live'->>'tokens')::float8) FILTER (WHERE pair->'candidate'->>'tokens' IS NOT NULL),
       sum((pair->'candidate'->>'tokens')::float8) FILTER (WHERE pair->'live'->>'tokens' IS NOT NULL),
       avg((pair->'live'->>'ms')::float8) FILTER (WHERE pair->'candidate'->>'ms' IS NOT NULL),
       avg((pair->'candidate'->>'ms')::float8) FILTER (WHERE pair->'live'->>'ms' IS NOT NULL)
FROM agents_shadowcopy WHERE split_id = %s AND state = 'compared'
GROUP BY kind, name HAVING max(at) < %s ORDER BY newest DESC
"""


def compare(ramp: Ramp) -> int:
    """Compare what is there of both answers; of what never came, say so. Returns how many pairs were compared."""
    sent = list(ShadowCopy.objects.filter(split=ramp.split_id, state=State.SENT).order_by("at", "pk")[: 4 * COPIES])
    if not sent:
        return 0
    now = clock()
    steps = _steps(ramp, sent)
    used, cost = 0, 0.0
    done: list[ShadowCopy] = []
    without = detector_settings.switched_off(
        detector_settings.settings([ramp.agent.project_id]).get(ramp.agent.project_id, {})
    )
    for copy in sent:
        both = steps.get(copy.pk)
        if both is not None and len(done) < COPIES:
            live, candidate = both
            found = pair_of(step_of(live), step_of(candidate), (_tools(live), _tools(candidate)), without)
            copy.state, copy.differs, copy.pair = State.COMPARED, found.differs, found.to_json()
            used += found.candidate.tokens or 0
            cost += candidate.cost_usd or 0.0
            done.append(copy)
        elif both is None and now - copy.at > LOST_AFTER:
            copy.state = State.LOST
            done.append(copy)
    ShadowCopy.objects.bulk_update(done, ["state", "differs", "pair"], batch_size=500)
    if used or cost:
        Shadow.objects.filter(split=ramp.split_id).update(
            tokens_used=F("tokens_used") + used, dollars_used=F("dollars_used") + cost
        )
    return sum(copy.state == State.COMPARED for copy in done)


def over_at(ramp: Ramp, now: datetime | None = None) -> datetime:
    """Sessions whose last copy is older are over."""
    return (now or clock()) - timedelta(seconds=ramp.rules.quiet_s)


def fault_rows(ramp: Ramp) -> list[FaultRow]:
    """The faults of the sessions that are over."""
    return _faults(_sessions(ramp))


def numbers(ramp: Ramp) -> ShadowNumbers:
    """Return all that is known of a ramp's shadow."""
    rows = _sessions(ramp)
    copies = ShadowCopy.objects.filter(split=ramp.split_id)
    counts = dict(copies.order_by().values_list("state").annotate(n=Count("pk")))
    newest = rows[:SHOWN]
    names = [str(row.newest) for row in newest]
    return ShadowNumbers(
        sessions=len(rows),
        compared=counts.get(State.COMPARED, 0),
        waiting=counts.get(State.SENT, 0),
        lost=counts.get(State.LOST, 0),
        differ=disagreements(ramp.split).count(),
        shadow=ramp.split.shadow,
        faults=_faults(rows),
        verdicts=verdicts_of(ramp.split),
        same_tools=_rate([row.same_tools for row in newest], names),
        same_arguments=_rate([row.same_arguments for row in newest], names),
        tokens=_ratio(ratio_of_sums, newest, lambda row: (row.live_tokens, row.candidate_tokens)),
        time=_ratio(latency_ratio, newest, lambda row: (row.live_ms, row.candidate_ms)),
    )


def disagreements(split: Split) -> QuerySet[ShadowCopy]:
    """The pairs that differ, the newest first."""
    return ShadowCopy.objects.filter(split=split, differs=True).order_by("-pk")


def pair_steps(ramp: Ramp, copy: ShadowCopy) -> tuple[Step | None, Step | None]:
    """The stored answers, each None where it is not there (any more)."""
    found = _steps(ramp, [copy], is_either=True)
    live, candidate = found.get(copy.pk, (None, None))
    return live, candidate


def say_verdict(*, copy: ShadowCopy, actor: Actor, project: Project, verdict: str, note: str = "") -> ShadowVerdict:
    """Keep a person's word on a pair; an earlier one stays, and no longer counts. Raises Refused."""
    check_choice(verdict, ShadowVerdict.Verdict.values, field="verdict")
    with transaction.atomic():
        row = ShadowVerdict.objects.create(copy=copy, verdict=verdict, note=note.strip(), by=actor.user)
        actor.record(project=project, action="promotions.shadow_verdict", subject=copy, verdict=verdict)
    return row


def verdicts_of(split: Split) -> dict[str, int]:
    """Count the pairs by people's newest word on each."""
    newest = ShadowVerdict.objects.filter(copy__split=split).order_by("copy", "-pk").distinct("copy")
    return dict(Counter(newest.values_list("verdict", flat=True)))


def _sessions(ramp: Ramp) -> list[_Session]:
    with connection.cursor() as cursor:
        cursor.execute(_SESSIONS, [ramp.split_id, over_at(ramp)])
        return [_Session._make(None if value is None else float(value) for value in row) for row in cursor]


def _faults(rows: Sequence[_Session]) -> list[FaultRow]:
    found = []
    for fault in FAULTS:
        live, candidate = ([getattr(row, f"{arm}_{fault.key}") for row in rows] for arm in ("live", "candidate"))
        differences = [after - before for before, after in zip(live, candidate, strict=True)]
        found.append(
            FaultRow(
                fault,
                sum(live) / len(live) if live else None,
                sum(candidate) / len(candidate) if candidate else None,
                paired_interval(differences),
                more_wealth(differences, margin=fault.margin),
            )
        )
    return found


def _ratio(
    estimate: Callable[[Sequence[float], Sequence[float], Sequence[str]], Estimate],
    rows: Sequence[_Session],
    both_of: Callable[[_Session], tuple[float | None, float | None]],
) -> Estimate | None:
    """The candidate's beside the live version's, of the sessions in which both are known."""
    known = [
        (live, candidate, str(row.newest)) for row in rows for live, candidate in [both_of(row)] if live and candidate
    ]
    if not known:
        return None
    lives, candidates, names = zip(*known, strict=True)
    return estimate(lives, candidates, names)


def _rate(values: Sequence[float | None], names: Sequence[str]) -> Estimate | None:
    return clustered_rate(values, names) if any(value is not None for value in values) else None


def _steps(ramp: Ramp, copies: Sequence[ShadowCopy], *, is_either: bool = False) -> dict[int, tuple[Any, Any]]:
    """By copy the two steps, of those alone where both are stored."""
    project = ramp.agent.project_id
    homes = homes_of(project, {copy.trace_id for copy in copies})
    traces = {homes.get(copy.trace_id, copy.trace_id) for copy in copies} | {copy.copy_trace_id for copy in copies}
    rows = Step.objects.filter(
        trajectory__in=Trajectory.objects.filter(project=project, trace_id__in=traces),
        kind="assistant",
    ).select_related("trajectory")
    lives = {copy.span_id for copy in copies}
    own = {copy.copy_trace_id for copy in copies}
    wanted = list(rows.filter(span_id__in=lives))
    wanted += list(rows.filter(trajectory__trace_id__in=own))
    complete(wanted, {step.trajectory for step in wanted})
    by_span = {(step.trajectory.trace_id, step.span_id): step for step in wanted}
    by_trace = {step.trajectory.trace_id: step for step in wanted if step.trajectory.trace_id in own}
    found = {}
    for copy in copies:
        live = by_span.get((homes.get(copy.trace_id, copy.trace_id), copy.span_id))
        candidate = by_trace.get(copy.copy_trace_id)
        if (live and candidate) or is_either:
            found[copy.pk] = live, candidate
    return found


def _tools(step: Step) -> list[dict[str, Any]]:
    return [tool for tool in step.trajectory.tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


def as_json(row: FaultRow) -> dict[str, Any]:
    """A fault's numbers, as the API has them."""
    return {
        "key": row.fault.key,
        "label": row.fault.label,
        "live": row.live,
        "candidate": row.candidate,
        "wealth": row.wealth,
        "bound": HELD_AT,
        "difference": asdict(row.difference),
    }
