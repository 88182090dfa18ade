"""Claims of a trajectory's parts about the whole: its agent, session, outcome, tools, tags.

Parts arrive in any order, split in any way, and twice. Each statement is kept with its key (when it was said, by which
span) in `Trajectory.claims`, and merging takes the least or the greatest key, so the result depends only on the set of
parts that arrived:

- agent, session, user, environment, title: said first holds; a root span comes before a child that started with it.
- outcome: said last holds, and what a person says before what a machine says.
- each metadata key: said last holds.
- tools, tool names, tags, attributes, interventions: the union, sorted; of attributes the first (`sent_attributes.py`).
- versions that answered, which only the gateway says: the union, sorted.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from flywheel.core.digests import canonical
from flywheel.trajectories.formats.semantics import sent_attributes
from flywheel.trajectories.formats.values.hostile_json import text
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.arrivals.incoming_steps import Said

FIRST = ("agent", "session_id", "user_id", "environment")
ANSWERED_BY = Trajectory.ANSWERED_BY
JUDGED = "judged"
"""In `Trajectory.claims`: the outcome by a person's word."""
COLUMNS = {"agent": "agent_name"}
WIDTHS = {"agent": 200, "session_id": 200, "user_id": 200, "environment": 100, "title": 300}
COMPARED = (
    "claims", "agent_name", "version_label", "session_id", "user_id", "environment", "title", "outcome",
    "interventions", "tools", "tool_names", "tags", "attributes", "metadata",
)  # fmt: skip
"""Columns that this module writes."""
_FIRST = attrgetter("first")


def merge(row: Trajectory, parts: Sequence[Said], *, later_holds: bool = False) -> bool:
    """Add what `parts` say to the row's columns. Returns whether anything changed.

    With `later_holds`, another outcome of the same step holds because it came later: a person has corrected a file.
    """
    before = [getattr(row, name) for name in COMPARED]
    row.claims = {name: dict(value) if isinstance(value, dict) else value for name, value in row.claims.items()}
    forward = sorted(parts, key=_FIRST)
    _merge_first(row, forward)
    _merge_title(row, forward)
    _merge_last(row, forward)
    _merge_outcome(row, parts, later_holds)
    _merge_unions(row, parts)
    said = row.claims
    for name in FIRST:
        setattr(row, COLUMNS.get(name, name), said[name][1] if name in said else "")
    row.agent_name = row.agent_name or _service(row)
    row.version_label = _version(row)
    ends = said.get(JUDGED) or said.get("outcome")
    row.outcome = ends[1] if ends else None
    return before != [getattr(row, name) for name in COMPARED]


def cut(said: dict[str, Any]) -> dict[str, Any]:
    """`Trajectory.claims` that was rewritten, its statements no longer than `merge` makes them: they become columns."""
    shorter: dict[str, Any] = {
        name: [said[name][0], said[name][1][:width]] for name, width in WIDTHS.items() if name in said
    }
    if "versions" in said:
        shorter["versions"] = {agent[:200]: [key, word[:100]] for agent, (key, word) in said["versions"].items()}
    return {**said, **shorter}


def _merge_first(row: Trajectory, forward: Sequence[Said]) -> None:
    for name in FIRST:
        first = None
        for part in forward:
            if first is not None and part.first > first:
                break
            if value := getattr(part, name):
                first = part.first
                _keep_first(row.claims, name, part, value[: WIDTHS[name]])
    for part in forward:
        if part.version:
            versions = row.claims.setdefault("versions", {})
            _keep_first(versions, part.agent[:200], part, part.version[:100])


def _merge_title(row: Trajectory, forward: Sequence[Said]) -> None:
    known = row.claims.get("title")
    for part in forward:
        if known is not None and list(part.first) > known[0]:
            break
        found = part.title() if callable(part.title) else part.title
        if found:
            _keep_first(row.claims, "title", part, text(found)[: WIDTHS["title"]])
            known = row.claims["title"]
    row.title = row.claims["title"][1] if "title" in row.claims else ""


