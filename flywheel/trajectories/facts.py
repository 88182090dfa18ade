"""What the parts of a trajectory say about the whole: its agent, session, outcome, tools, tags.

Parts arrive in any order, split in any way, and twice. Each statement is kept with its key (when it was said, by which
span) in `Trajectory.said`, and merging takes the least or the greatest key, so the result depends only on the set of
parts that arrived:

- agent, session, user, environment, title: said first holds; a root span comes before a child that started with it.
- outcome and each metadata key: said last holds.
- tools, tool names, tags, interventions: the union, sorted.
"""

from collections.abc import Iterable
from typing import Any

from flywheel.core.digests import canonical
from flywheel.core.tools import parse_call
from flywheel.core.traces import Message, Step, Trace
from flywheel.trajectories.formats.reading import plain, text
from flywheel.trajectories.models import Trajectory

FIRST = ("agent", "session_id", "user_id", "environment", "title")
COLUMNS = {"agent": "agent_name"}
WIDTHS = {"agent": 200, "session_id": 200, "user_id": 200, "environment": 100, "title": 300}
COMPARED = (
    "said",
    "agent_name",
    "version_label",
    "session_id",
    "user_id",
    "environment",
    "title",
    "outcome",
    "interventions",
    "tools",
    "tool_names",
    "tags",
    "metadata",
)
"""Columns that this module writes."""

Key = list[Any]
"""`[time, is a child, span id]`, which orders statements."""

LATEST = "9999"
"""After every time, for a part without one."""


def merge(row: Trajectory, parts: Iterable[Trace]) -> bool:
    """Add what `parts` say to the row's columns. Returns whether anything changed."""
    before = {name: getattr(row, name) for name in COMPARED}
    row.said = {name: dict(value) if isinstance(value, dict) else value for name, value in row.said.items()}
    for part in parts:
        _merge_part(row, part)
    for name in FIRST:
        setattr(row, COLUMNS.get(name, name), row.said.get(name, [None, ""])[1])
    row.agent_name = row.agent_name or _service(row)
    row.version_label = _version(row)
    row.outcome = row.said.get("outcome", [None, None])[1]
    return any(before[name] != getattr(row, name) for name in COMPARED)


def _merge_part(row: Trajectory, part: Trace) -> None:
    first, last = _keys(part.steps)
    for name in FIRST:
        value = title(part.steps) if name == "title" else getattr(part, name)
        if value:
            _keep(row.said, name, first, text(value)[: WIDTHS[name]], wants_first=True)
    if part.version:
        versions = row.said.setdefault("versions", {})
        _keep(versions, part.agent[:200], first, part.version[:100], wants_first=True)
    if part.outcome:
        _keep(row.said, "outcome", last, part.outcome, wants_first=False)
    if part.metadata:
        row.metadata = _metadata(row, plain(part.metadata), first)
    row.tags = sorted({*row.tags, *(tag[:100] for tag in part.tags if tag)})
    row.tool_names = sorted({*row.tool_names, *called(part.steps)})
    row.tools = _union([*row.tools, *part.tools], lambda tool: str(tool.get("name", "")))
    interventions = [*row.interventions, *(item.to_json() for item in part.interventions)]
    row.interventions = _union(interventions, lambda item: canonical([item["at"], item["step"], item]).decode())


def _keep(said: dict[str, Any], name: str, key: Key, value: Any, *, wants_first: bool) -> None:
    """Keep the statement with the least (greatest) key; where keys tie, the content decides, not the arrival."""
    known = said.get(name)
    if known is None or ([key, canonical(value)] < [known[0], canonical(known[1])]) == wants_first:
        said[name] = [key, value]


def _metadata(row: Trajectory, said: dict[str, Any], key: Key) -> dict[str, Any]:
    keys = row.said.setdefault("metadata", {})
    merged = dict(row.metadata)
    for name, value in said.items():
        if name not in keys or [key, canonical(value)] > [keys[name], canonical(merged.get(name))]:
            keys[name], merged[name] = key, value
    return merged


def _union(items: list[dict[str, Any]], identity: Any) -> list[dict[str, Any]]:
    """Each item once, sorted by identity; of two with one identity, the greater content."""
    best: dict[str, dict[str, Any]] = {}
    for item in items:
        name = identity(item)
        if name not in best or canonical(item) > canonical(best[name]):
            best[name] = item
    return [best[name] for name in sorted(best)]


def _keys(steps: list[Step]) -> tuple[Key, Key]:
    """Keys of the first and of the last thing that the part says."""
    if not steps:
        return [LATEST, True, ""], ["", True, ""]
    opening = min([_time(step.started_at) or LATEST, bool(step.parent_id), step.span_id] for step in steps)
    closing = max([_time(step.ended_at or step.started_at), not step.parent_id, step.span_id] for step in steps)
    return opening, closing


def _time(moment: Any) -> str:
    return moment.isoformat(timespec="microseconds") if moment else ""


def title(steps: Iterable[Step]) -> str:
    """The first line of the first thing that the user said."""
    for step in steps:
        for message in (*step.input, *step.output):
            if message.role == "user" and message.content.strip():
                return message.content.strip().splitlines()[0].strip()
    return ""


def called(steps: Iterable[Step]) -> set[str]:
    """Names of the tools that were executed or asked for, also in a call written as text."""
    names: set[str] = set()
    for step in steps:
        names.add(step.tool_name)
        if step.kind in ("assistant", "agent"):
            names |= {name for message in step.output for name in _asked(message)}
    # A call written as text may spell out what PostgreSQL refuses: `\u0000` in JSON is a NUL once it is read.
    return {text(name)[:200] for name in names if name}


def _asked(message: Message) -> Iterable[str]:
    if message.tool_calls:
        return [call.name for call in message.tool_calls]
    if message.content.lstrip().startswith('{"tool"') and (call := parse_call(message).call):
        return [call.name]
    return []


def _service(row: Trajectory) -> str:
    """The agent's name where no step gives one: the service's, unless it is an SDK's stopgap."""
    name = row.metadata.get("service.name")
    return name[:200] if isinstance(name, str) and not name.startswith("unknown_service") else ""


def _version(row: Trajectory) -> str:
    versions = row.said.get("versions", {})
    release = row.metadata.get("service.version")
    known = versions.get(row.agent_name) or versions.get("")
    return known[1] if known else release[:100] if isinstance(release, str) else ""
