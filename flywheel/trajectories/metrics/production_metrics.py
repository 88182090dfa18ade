"""Production metrics in a period, by day or week: how much, how well, at what cost; by version, tool or environment.

Under a filter it is read from the trajectories' own columns in one statement, which passes once over those of the
period; without one, finished days have been added up beforehand (`daily_metrics.py`). Either way a label, a late span
or a deletion shows at once. Steps are never read. A trajectory counts under each tool that was called in it, so what is
said by tool adds up to more than the whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
from django.contrib.postgres.fields import ArrayField
from django.db import OperationalError, connection, transaction
from django.db.models import DateField, F, Func, Max, Q, TextField, Value
from django.db.models.functions import TruncDay, TruncWeek
from django.utils import timezone

from flywheel.accounts.models import Project
from flywheel.agents.models import Version
from flywheel.core.evidence.statistics.estimates import Estimate, proportion
from flywheel.edge.numbers import number
from flywheel.edge.refusals import Unreadable
from flywheel.system.sql import patience, sql_of
from flywheel.trajectories.formats.semantics.sent_attributes import LONGEST_KEY
from flywheel.trajectories.metrics import daily_metrics
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.search import fields, grammar
from flywheel.trajectories.search.query import Query, parse

PERIODS = (7, 30, 90)
"""Days that can be chosen by one click."""
LONGEST = 732
EVERY = {"day": TruncDay, "week": TruncWeek}
WEEKLY_FROM = 60
"""Days from which on a point is a week, where nobody asks."""
GROUPS = 50
"""Versions, tools, environments or values that are listed, the most used."""
PATIENCE_S = 30
"""Seconds that a page waits for its figures."""


class BadPeriod(Unreadable):
    """An invalid period or grouping; the message names the parameter and what would be right."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The period, grouping and query that an address asks for."""

    first: date
    last: date
    """The last day, which belongs to it. Days are UTC, as in the filter bar."""
    every: str
    by: str
    query: Query
    days: int | None
    """Where the period was chosen by its length, up to the newest trajectory."""

    @property
    def is_read(self) -> bool:
        """Whether no sums were made beforehand: there is a filter, or an attribute tells the groups apart."""
        return bool(self.query.text) or self.by.startswith(f"{ATTRIBUTE}.")

    @property
    def length(self) -> int:
        return (self.last - self.first).days + 1

    @property
    def starts(self) -> list[date]:
        """Where each point begins: the first week may have begun before the period."""
        back = self.first.weekday() if self.every == "week" else 0
        step = 7 if self.every == "week" else 1
        return [self.first + timedelta(days=at) for at in range(-back, self.length, step)]

    def where(self, *terms: grammar.Node, start: date | None = None) -> str:
        """The filter that finds these trajectories: of the whole period, or of the day or week that begins then."""
        first, last = self.first, self.last
        if start is not None:
            first, last = max(first, start), min(last, start + timedelta(days=6 if self.every == "week" else 0))
        when = f"{first}..{last}" if first != last else str(first)
        parts = (_node(self.query.text), *terms, _term("started", when))
        return grammar.show(grammar.And(tuple(part for part in parts if part != grammar.And())))


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some trajectories. What was not told is counted apart and is never 0."""

    count: int = 0
    scored: int = 0
    """With an outcome."""
    succeeded: int = 0
    confirmed: int = 0
    """Failures that a person confirmed."""
    proposed: int = 0
    """Failures that a detector proposes and nobody decided yet."""
    intervened: int = 0
    cost: float | None = None
    costed: int = 0
    """Whose cost is known."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    counted: int = 0
    """Whose tokens are known."""
    p50: float | None = None
    p95: float | None = None
    """Of the latency, in milliseconds."""
    timed: int = 0
    """Whose latency is known."""

    @property
    def success(self) -> Estimate:
        return proportion(self.succeeded, self.scored, unscored=self.count - self.scored)

    @property
    def failure(self) -> Estimate:
        """The share that is a failure as far as is known: confirmed, or proposed and waiting."""
        return proportion(self.confirmed + self.proposed, self.count)

    @property
    def intervention(self) -> Estimate:
        return proportion(self.intervened, self.count)

    @property
    def cost_each(self) -> float | None:
        return self.cost / self.costed if self.cost is not None and self.costed else None

    @property
    def tokens_each(self) -> float | None:
        known = [count for count in (self.tokens_in, self.tokens_out) if count is not None]
        return sum(known) / self.counted if known and self.counted else None


