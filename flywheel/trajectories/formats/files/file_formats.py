"""The wire formats in which trajectories come in, one module each. No Django here.

`FORMATS` lists what a file may be made of. `parse_file` reads one of any kind (JSON Lines, JSON, archives, tables; see
`file_values.py`) and says for each bad part what is wrong with it while its good siblings are kept; `parse_jsonl` does
so for lines. OTLP over HTTP has its own entry, `otlp_traces.decode`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, BinaryIO

from flywheel.core.traces import Trace
from flywheel.trajectories.formats.files import file_values, table_rows
from flywheel.trajectories.formats.files.file_limits import Bounds, Item
from flywheel.trajectories.formats.files.json_values import json_lines
from flywheel.trajectories.formats.files.table_rows import Mapped
from flywheel.trajectories.formats.harnesses import atif, inspect_log, nemo_gym_rollouts, verifiers_rollouts
from flywheel.trajectories.formats.observability import langfuse_export, otlp_documents, phoenix, tensorzero
from flywheel.trajectories.formats.openai import openai_chat, openai_requests, openai_responses, preferences
from flywheel.trajectories.formats.otlp import otlp_json
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.formats.semantics.trace_notes import Note
from flywheel.trajectories.formats.values.hostile_json import FormatError


@dataclass(frozen=True, slots=True)
class Read:
    """The content of one value of a file: the good traces, and the reasons why parts of it were left out."""

    traces: list[Trace]
    problems: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """What it says of trajectories that stand elsewhere."""
    spans: list[Span] = field(default_factory=list)
    """Those of all traces."""
    late: list[Trace] = field(default_factory=list)
    """What was said of the traces beside their spans."""


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    label: str
    description: str
    detect: Callable[[dict[str, Any]], bool]
    parse: Callable[[dict[str, Any]], Read]
    """Raises FormatError, naming the field and what would be right."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One trace or note of a file, or what is wrong with a part of it. A line of OTLP may yield several of all."""

    at: str
    """Where in the file: `line 3`, `item 3`, `row 3`, or the name in an archive."""
    trace: Trace | None = None
    error: str = ""
    format: str = ""
    """Which of `FORMATS` it is in, where that is known."""
    note: Note | None = None
    spans: list[Span] = field(default_factory=list)
    """What the trace was read from, where that is spans: they are stored as they came."""
    late: Trace | None = None
    """What was said of the trace beside its spans."""
    content: bytes = b""
    """A line that could not be read, as it came."""
    weight: int = 0
    """About how many bytes it takes."""


def _otlp(row: dict[str, Any]) -> Read:
    decoded = otlp_json.decode(row)
    if (exported := otlp_documents.restored(decoded.spans)) is not None:
        return Read(exported, [f"span {item.index}: {item.reason}" for item in decoded.rejected])
    batch = otlp_traces.traces_of(decoded)
    problems = [f"span {item.index}: {item.reason}" for item in batch.rejected]
    return Read(batch.traces, problems, spans=decoded.spans, late=otlp_documents.late_notes(row, batch.traces))


def _phoenix(row: dict[str, Any]) -> Read:
    read = _otlp(phoenix.envelope(row))
    if not read.traces and read.problems:
        raise FormatError(read.problems[0])
    return read


def _noted(found: tuple[list[Trace], list[Note]]) -> Read:
    return Read(found[0], notes=found[1])


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "atif",
            "ATIF",
            "Agent Trajectory Interchange Format 1.0 to 1.8, one trajectory a line",
            atif.detect,
            lambda row: Read(atif.parse_all(row)),
        ),
        Format(
            "otlp",
            "OTLP JSON",
            'Exported spans: {"resourceSpans": […]}, one envelope a line',
            lambda row: "resourceSpans" in row,
            _otlp,
        ),
        Format(
            "phoenix",
            "Phoenix spans",
            "Spans from Phoenix's client or API, or rows of its data frame; its OTLP export is OTLP JSON",
            phoenix.detect,
            _phoenix,
        ),
        Format(
            "inspect",
            "Inspect log",
            "Inspect's .json and .eval, sample by sample, with scores, errors and limits",
            inspect_log.detect,
            lambda row: Read(*inspect_log.parse(row)),
        ),
        Format(
            "nemo-gym",
            "NeMo Gym rollouts",
            'Rollouts with token ids: {"responses_create_params": {…}, "response": {…}, "reward": …}',
            nemo_gym_rollouts.detect,
            lambda row: Read([nemo_gym_rollouts.parse(row)]),
        ),
        Format(
            "openai-requests",
            "OpenAI requests",
            'Raw calls with their answers: {"request": {…}, "response": {…}}, chat completions or Responses',
            openai_requests.detect,
            lambda row: Read([openai_requests.parse(row)]),
        ),
        Format(
            "verifiers",
            "verifiers and prime-rl",
            "Episodes and traces of verifiers v1, and results.jsonl of the classic API",
            verifiers_rollouts.detect,
            lambda row: Read(verifiers_rollouts.parse(row)),
        ),
        Format(
            "langfuse",
            "Langfuse export",
            "Traces with observations, or rows of traces, observations and scores, as JSON, JSON Lines or CSV",
            langfuse_export.detect,
            lambda row: _noted(langfuse_export.parse(row)),
        ),
        Format(
            "tensorzero",
            "TensorZero rows",
            "ChatInference and JsonInference rows, an episode a trajectory, and their feedback",
            tensorzero.detect,
            lambda row: _noted(tensorzero.parse(row)),
        ),
        Format(
            "responses",
            "OpenAI Responses",
            'Responses with their input: {"input": …, "output": […]}, one response a line',
            openai_responses.detect,
            lambda row: Read([openai_responses.parse(row)]),
        ),
        Format(
            "preferences",
            "Preference and completion rows",
            "OpenAI's preference rows, TRL's prompt/chosen/rejected and prompt/completion",
            preferences.detect,
            lambda row: Read(preferences.parse(row)),
        ),
        Format(
            "openai",
            "OpenAI chat",
            'Chat messages as for fine-tuning: {"messages": […], "tools": […]}, one conversation a line',
            openai_chat.detect,
            lambda row: Read([openai_chat.parse(row)]),
        ),
    )
}
"""In the order in which `auto` asks them: the first that knows a row reads it."""

