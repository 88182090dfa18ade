"""The numbers of a ramp, from the sessions that met its arms: a handful of statements, however many there are."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connection
from django.db.models import Count, F, FloatField, Q, QuerySet, Sum, Value, Window
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, Greatest, Lag, Ln

from flywheel.agents.models import Split, SplitUnit, Version
from flywheel.core.evidence.ramp.ramp_judge import DOUBT, MISSING, PROOF, doubts
from flywheel.core.evidence.ramp.ramp_plan import BUCKET, SIGNALS, WHOLE, Plan
from flywheel.core.evidence.statistics.sequential.arm_difference import Difference, difference, not_worse
from flywheel.promotions.models import Ramp
from flywheel.promotions.ramps import ramp_units
from flywheel.trajectories.annotations.project_buckets import name_of
from flywheel.trajectories.ingest.gateway.journals.journal_traces import OVERRIDES
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.search import grammar

POINTS: Final = 500
"""Of a line of wealth."""
MOST_USED: Final = 30_000
"""Sessions, from the first on, that the interval and the proof rest on: enough for any ramp, and read in a moment."""
MOVED: Final = 10
"""Sessions that are listed."""
CROWDED: Final = ramp_units.TRAJECTORIES
"""Judged trajectories from which on a session is listed as shared: one name is perhaps given to everybody."""
FEW: Final = 100
"""Awaited sessions among which an open page looks for one that goes on; where there are more, others change it."""
_GOING_ON: Final = Q(frozen_at=None, trajectories__gt=0)
_OVERRIDES = """
SELECT is_candidate, said.key, count(*), sum(said.value::int)
FROM agents_splitunit CROSS JOIN LATERAL jsonb_each_text(overrides) AS said
WHERE split_id = %s AND number IS NOT NULL AND overriding_calls > 0
GROUP BY is_candidate, said.key ORDER BY count(*) DESC, said.key
"""


@dataclass(frozen=True, slots=True)
class Override:
    """Something that a version brings, and that calls of final sessions said otherwise."""

    name: str
    """Such as `temperature`, `system` or `tools`."""
    sessions: int
    calls: int
    query: str
    """Of the filter bar, for the trajectories with such calls since the ramp began."""


@dataclass(slots=True)
class Arm:
    """The sessions of one arm, by their state."""

    met: int = 0
    final: int = 0
    mixed: int = 0
    missing: int = 0
    """Final ones whose result nobody learnt."""
    assigned: int = 0
    """Those whose agent called its model itself."""
    overriding: int = 0
    """Final ones with calls that said something otherwise than the version."""
    overriding_calls: int = 0
    overrides: list[Override] = field(default_factory=list)
    """The most frequent first."""
    parts: dict[str, float] = field(default_factory=dict)
    """By signal, how many final sessions went wrong; a part of a session counts as a part."""
    judged: dict[str, int] = field(default_factory=dict)
    """By signal, in how many that is known."""

    @property
    def awaited(self) -> int:
        return self.met - self.final - self.mixed

    @property
    def failures(self) -> float:
        return self.parts.get("failed", 0.0)

    @property
    def failure_rate(self) -> float | None:
        return self.rate("failed")

    def rate(self, signal: str) -> float | None:
        """Return the share of sessions that went wrong by this signal; None where none was judged."""
        return self.parts[signal] / self.judged[signal] if self.judged.get(signal) else None


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One signal's numbers."""

    key: str
    label: str
    alpha: float
    """Its part of the chance of error: its bound is 1 / alpha."""
    wealth: float
    live: float | None
    candidate: float | None
    limit: float | None

    @property
    def bound(self) -> float:
        return 1 / self.alpha

    @property
    def shown(self) -> str:
        return shown_wealth(self.wealth)

    @property
    def reached(self) -> float:
        """Its wealth as a part of its bound: at 1 the candidate is taken back."""
        return self.wealth * self.alpha


@dataclass(frozen=True, slots=True)
class MovedUnit:
    """A session, and by what it multiplied the wealth of a signal."""

    unit: SplitUnit
    factor: float
    trace_id: str
    """Of a stored trajectory of it; empty where there is none."""
    wrong: str
    """In words, the signals by which it went wrong."""


@dataclass(frozen=True, slots=True)
class Evidence:
    live: Arm
    candidate: Arm
    in_stage: int
    """Final sessions that met the ramp at its present share."""
    mixed: dict[str, int]
    """By reason, in words."""
    signals: list[SignalRow]
    """The one nearest to its bound first."""
    difference: Difference | None
    """Of the sessions that failed; None while none is judged."""
    used: int
    """Final sessions that the difference and the proof rest on, from the first one on."""
    proof: float
    """Wealth against "worse by the margin or more", of the signal of which least is shown."""
    doubts: list[str]
    """Why no comparison holds; empty where nothing speaks against it."""
    accepted: list[str]
    """The same, of what a person has let go on."""

    @property
    def final(self) -> int:
        return self.live.final + self.candidate.final


