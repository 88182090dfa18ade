"""Files of trajectories: JSONL of any format that we read, its good lines kept and its bad ones told by number."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flywheel.accounts.models import ApiKey, Project
from flywheel.core.traces import Trace
from flywheel.trajectories.formats import parse_jsonl
from flywheel.trajectories.models import Batch, Source
from flywheel.trajectories.store import store

STEPS_AT_ONCE = 20_000
"""Steps of one transaction and ledger row: a file of any size is read without holding it."""


@dataclass(slots=True)
class Report:
    """What became of a file. Steps add up: received = inserted + updated + duplicate + rejected."""

    batches: list[Batch] = field(default_factory=list)
    trace_ids: set[str] = field(default_factory=set)
    formats: dict[str, int] = field(default_factory=dict)
    """Trajectories by format."""
    problems: list[dict[str, Any]] = field(default_factory=list)
    """`{"at": "line 3", "reason": text}` of every line that was left out."""

    @property
    def trajectories(self) -> int:
        return len(self.trace_ids)

    @property
    def steps(self) -> dict[str, int]:
        """The ledger's columns, over all batches."""
        columns = ("received", "inserted", "updated", "duplicate", "rejected")
        return {column: sum(getattr(batch, column) for batch in self.batches) for column in columns}


def import_lines(
    project: Project, lines: Iterable[bytes], *, format: str = "auto", key: ApiKey | None = None
) -> Report:
    """Store what the lines hold. Raises FormatError at once for a format that does not exist."""
    report = Report()
    read = hashlib.sha256()

    def seen() -> Iterator[bytes]:
        for line in lines:
            read.update(line)
            yield line

    def keep(traces: list[Trace], problems: list[dict[str, Any]], formats: set[str]) -> None:
        digest = read.hexdigest()
        report.batches.append(
            store(
                project,
                traces,
                source=Source.IMPORT,
                format="+".join(sorted(formats)) or format,
                sha256=digest,
                key=key,
                problems=problems,
            )
        )
        report.problems += problems

    traces: list[Trace] = []
    problems: list[dict[str, Any]] = []
    formats: set[str] = set()
    waiting = 0
    for parsed in parse_jsonl(seen(), format):
        if parsed.trace is None:
            problems.append({"at": f"line {parsed.line_number}", "reason": parsed.error})
            waiting += 1
        else:
            traces.append(parsed.trace)
            formats.add(parsed.format)
            report.formats[parsed.format] = report.formats.get(parsed.format, 0) + 1
            report.trace_ids.add(parsed.trace.trace_id)
            waiting += len(parsed.trace.steps)
        if waiting >= STEPS_AT_ONCE:
            keep(traces, problems, formats)
            traces, problems, formats, waiting = [], [], set(), 0
    if waiting:
        keep(traces, problems, formats)
    return report
