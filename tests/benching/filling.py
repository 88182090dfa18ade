"""A project with as many trajectories as wanted, 12 steps each, quickly: copies of what the store itself has written.

The first of each kind (`kinds.py`) goes the real way: stored as telemetry, read by detectors, judged, labelled. Its
rows are then read back as text in which the marks are replaced for each copy: other words, ids, times. Digests and
sizes of steps are worked out anew. `tests/benching/test_bench_lists.py` holds copies to what the store makes of them
when it reads them again. How often a word is used follows Zipf's law, so that there are common words and rare ones.
"""

import bisect
import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from django.db import connection

from tests.benching import kinds

AT_ONCE = 2_000
"""Trajectories that are written together."""
VOCABULARY = 20_000
LONG = f"{0x10A6:032x}"
"""The id of the long trajectory."""
DAYS = 60
"""Over which the trajectories lie, until now."""
STEPS = "trajectories_step"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "ar", "en", "il")]
_MARK = re.compile(
    r"qq[a-z0-9]+qq|\b[0-9a-f]{32}\b|\b[0-9a-f]{16}\b|\b17[0-9]{14}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+00"
)
"""What may be a mark: a word, an id, microseconds since 1970 (nanoseconds begin with them), a time in words."""
_TABLES = {
    "trajectories_trajectory": "id",
    STEPS: "trajectory_id",
    "trajectories_words": "trajectory_id",
    "failures_proposal": "trajectory_id",
    "failures_failure": "trajectory_id",
    "trajectories_feedback": "trace_id",
}
"""Tables with what says whose a row is; trajectories come first."""


def vocabulary() -> list[str]:
    """The commonest word first. Two or three syllables each, none twice."""
    source = random.Random(1)
    found: dict[str, None] = {}
    while len(found) < VOCABULARY:
        found["".join(source.choices(_SYLLABLES, k=source.choice((2, 3))))] = None
    return list(found)


class Words:
    """Draws words as often as people use them."""

    def __init__(self, source: random.Random) -> None:
        self.every = vocabulary()
        self._until = list(itertools.accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))
        self._random = source.random

    def some(self, count: int) -> list[str]:
        every, until, last = self.every, self._until, self._until[-1]
        return [every[bisect.bisect(until, self._random() * last)] for _ in range(count)]


@dataclass(slots=True)
class Text:
    """What a row says, with the marks as `%s`."""

    template: str
    marks: tuple[str, ...]

    def of(self, values: dict[str, str]) -> str:
        return self.template % tuple([values[mark] for mark in self.marks])


@dataclass(slots=True)
class Model:
    """The rows of one kind's first trajectory."""

    began_us: int
    times: tuple[int, ...]
    """Of its steps, in microseconds, as far as they are named."""
    ended_us: int
    bodies: list[tuple[Text, str]]
    """Of each step, with the mark of its parent."""
    rows: dict[str, list[Text]]


class Filler:
    """Knows the kinds of a project, and makes more of them."""

    def __init__(self, project: Any, actor: Any, every: Sequence[kinds.Kind] = (), seed: int = 0) -> None:
        self.project, self.actor = project, actor
        every = every or kinds.every()
        self.weights = [kinds.WEIGHTS[kind.number] for kind in every]
        self.source = random.Random(seed)
        self.words = Words(self.source)
        self.columns = {table: _columns(table) for table in _TABLES}
        self.models = _models(project, actor, every, self.columns)
        self.made = 0

    def fill(self, size: int) -> None:
        """Make trajectories until there are so many, the newest last."""
        count = size - self.made
        first = _reserve(count)
        numbers = range(self.made, size)
        until = datetime.now(UTC)
        chosen = self.source.choices(self.models, self.weights, k=count)
        step = timedelta(days=DAYS) / count
        dsn = connection.get_connection_params()
        dsn = {name: dsn[name] for name in ("dbname", "user", "password", "host", "port") if dsn.get(name)}
        with psycopg.connect(**dsn) as other, ThreadPoolExecutor(1) as beside:
            other.execute("SET synchronous_commit = off")
            written: Future[None] | None = None
            for start in range(0, count, AT_ONCE):
                rows: dict[str, list[str]] = {table: [] for table in _TABLES}
                for at in range(start, min(start + AT_ONCE, count)):
                    began = until - step * (count - at)
                    self._copy(rows, chosen[at], numbers[at], first + at, began)
                if written is not None:
                    written.result()
                written = beside.submit(_write, other, self.columns, rows)
            if written is not None:
                written.result()
        self.made = size

    def _copy(self, rows: dict[str, list[str]], model: Model, number: int, pk: int, began: datetime) -> None:
        source, began_us = self.source, (began - _EPOCH) // timedelta(microseconds=1)
        values = dict(zip(_WORD_MARKS, self.words.some(kinds.OWN_WORDS), strict=True))
        ids = f"{source.getrandbits(128):032x}", f"{source.getrandbits(48):012x}"
        values["trace"] = ids[0]
        for step in range(kinds.STEPS):
            values[f"span{step}"] = f"{ids[1]}{step:04x}"
        values[kinds.SESSION] = f"s-{number // 3 * 7919 % 1_000_003}"
        values[kinds.USER] = f"u-{int(5000 * source.random() ** 2)}"
        values["pk"] = str(pk)
        values["arrived"] = (began + timedelta(microseconds=model.ended_us - model.began_us + 2_000_000)).isoformat(" ")
        for at, us in enumerate(model.times):
            moved = us - model.began_us + began_us
            values[f"us{at}"] = str(moved)
            values[f"at{at}"] = (_EPOCH + timedelta(microseconds=moved)).isoformat(" ")
        bodies = [body.of(values) for body, _ in model.bodies]
        for step, (body, (_, parent)) in enumerate(zip(bodies, model.bodies, strict=True)):
            encoded = body.encode()
            values[f"body{step}"] = body.replace("\\", "\\\\")
            values[f"size{step}"] = str(len(encoded))
            digest = hashlib.sha256(encoded + values.get(parent, "").encode()).hexdigest()
            values[f"digest{step}"] = f"\\\\x{digest}"
        for table, texts in model.rows.items():
            for text in texts:
                values["own"] = f"{source.getrandbits(256):064x}"
                rows[table].append(text.of(values))