@dataclass(slots=True)
class Group:
    """A version, a tool or an environment, or the trajectories without one."""

    key: str
    name: str
    terms: tuple[grammar.Node, ...]
    """Of the filter that finds its trajectories."""
    total: Figures = field(default_factory=Figures)
    times: dict[date, Figures] = field(default_factory=dict)


@dataclass(slots=True)
class BucketFigures:
    key: str
    total: Figures = field(default_factory=Figures)
    times: dict[date, Figures] = field(default_factory=dict)

    @property
    def terms(self) -> tuple[grammar.Node, ...]:
        return (_exactly("bucket", self.key),)

    def share_of(self, count: int) -> Estimate:
        return proportion(self.total.count, count)


@dataclass(slots=True)
class Metrics:
    request: Asked
    total: Figures = field(default_factory=Figures)
    times: dict[date, Figures] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    buckets: list[BucketFigures] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        """There may be more groups than are listed."""
        return len(self.groups) == GROUPS


@dataclass(frozen=True, slots=True)
class By:
    """A way of telling trajectories apart."""

    label: str
    key: Func
    """The key of a trajectory as text, empty where it has none; of tools all of its keys, as an array."""
    none: str
    """What those without are called."""
    without: grammar.Node
    """The term that finds those without."""


def _term(name: str, value: str) -> grammar.Term:
    return grammar.Term(name, (grammar.Value(value),))


def _exactly(name: str, value: str) -> grammar.Node:
    """The term that asks for this value; one that is a word of the filter bar in quotes."""
    if value == "none":
        return grammar.Term(name, (grammar.Value(value, is_exact=True),))
    return grammar.parse(grammar.term(name, value)).node


def _holding(by: str, value: str) -> grammar.Node:
    """The term that finds the group with this value."""
    kind, _, key = by.partition(".")
    return _exactly(by, value) if kind != ATTRIBUTE else grammar.parse(grammar.term(kind, value, key)).node


ATTRIBUTE = "attr"


class _ValuesOf(Func):
    """The values of one key among a trajectory's attributes, as an array; of none, one that is empty."""

    def __init__(self, key: str) -> None:
        super().__init__(F("attributes"), output_field=ArrayField(TextField()))
        self.begins = f"{key}="

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, tuple[Any, ...]]:
        column, values = compiler.compile(self.source_expressions[0])
        items = f"SELECT substr(item, %s) FROM unnest({column}) AS item WHERE starts_with(item, %s)"  # noqa: S608
        found = f"coalesce(nullif(ARRAY({items}), '{{}}'), '{{\"\"}}')::text[]"
        return found, (len(self.begins) + 1, *values, self.begins)


BY = {
    "version": By("version", daily_metrics.KEYS["version"], "unknown version", grammar.Not(_term("has", "version"))),
    "tool": By("tool", daily_metrics.KEYS["tool"], "no tool called", grammar.Not(_term("has", "tools"))),
    "env": By("environment", daily_metrics.KEYS["env"], "none named", _term("env", "none")),
}


def by_of(name: str) -> By | None:
    """The way of telling trajectories apart of that name, also `attr.KEY`; None where there is none."""
    kind, _, key = name.partition(".")
    if kind == ATTRIBUTE and 0 < len(key) <= LONGEST_KEY and key.isprintable():
        without = grammar.Not(grammar.Term(ATTRIBUTE, (grammar.Value("*"),), key))
        return By(key, _ValuesOf(key), "not sent", without)
    return BY.get(name)


def ask(project: Project, values: Mapping[str, str]) -> Asked:
    """Parse these parameters of an address. Raises BadPeriod."""
    by, every = values.get("by", ""), values.get("every", "")
    kind, _, key = by.partition(".")
    if kind == ATTRIBUTE:
        by = fields.own_field(key) or by
    if by and by_of(by) is None:
        raise BadPeriod(f"by: {by[:80]!r} is unknown; use one of {', '.join(BY)} or attr.<key>")
    if every and every not in EVERY:
        raise BadPeriod(f"every: {every!r} is unknown; use one of {', '.join(EVERY)}")
    days = None
    if values.get("from") or values.get("to"):
        last = _day("to", values["to"]) if values.get("to") else last_day(project)
        first = _day("from", values["from"]) if values.get("from") else last - timedelta(days=29)
    else:
        text = values.get("days") or "30"
        days = number(text, most=9999) or 0
        last = last_day(project)
        first = last - timedelta(days=min(days, LONGEST + 1) - 1)
    if not 1 <= (last - first).days + 1 <= LONGEST:
        raise BadPeriod(f"from {first} to {last}: expected between 1 and {LONGEST} days, the first one first")
    every = every or ("week" if (last - first).days + 1 >= WEEKLY_FROM else "day")
    return Asked(first, last, every, by, parse(values.get("q", "")), days)


