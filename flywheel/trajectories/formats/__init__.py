"""The wire formats in which trajectories come in, one module each. No Django here.

`FORMATS` lists what a file may be made of; `parse_jsonl` reads one, line by line, and says for each bad line what is
wrong with it while its good siblings are kept. OTLP over HTTP has its own entry, `otlp.parse`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flywheel.core.traces import Trace
from flywheel.trajectories.formats import atif, openai_chat, otlp
from flywheel.trajectories.formats.reading import FormatError, load

__all__ = ["FORMATS", "Format", "FormatError", "Parsed", "Read", "parse_jsonl"]


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    label: str
    description: str
    detect: Callable[[dict[str, Any]], bool]
    parse: Callable[[dict[str, Any]], "Read"]
    """Raises FormatError, naming the field and what would be right."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one line holds: the good traces, and the reasons why parts of it were left out."""

    traces: list[Trace]
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parsed:
    """One trace of a file, or what is wrong with a line. A line of OTLP may yield several of both."""

    line_number: int
    trace: Trace | None
    error: str = ""
    format: str = ""
    """Which of `FORMATS` the line is in, where that is known."""


def _otlp(row: dict[str, Any]) -> Read:
    batch = otlp.parse_envelope(row)
    return Read(batch.traces, [f"span {item.index}: {item.reason}" for item in batch.rejected])


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            "atif",
            "ATIF",
            "Agent Trajectory Interchange Format 1.0 to 1.8, one trajectory a line",
            atif.detect,
            lambda row: Read([atif.parse(row)]),
        ),
        Format(
            "openai",
            "OpenAI chat",
            'Chat messages as for fine-tuning: {"messages": […], "tools": […]}, one conversation a line',
            openai_chat.detect,
            lambda row: Read([openai_chat.parse(row)]),
        ),
        Format(
            "otlp",
            "OTLP JSON",
            'Exported spans: {"resourceSpans": […]}, one envelope a line',
            lambda row: "resourceSpans" in row,
            _otlp,
        ),
    )
}


def parse_jsonl(lines: Iterable[bytes], format: str = "auto") -> Iterator[Parsed]:
    """Read a JSONL file. `auto` looks at each line. Raises FormatError at once for a format that does not exist."""
    if format != "auto" and format not in FORMATS:
        raise FormatError(f"format: {format!r} is not one of auto, {', '.join(FORMATS)}")
    return _parsed(lines, format)


def _parsed(lines: Iterable[bytes], format: str) -> Iterator[Parsed]:
    for number, line in enumerate(lines, 1):
        line = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not line:
            continue
        name = ""
        try:
            row = _object(line)
            entry = _format(row, format)
            name = entry.name
            read = entry.parse(row)
        except FormatError as error:
            yield Parsed(number, None, str(error), name)
            continue
        for trace in read.traces:
            yield Parsed(number, trace, format=name)
        for problem in read.problems:
            yield Parsed(number, None, problem, name)


def _object(line: bytes) -> dict[str, Any]:
    if line in (b"{", b"["):
        raise FormatError("the JSON is spread over several lines; one object a line is wanted (jq -c '.[]' makes them)")
    row = load(line)
    if not isinstance(row, dict):
        raise FormatError("the line is not a JSON object")
    return row


def _format(row: dict[str, Any], format: str) -> Format:
    if format != "auto":
        return FORMATS[format]
    for entry in FORMATS.values():
        if entry.detect(row):
            return entry
    raise FormatError(
        'no known format: ATIF has "schema_version" and "steps", OpenAI chat has "messages" with roles, '
        'OTLP JSON has "resourceSpans"'
    )