_WORD_MARKS = [kinds.mark(number) for number in range(kinds.OWN_WORDS)]


def analyse() -> None:
    """Let the planner know what there is, as it does after a while by itself."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _reserve(count: int) -> int:
    """The first of so many keys of trajectories."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(seq), setval(seq, currval(seq) + %s)"
            " FROM pg_get_serial_sequence('trajectories_trajectory', 'id') AS seq",
            [count],
        )
        return int(cursor.fetchone()[0])


def _write(other: psycopg.Connection[Any], columns: dict[str, list[str]], rows: dict[str, list[str]]) -> None:
    for table, lines in rows.items():
        if lines:
            with other.cursor().copy(f"COPY {table} ({', '.join(columns[table])}) FROM STDIN") as copy:
                copy.write("".join(lines))
    other.commit()


# What the store makes of the first of each kind


def _models(project: Any, actor: Any, every: Sequence[kinds.Kind], columns: dict[str, list[str]]) -> list[Model]:
    """Store them, read them back, and take them away again."""
    from flywheel.accounts.actors import Actor
    from flywheel.agents.models import Agent, Version
    from flywheel.failures.detectors.proposals import detect, unread
    from flywheel.failures.labels.decisions import decide
    from flywheel.trajectories.annotations import feedback
    from flywheel.trajectories.formats.semantics import otlp_traces
    from flywheel.trajectories.models import Batch, Feedback, Trajectory
    from flywheel.trajectories.store.merge import store

    for name in kinds.AGENTS:
        agent, _ = Agent.objects.get_or_create(project=project, name=name)
        for number in range(1, 7):
            Version.make(agent, actor, base_model="gpt-5", endpoint={}, system_prompt=f"{kinds.SYSTEM} {number}")
    for kind in every:
        spans = otlp_traces.decode(kind.spans, otlp_traces.JSON).spans
        store(project, spans, source=kind.source, format="otlp")
    while found := unread(project.pk):
        detect(found)
    feedback.give(project, [item for kind in every for item in kind.feedback])
    stored = {row.trace_id: row for row in Trajectory.objects.filter(project=project)}
    for kind in every:
        if kind.bucket is not None and kind.source != "rollout":
            decide(trajectory=stored[kind.trace_id], actor=Actor(actor), bucket=kind.bucket)
    # What a person said is for detectors to read too.
    while found := unread(project.pk):
        detect(found)
    models = [_model(stored[kind.trace_id].pk, kind, columns) for kind in every]
    for model in (Trajectory, Batch, Feedback):
        model._default_manager.filter(project=project).delete()
    return models


