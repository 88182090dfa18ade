"""Trajectories as CSV, one row each, for spreadsheets: what the list shows of them, the whole request and the answer.

A spreadsheet takes a cell that begins like a formula for one, and an agent or a user may have written it. Such a cell
gets an apostrophe in front and is then text; the numbers that we write are numbers, and all other cells are in quotes.
"""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from flywheel.core.traces import Message, Trace
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.models import Trajectory

LONGEST = 32_000
"""Characters of a cell; spreadsheets take 32,767."""
CUT = "… (cut)"

_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_BEGINS = "=+-@\u2212"
"""What a formula begins with; the last one is a minus as books write it."""
_QUOTES = "'\"`´‘’‚‛“”„‟«»‹›\u2032\u2033\uff02\uff07"
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def inert(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula."""
    text = _UNSTORABLE.sub("\ufffd", text)
    if len(text) > LONGEST:
        text = text[:LONGEST] + CUT
    if _NUMBER.fullmatch(text):
        return text
    return f"'{text}" if text[:1] in ("\t", "\r", "\n") or _is_like_a_formula(text) else text


def _is_like_a_formula(text: str) -> bool:
    for sign in text:
        # What has no form of its own a program may drop: spaces, controls, joiners, directions, accents.
        is_bare = sign.isspace() or not sign.isprintable() or unicodedata.category(sign) in ("Mn", "Me")
        if is_bare or sign in _QUOTES:
            continue
        # Full-width, small and raised forms are folded by some programs.
        return unicodedata.normalize("NFKC", sign)[:1] in _BEGINS
    return False


Cell = Callable[[Trajectory, Sequence[Message]], Any]
"""Of a trajectory and its conversation."""


def _first_request(_: Trajectory, said: Sequence[Message]) -> str:
    return next((message.content for message in said if message.role == "user"), "")


def _answered(_: Trajectory, said: Sequence[Message]) -> str:
    final = next((message for message in reversed(said) if message.role == "assistant"), None)
    if final is None:
        return ""
    calls = [f"{call.name} {_written(call.arguments)}" for call in final.tool_calls]
    return "\n".join(part for part in (final.content, *calls) if part)


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _column(name: str) -> Cell:
    return lambda row, _: getattr(row, name)


COLUMNS: dict[str, Cell] = {
    "trace_id": _column("trace_id"),
    "started_at": lambda row, _: row.started_at.isoformat(),
    "source": _column("source"),
    "agent": lambda row, _: row.agent.name if row.agent else row.agent_name,
    "version": lambda row, _: str(row.version or row.version_label),
    "environment": _column("environment"),
    "session": _column("session_id"),
    "user": _column("user_id"),
    "request": _first_request,
    "answer": _answered,
    **{name: _column(name) for name in ("outcome", "label", "label_bucket", "proposed_bucket", "proposed_score")},
    "tools": lambda row, _: ", ".join(row.tool_names),
    "steps": _column("step_count"),
    "errors": _column("error_count"),
    "interventions": lambda row, _: len(row.interventions),
    "feedback": _column("feedback_count"),
    **{name: _column(name) for name in ("latency_ms", "tokens_in", "tokens_out", "cost_usd")},
    "tags": lambda row, _: ", ".join(row.tags),
}


def row_of(row: Trajectory, trace: Trace, keys: Sequence[str] = ()) -> bytes:
    """The trajectory as one record, with the attributes of these keys behind. What is not known is an empty cell, never
    0."""
    said = trace.conversation()
    sent = [", ".join(sent_attributes.values_of(row.attributes, key)) for key in keys]
    return record([*(cell(row, said) for cell in COLUMNS.values()), *sent])


def record(values: list[Any]) -> bytes:
    """One record of a CSV file: numbers as they are, everything else in quotes."""
    written = io.StringIO()
    cells = [value if isinstance(value, int | float) else inert(str(value or "")) for value in values]
    csv.writer(written, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n").writerow(cells)
    return written.getvalue().encode()


def head(keys: Sequence[str] = ()) -> bytes:
    """The first record. It begins with the mark by which spreadsheets know UTF-8."""
    return b"\xef\xbb\xbf" + record([*COLUMNS, *(f"attr.{key}" for key in keys)])