def _merge_last(row: Trajectory, forward: Sequence[Said]) -> None:
    keys: dict[str, list[Any]] = row.claims.get("metadata", {})
    metadata = dict(row.metadata)
    merged = None
    for part in reversed(forward):
        if part.metadata is merged:
            continue  # the spans of a resource share what it says, and one that holds over this one has said it
        merged, first = part.metadata, list(part.first)
        for name, value in part.metadata.items():
            key = keys.get(name)
            if (
                key is None
                or first > key
                or (first == key and value != metadata[name] and canonical(value) > canonical(metadata[name]))
            ):
                keys[name], metadata[name] = first, value
    if keys:
        row.claims["metadata"], row.metadata = keys, metadata


def _merge_outcome(row: Trajectory, parts: Iterable[Said], later_holds: bool) -> None:
    for part in parts:
        if part.outcome:
            name = JUDGED if part.is_person else "outcome"
            known = row.claims.get(name)
            statement = [list(part.last), part.outcome]
            if known is None or statement > known or (later_holds and statement[0] == known[0]):
                row.claims[name] = statement


def _merge_unions(row: Trajectory, parts: Iterable[Said]) -> None:
    tags, tool_names = set(row.tags), set(row.tool_names)
    interventions = list(row.interventions)
    tools: list[dict[str, Any]] = []
    attributes: set[str] = set()
    answered_by = set(row.claims.get(ANSWERED_BY, ()))
    merged: Sequence[str] = ()
    for part in parts:
        if part.attributes is not merged:
            merged = part.attributes
            attributes.update(merged)
        if part.tags:
            tags.update(tag[:100] for tag in part.tags if tag)
        answered_by |= part.answered_by
        if part.tool_names:
            tool_names |= part.tool_names
        if part.interventions:
            interventions += [item.to_json() for item in part.interventions]
        if part.tools and part.tools is not tools:
            tools = part.tools
            row.tools = _union([*row.tools, *tools], lambda tool: str(tool.get("name", "")))
    if answered_by:
        row.claims[ANSWERED_BY] = sorted(answered_by)
    # What a person said of a tag (`bulk_actions.py`) holds over what parts say.
    for tag, holds in row.claims.get("by_hand", {}).items():
        tags = tags | {tag} if holds else tags - {tag}
    row.tags, row.tool_names = sorted(tags), sorted(tool_names)
    if not attributes.issubset(row.attributes):
        row.attributes = sent_attributes.merged(row.attributes, attributes)
    if interventions:
        row.interventions = _union(interventions, lambda item: canonical([item["at"], item["step"], item]).decode())


def _keep_first(said: dict[str, Any], name: str, part: Said, value: Any) -> None:
    """Keep the statement with the least key; where keys tie, the content decides, not the arrival."""
    statement = [list(part.first), value]
    known = said.get(name)
    if known is None or statement < known:
        said[name] = statement


def _union(items: list[dict[str, Any]], identity: Callable[[dict[str, Any]], str]) -> list[dict[str, Any]]:
    """Each item once, sorted by identity; of two with one identity, the greater content."""
    best: dict[str, dict[str, Any]] = {}
    for item in items:
        name = identity(item)
        if name not in best or (item != best[name] and canonical(item) > canonical(best[name])):
            best[name] = item
    return [best[name] for name in sorted(best)]


def _service(row: Trajectory) -> str:
    """The agent's name where no step gives one: the service's, unless it is an SDK's stopgap."""
    name = row.metadata.get("service.name")
    return name[:200] if isinstance(name, str) and not name.startswith("unknown_service") else ""


def _version(row: Trajectory) -> str:
    versions = row.claims.get("versions", {})
    release = row.metadata.get("service.version")
    known = versions.get(row.agent_name) or versions.get("")
    return known[1] if known else release[:100] if isinstance(release, str) else ""