PROVED: Final = 1 / PROOF
"""The wealth at which it is shown that the candidate is not worse by the margin."""


def evidence(ramp: Ramp) -> Evidence:
    """Return the numbers of a ramp as they are now."""
    plan = ramp.rules
    by_share = _by_share(ramp.split, [*plan.signals])
    live, candidate = Arm(), Arm()
    met: dict[int, tuple[int, int]] = {}
    judged: dict[int, tuple[int, int]] = {}
    mixed: dict[str, int] = {}
    in_stage = 0
    for row in by_share:
        _add(candidate if row["is_candidate"] else live, row, plan.signals)
        for counted, name in ((met, "met"), (judged, "final")):
            in_candidate, in_live = counted.get(row["share"], (0, 0))
            counted[row["share"]] = (
                in_candidate + row[name] * row["is_candidate"],
                in_live + row[name] * (not row["is_candidate"]),
            )
        for reason in SplitUnit.Mixed:
            if count := row[f"mixed_{reason}"]:
                mixed[reason.label] = mixed.get(reason.label, 0) + count
        if row["share"] == plan.steps[max(ramp.stage, 0)].share:
            in_stage += row["final"]
    if live.overriding or candidate.overriding:
        live.overrides, candidate.overrides = _overrides(ramp)
    wealth = wealth_now(ramp.split, plan)
    found = doubts(
        plan, wealth, *([(share, *counts) for share, counts in sorted(counted.items())] for counted in (met, judged))
    )
    accepted = ramp.finding.get("accepted", ())
    arms, shares, failed = _judged(ramp.split, "failed")
    return Evidence(
        live,
        candidate,
        in_stage,
        mixed,
        _signals(ramp, wealth, live, candidate),
        difference(arms, shares, failed) if len(arms) else None,
        len(arms),
        min(_proof(ramp.split, key, margin) for key, margin in plan.proved.items()),
        [words for kind, words in found.items() if kind not in accepted],
        [words for kind, words in found.items() if kind in accepted],
    )


def wealth_now(split: Split, plan: Plan) -> dict[str, float]:
    """The wealth of each signal after the last final session; 1 before the first."""
    last = _final(split).order_by("-number").values_list("wealth", flat=True).first() or {}
    return {key: float(last.get(key, 1.0)) for key in (*plan.signals, MISSING)}


def wealth_path(split: Split, points: int = POINTS) -> list[tuple[int, Mapping[str, float]]]:
    """Return number and wealth of final sessions at equal distances, at most `points` of them, the last among them."""
    last = _final(split).order_by("-number").values_list("number", flat=True).first()
    if not last:
        return []
    step = math.ceil(last / max(1, points - 1))
    wanted = {1, last, *range(step, last, step)} if last > points else range(1, last + 1)
    units = SplitUnit.objects.filter(split=split, number__in=wanted).order_by("number")
    return [(unit.number or 0, unit.wealth) for unit in units.only("number", "wealth")]


def moved_most(ramp: Ramp, signal: str, count: int = MOVED) -> list[MovedUnit]:
    """Return the sessions that raised the wealth of a signal by the largest factors, the largest first."""
    present = Greatest(_number("wealth", signal), Value(1e-300))
    rows = (
        _final(ramp.split)
        .annotate(present=present, before=Window(Lag(present, default=Value(1.0)), order_by="number"))
        .annotate(rise=Ln(F("present")) - Ln(F("before")))
        .filter(rise__gt=0)
        .order_by("-rise", "number")[:count]
    )
    units = list(rows)
    stored = set(
        Trajectory.objects.filter(
            project=ramp.agent.project_id, trace_id__in=[unit.trace_id for unit in units if unit.trace_id]
        ).values_list("trace_id", flat=True)
    )
    return [
        MovedUnit(
            unit,
            math.exp(unit.rise),
            unit.trace_id if unit.trace_id in stored else "",
            ", ".join(label_of(ramp, key) for key, part in unit.parts.items() if part),
        )
        for unit in units
    ]


def crowded(split: Split) -> list[SplitUnit]:
    """Return the sessions with so many trajectories, or that go on for so long, that their id is perhaps no session's:
    the largest first."""
    found = split.units.filter(Q(trajectories__gte=CROWDED) | _GOING_ON)
    return list(found.order_by("-trajectories", "pk")[:MOVED])


def going_on(split: Split) -> int:
    """Count those that go on for so long, where few sessions are awaited: one that all calls share is the only one."""
    awaited = split.units.filter(frozen_at=None).order_by("look_at")
    counts = list(awaited.values_list("trajectories", flat=True)[: FEW + 1])
    return sum(count > 0 for count in counts) if len(counts) <= FEW else 0


def shown_wealth(wealth: float) -> str:
    """Write a wealth with two digits that count: `0.42`, `13`, `2,400`; beyond a million it says no more."""
    if wealth < 0.01:
        return "< 0.01"
    if wealth >= 1e6:
        return "> 1,000,000"
    return f"{wealth:,.0f}" if wealth >= 100 else f"{wealth:.2g}"