def last_day(project: Project) -> date:
    """The day of the newest trajectory of production: imported history is old, and its trend is still one."""
    rows = Trajectory.objects.filter(project=project).exclude(source__in=Source.ATTEMPTS)
    newest = rows.aggregate(newest=Max("started_at"))["newest"]
    day: date = min(newest or timezone.now(), timezone.now()).date()
    return day


def _day(name: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadPeriod(f"{name}: {text[:40]!r} is no day, write it as 2026-01-31") from None
    if not 1900 < day.year < 9000:
        raise BadPeriod(f"{name}: {day} is not a day of this age")
    return day


def _node(text: str) -> grammar.Node:
    try:
        return grammar.parse(text).node
    except grammar.Unreadable:
        return grammar.And()


# Reading


def measure(project: Project, asked: Asked) -> Metrics:
    """The figures; without any while the filter has a problem. Raises BadPeriod where they take too long."""
    found = Metrics(asked, times=dict.fromkeys(asked.starts, Figures()))
    if asked.query.problems:
        return found
    groups: dict[str, Group] = {}
    buckets: dict[str, BucketFigures] = {}
    for kind, start, key, these in (_read if asked.is_read else _added_up)(project, asked):
        if kind == "time":
            holder: Metrics | Group | BucketFigures = found
        elif kind == "group":
            holder = groups.setdefault(key, Group(key, "", ()))
        else:
            holder = buckets.setdefault(key, BucketFigures(key))
        if start is None:
            holder.total = these
        else:
            holder.times[start] = these
    found.groups = sorted(groups.values(), key=lambda group: (-group.total.count, group.key))[:GROUPS]
    found.buckets = sorted(buckets.values(), key=lambda bucket: (-bucket.total.count, bucket.key))
    if asked.by:
        _name(project, asked.by, found.groups)
    return found


Found = tuple[str, date | None, str, Figures]
"""Kind, start of the day or week (None for the whole period), key, and the figures."""


def _added_up(project: Project, asked: Asked) -> Iterator[Found]:
    """By days that were added up beforehand, and the others."""
    kinds = {"all": "time", "bucket": "bucket"} | ({asked.by: "group"} if asked.by else {})
    sums: dict[tuple[str, str], dict[date | None, daily_metrics.Sums]] = {}
    for kind, day, key, these in daily_metrics.parts(project, asked.first, asked.last, kinds):
        times = sums.setdefault((kinds[kind], key), {None: daily_metrics.Sums()})
        times[None].add(these)
        begins = day - timedelta(days=day.weekday()) if asked.every == "week" else day
        if begins in times:
            times[begins].add(these)
        else:
            times[begins] = these
    listed = sorted((key for key in sums if key[0] == "group"), key=lambda key: (-sums[key][None].count, key))[:GROUPS]
    for (kind, key), times in sums.items():
        if kind != "group" or (kind, key) in listed:
            for start, each in times.items():
                if each.count:
                    yield kind, start, key, _of_sums(each, has_latency=kind != "bucket")


def _of_sums(each: daily_metrics.Sums, *, has_latency: bool) -> Figures:
    timed, (p50, p95) = each.percentiles(0.5, 0.95) if has_latency else (0, (None, None))
    known = {name: getattr(each, name) for name in daily_metrics.NAMES}
    return Figures(**known, timed=timed, p50=p50, p95=p95)


def _read(project: Project, asked: Asked) -> Iterator[Found]:
    """From the trajectories themselves."""
    for kind, start, key, *values in _rows(project, asked):
        *sums, timed, latency = values
        p50, p95 = latency or (None, None)
        figures = _of_sums(daily_metrics.sums_of(sums), has_latency=False)
        yield kind, start, key, replace(figures, timed=timed if latency else 0, p50=p50, p95=p95)


def _rows(project: Project, asked: Asked) -> list[Any]:
    statement, values = statement_of(project, asked)
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            patience(statement_s=PATIENCE_S, lock_s=PATIENCE_S)
            # Sorting by latency needs memory; compiling a statement that runs once costs more than it gains.
            cursor.execute("SET LOCAL jit = off; SET LOCAL work_mem = '32MB'")
            cursor.execute(statement, values)
            return list(cursor.fetchall())
    except OperationalError as error:
        if not isinstance(error.__cause__, psycopg.errors.QueryCanceled):
            raise
        raise BadPeriod(f"took longer than {PATIENCE_S:g} seconds; choose a shorter period or filter more") from error


def statement_of(project: Project, asked: Asked) -> tuple[str, tuple[Any, ...]]:
    """Rows of kind, start of the day or week (None for the whole period), key, and the figures."""
    start = datetime.combine(asked.first, time.min, UTC)
    end = datetime.combine(asked.last + timedelta(days=1), time.min, UTC)
    rows = Trajectory.objects.filter(project=project, started_at__gte=start, started_at__lt=end)
    by = by_of(asked.by)
    chosen = (
        asked.query.apply(rows, project.pk)
        .order_by()
        .annotate(
            start=EVERY[asked.every]("started_at", tzinfo=UTC, output_field=DateField()),
            key=by.key if by else Value(""),
            filed=daily_metrics.PRESUMED,
            intervened=Q(pk__in=_INTERVENED.filter(project=project).values("pk")),
        )
        .values("start", "key", "filed", "intervened", *daily_metrics.COLUMNS)
    )
    inner, values = sql_of(chosen)
    has_several = asked.by == "tool" or asked.by.startswith(f"{ATTRIBUTE}.")
    parts, top = [_WHOLE, _BUCKETS], ""
    if asked.by:
        spread = (
            {"one": "one", "spread": "CROSS JOIN unnest(key) AS one"} if has_several else {"one": "key", "spread": ""}
        )
        parts.append(_GROUPS.format(**spread))
        top = _TOP.format(**spread)
    return f"WITH chosen AS MATERIALIZED ({inner}){top}\n{'UNION ALL'.join(parts)}", values


_INTERVENED = Trajectory.objects.exclude(interventions=[])
"""Found in an index of their own: all else that is counted lies in that of the list, so that no row has to be read."""
_COUNTS = f"{daily_metrics.COUNTS}, count(latency_ms)"
_LATENCY = "percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY latency_ms)"
_WHOLE = f"""
SELECT 'time', start::date, NULL, {_COUNTS}, {_LATENCY} FROM chosen GROUP BY GROUPING SETS ((start), ())
"""  # noqa: S608
_TOP = f""", top AS MATERIALIZED (
    SELECT {{one}} AS name FROM chosen {{spread}} GROUP BY 1 ORDER BY count(*) DESC, {{one}} COLLATE "C" LIMIT {GROUPS}
)"""  # noqa: S608
"""The groups that are listed: of a key whose every value is another, such as a request's id, no others are measured."""
_GROUPS = f"""
SELECT 'group', start::date, {{one}}, {_COUNTS}, {_LATENCY} FROM chosen {{spread}}
WHERE {{one}} IN (SELECT name FROM top)
GROUP BY GROUPING SETS (({{one}}, start), ({{one}}))
"""  # noqa: S608
_BUCKETS = f"""
SELECT 'bucket', start::date, filed, {_COUNTS}, NULL FROM chosen WHERE filed <> ''
GROUP BY GROUPING SETS ((filed, start), (filed))
"""  # noqa: S608


def _name(project: Project, by: str, groups: Sequence[Group]) -> None:
    """Set the name of each group, and the filter that finds it."""
    versions = {}
    known_by = by_of(by)
    assert known_by is not None, "`ask` refuses others"
    if by == "version":
        keys = [int(group.key) for group in groups if group.key]
        known = Version.objects.filter(agent__project=project).select_related("agent").in_bulk(keys)
        versions = {str(pk): version for pk, version in known.items()}
    for group in groups:
        version = versions.get(group.key)
        if version is not None:
            group.name = str(version)
            group.terms = (_exactly("agent", version.agent.name), _term("version", str(version.number)))
        elif group.key:
            group.name, group.terms = group.key, (_holding(by, group.key),)
        else:
            group.name, group.terms = known_by.none, (known_by.without,)