TABLE = "table"
"""What a row of a table is that no format knows and a mapping reads."""
CONTENT_MAX = 256 * 1024
"""Bytes of a line that are kept when it cannot be read."""
GUESSED_FROM = 20
"""Rows of a table that its mapping is guessed from."""


def check(format: str) -> None:
    if format not in ("auto", TABLE, *FORMATS):
        raise FormatError(f"format: {format!r} is not one of auto, {', '.join(FORMATS)}, {TABLE}")


def parse_file(
    source: BinaryIO, format: str = "auto", mapping: Any = None, bounds: Bounds | None = None
) -> Iterator[Parsed]:
    """Read a seekable file of any kind. Raises FormatError at once for a format or a mapping that cannot be, and for a
    file that cannot be read at all, and TooMuch in the middle too; `auto` looks at each value. `mapping` is for
    tables."""
    check(format)
    content = file_values.read(source, bounds)
    if not content.is_table:
        if mapping or format == TABLE:
            raise FormatError(f"mapping: the file is no table but {content.kind}")
        return _parsed(content.items, format)
    first = list(islice(content.items, GUESSED_FROM))
    items = chain(first, content.items)
    rows = [item.value for item in first if not item.error]
    if mapping is not None or format == TABLE or not _is_known(rows, format):
        return _mapped(items, chosen(mapping, content.columns, rows))
    decoded = (Item(item.at, None if item.error else table_rows.decoded(item.value), item.error) for item in items)
    return _parsed(decoded, format)


def chosen(mapping: Any, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Mapped:
    """The mapping that was given, or else the likeliest. Raises FormatError when there is none."""
    if isinstance(mapping, Mapped):
        return mapping
    if mapping is not None:
        return table_rows.read_mapping(mapping, columns)
    found = table_rows.guess(columns, rows)
    if not found.is_usable:
        raise FormatError(
            f"none of the columns {', '.join(columns)[:1000]} is known to hold messages, an input or an output; "
            'give a mapping, such as {"input": "…", "output": "…"}'
        )
    return found


def _is_known(rows: list[dict[str, Any]], format: str) -> bool:
    """Whether the rows of a table are in a format of their own, such as Langfuse's CSV."""
    if format != "auto":
        return True
    return bool(rows) and any(entry.detect(table_rows.decoded(rows[0])) for entry in FORMATS.values())


def _mapped(items: Iterable[Item], mapping: Mapped) -> Iterator[Parsed]:
    for item in items:
        try:
            if item.error:
                raise FormatError(item.error)
            yield Parsed(item.at, table_rows.trace_of(item.value, mapping), format=TABLE)
        except FormatError as error:
            yield Parsed(item.at, error=str(error), format=TABLE)


def parse_jsonl(lines: Iterable[bytes], format: str = "auto") -> Iterator[Parsed]:
    """Read a JSONL file. `auto` looks at each line. Raises FormatError at once for a format that does not exist."""
    check(format)
    return _parsed(json_lines(lines), format)


def _parsed(items: Iterable[Item], format: str) -> Iterator[Parsed]:
    for item in items:
        name = ""
        try:
            if item.error:
                raise FormatError(item.error)
            row = item.value
            if not isinstance(row, dict):
                what = item.at.partition(" ")[0] if " " in item.at else "value"
                raise FormatError(f"the {what} is not a JSON object")
            entry = _format(row, format)
            name = entry.name
            read = entry.parse(row)
        except FormatError as error:
            yield Parsed(item.at, error=str(error), format=name, content=item.content[:CONTENT_MAX])
            continue
        except RecursionError:
            yield Parsed(item.at, error="nested too deep to be read", format=name)
            continue
        by_trace: dict[str, list[Span]] = {}
        for span in read.spans:
            by_trace.setdefault(span.trace_id, []).append(span)
        weight = item.size // (len(read.traces) or 1)
        late = {trace.trace_id: trace for trace in read.late}
        for trace in read.traces:
            own = trace.trace_id
            yield Parsed(item.at, trace, format=name, spans=by_trace.get(own, []), late=late.get(own), weight=weight)
        for note in read.notes:
            yield Parsed(item.at, note=note, format=name)
        for problem in read.problems:
            yield Parsed(item.at, error=problem, format=name)


def _format(row: dict[str, Any], format: str) -> Format:
    if format != "auto":
        return FORMATS[format]
    for entry in FORMATS.values():
        if entry.detect(row):
            return entry
    keys = ", ".join(map(str, [*row][:8])) or "nothing"
    raise FormatError(
        f'no known format: it has {keys}; ATIF has "schema_version" and "steps", OpenAI chat has "messages" with '
        'roles, OTLP JSON has "resourceSpans"; the guide to ingest names the others'
    )