def margins_of(ramp: Ramp) -> list[tuple[str, float]]:
    """Name the signals that the proof covers, with their margins."""
    return [(label_of(ramp, key), margin) for key, margin in ramp.rules.proved.items()]


def label_of(ramp: Ramp, signal: str) -> str:
    """A signal's name in running text."""
    if signal == MISSING:
        return "missing results"
    if signal.startswith(BUCKET):
        return name_of(ramp.agent.project, signal.removeprefix(BUCKET))
    return SIGNALS[signal].label if signal in SIGNALS else signal


def _final(split: Split) -> QuerySet[SplitUnit]:
    return split.units.filter(number__isnull=False)


def _number(of: str, key: str) -> Cast:
    return Cast(KeyTextTransform(key, of), FloatField())


def _by_share(split: Split, signals: Sequence[str]) -> list[dict[str, Any]]:
    """The counts of each arm at each share, in one statement."""
    is_final = Q(number__isnull=False)
    counts: dict[str, Any] = {
        "met": Count("pk"),
        "final": Count("number"),
        "assigned": Count("pk", filter=Q(is_assigned=True)),
        "overriding": Count("pk", filter=is_final & Q(overriding_calls__gt=0)),
        "overriding_calls": Coalesce(Sum("overriding_calls", filter=is_final), 0),
    }
    counts |= {f"mixed_{reason}": Count("pk", filter=Q(mixed=reason)) for reason in SplitUnit.Mixed}
    for at, key in enumerate(signals):
        counts[f"part_{at}"] = Sum(_number("parts", key), filter=is_final)
        counts[f"judged_{at}"] = Count(_number("parts", key), filter=is_final)
    rows: Any = split.units.order_by().values("is_candidate", "share").annotate(**counts)
    return list(rows)


def _add(arm: Arm, row: Mapping[str, Any], signals: Sequence[str]) -> None:
    arm.met += row["met"]
    arm.final += row["final"]
    arm.assigned += row["assigned"]
    arm.overriding += row["overriding"]
    arm.overriding_calls += row["overriding_calls"]
    arm.mixed += sum(row[f"mixed_{reason}"] for reason in SplitUnit.Mixed)
    for at, key in enumerate(signals):
        arm.parts[key] = arm.parts.get(key, 0.0) + (row[f"part_{at}"] or 0.0)
        arm.judged[key] = arm.judged.get(key, 0) + row[f"judged_{at}"]
    arm.missing = arm.final - arm.judged["failed"]


def _overrides(ramp: Ramp) -> tuple[list[Override], list[Override]]:
    """Count what final sessions of the live version, and of the candidate, said otherwise."""
    found: dict[bool, list[Override]] = {False: [], True: []}
    versions = {False: ramp.candidate.baseline, True: ramp.candidate.version}
    with connection.cursor() as cursor:
        cursor.execute(_OVERRIDES, [ramp.split_id])
        for is_candidate, name, sessions, calls in cursor:
            query = _overriding(versions[is_candidate], name, ramp)
            found[is_candidate].append(Override(name, sessions, calls, query))
    return found[False], found[True]


def _overriding(version: Version, name: str, ramp: Ramp) -> str:
    terms = (
        grammar.term("agent", version.agent.name),
        grammar.term("version", str(version.number)),
        grammar.show(grammar.Term("attr", (grammar.Value(f"*{name}*"),), OVERRIDES)),
        grammar.term("after", f"{ramp.split.created_at:%Y-%m-%d}"),
    )
    return " ".join(terms)


def _signals(ramp: Ramp, wealth: Mapping[str, float], live: Arm, candidate: Arm) -> list[SignalRow]:
    plan = ramp.rules
    rows = [
        SignalRow(
            key,
            label_of(ramp, key),
            plan.alphas[key],
            wealth[key],
            live.rate(key),
            candidate.rate(key),
            plan.limits.get(key),
        )
        for key in plan.signals
    ]
    gone_live, gone_candidate = (arm.missing / arm.final if arm.final else None for arm in (live, candidate))
    label = label_of(ramp, MISSING)
    rows.append(SignalRow(MISSING, label, DOUBT, wealth[MISSING], gone_live, gone_candidate, None))
    return sorted(rows, key=lambda row: -row.reached)


def _proof(split: Split, signal: str, margin: float) -> float:
    arms, shares, parts = _judged(split, signal)
    return float(not_worse(arms, shares, parts, margin=margin).max()) if arms else 1.0


def _judged(split: Split, signal: str) -> tuple[list[float], list[float], list[float]]:
    """Arm, share and part that went wrong of the sessions of which that is known, in their order, of the first
    `MOST_USED` final ones."""
    rows = (
        _final(split)
        .filter(number__lte=MOST_USED)
        .annotate(part=_number("parts", signal))
        .filter(part__isnull=False)
        .order_by("number")
        .values_list("is_candidate", "share", "part")
    )
    found = list(rows)
    return [float(is_candidate) for is_candidate, *_ in found], [s / WHOLE for _, s, _ in found], [z for *_, z in found]