def _model(pk: int, kind: kinds.Kind, columns: dict[str, list[str]]) -> Model:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT span_id, parent_id, body::text, started_at, ended_at FROM trajectories_step"
            " WHERE trajectory_id = %s ORDER BY position",
            [pk],
        )
        steps = cursor.fetchall()
    times = sorted({_us(at) for *_, started, ended in steps for at in (started, ended)})
    marks = {word: word for word in [*_WORD_MARKS, kinds.SESSION, kinds.USER]} | {kind.trace_id: "trace"}
    marks |= {span_id: f"span{number}" for number, (span_id, *_) in enumerate(steps)}
    for at, us in enumerate(times):
        marks[str(us)] = f"us{at}"
    moments = {us: f"at{at}" for at, us in enumerate(times)}
    bodies = [(_text(body, marks, {}), marks.get(parent, "")) for _, parent, body, *_ in steps]
    return Model(
        kinds.BEGAN_US,
        tuple(times),
        times[-1],
        bodies,
        {table: _rows(table, pk, kind, columns[table], marks, moments) for table in _TABLES},
    )


def _rows(
    table: str, pk: int, kind: kinds.Kind, columns: list[str], marks: dict[str, str], moments: dict[int, str]
) -> list[Text]:
    whose, own = _TABLES[table], f"'{kind.trace_id}'" if _TABLES[table] == "trace_id" else str(pk)
    order = "position" if table == STEPS else whose
    query = f"COPY (SELECT {', '.join(columns)} FROM {table} WHERE {whose} = {own} ORDER BY {order}) TO STDOUT"
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        lines = b"".join(bytes(block) for block in copy).decode().splitlines()
    found = []
    for number, line in enumerate(lines):
        parts: list[Text] = []
        for column, value in zip(columns, line.split("\t"), strict=True):
            parts.append(_replaced(table, column, number) or _text(value, marks, moments))
        template = "\t".join(part.template for part in parts) + "\n"
        found.append(Text(template, tuple(mark for part in parts for mark in part.marks)))
    return found


def _replaced(table: str, column: str, number: int) -> Text | None:
    """A value of which no part is kept."""
    if column == _TABLES[table] != "trace_id":
        return Text("%s", ("pk",))
    if table == STEPS and column in ("body", "size", "digest"):
        return Text("%s", (f"{column}{number}",))
    return Text("%s", ("own",)) if column == "identity" else None


def _text(text: str, marks: dict[str, str], moments: dict[int, str]) -> Text:
    """The text with what is to be replaced as `%s`. Times in words are those of steps, or when something arrived."""
    used: list[str] = []

    def take(match: re.Match[str]) -> str:
        found = match[0]
        if found in marks:
            used.append(marks[found])
        elif found.endswith("+00"):
            used.append(moments.get(_us(datetime.fromisoformat(found)), "arrived"))
        else:
            return found
        return "%s"

    return Text(_MARK.sub(take, text.replace("%", "%%")), tuple(used))


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _columns(table: str) -> list[str]:
    """All but those that the database fills in."""
    from django.apps import apps

    model = next(model for model in apps.get_models() if model._meta.db_table == table)
    keep = _TABLES[table]
    fields: Iterable[Any] = model._meta.concrete_fields
    return [field.column for field in fields if not field.primary_key or field.column == keep]


def long_one(project: Any, steps: int) -> None:
    """A trajectory of so many steps, stored as telemetry in requests of 1,000 spans."""
    from flywheel.failures.detectors.proposals import detect, unread
    from flywheel.trajectories.formats.semantics import otlp_traces
    from flywheel.trajectories.store.merge import store

    kind = kinds.every()[0]
    words = Words(random.Random(2))
    given = json.loads(kind.spans)
    patterns = given["resourceSpans"][0]["scopeSpans"][0]["spans"]
    now_ns = (datetime.now(UTC) - timedelta(days=1) - _EPOCH) // timedelta(microseconds=1) * 1000
    for start in range(0, steps, 1000):
        spans = [
            _further(patterns[1 + number % (kinds.STEPS - 2)] if number else patterns[0], number, now_ns)
            for number in range(start, min(start + 1000, steps))
        ]
        given["resourceSpans"][0]["scopeSpans"][0]["spans"] = spans
        text = re.sub("qqw[0-9]{3}qq", lambda _: words.some(1)[0], json.dumps(given))
        store(project, otlp_traces.decode(text.encode(), otlp_traces.JSON).spans, source="production", format="otlp")
    while found := unread(project.pk):
        detect(found)


def _further(span: dict[str, Any], number: int, began_ns: int) -> dict[str, Any]:
    at = began_ns + number * 10_000_000
    ids = {"traceId": LONG, "spanId": f"{number + 1:016x}", "parentSpanId": f"{1:016x}" if number else ""}
    return {**span, **ids, "startTimeUnixNano": str(at), "endTimeUnixNano": str(at + 9_000_000)}
