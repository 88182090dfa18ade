"""Changes in a version against another one, usually its parent: part by part, tools by field, a prompt by line."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flywheel.agents.models import Artifact, Version
from flywheel.core.traces.call_forms import LABELS

PROMPT = "System prompt"


@dataclass(frozen=True, slots=True)
class Change:
    label: str
    before: Any
    after: Any
    """Text, or what JSON can say; None where there was or is nothing."""

    @property
    def word(self) -> str:
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def changes(before: Version, after: Version) -> list[Change]:
    """Every difference of content, of tools a field at a time; empty when there is none."""
    pairs = [
        ("Base model", before.base_model, after.base_model),
        ("Endpoint", before.endpoint, after.endpoint),
        ("Weights", _files(before.weights), _files(after.weights)),
        ("Adapter", _files(before.adapter), _files(after.adapter)),
        (PROMPT, before.system_prompt or None, after.system_prompt or None),
        ("Call format", LABELS.get(before.form), LABELS.get(after.form)),
        ("Sampling", before.sampling or None, after.sampling or None),
    ]
    found = [Change(label, one, other) for label, one, other in pairs if one != other]
    old, new = _by_name(before.tools), _by_name(after.tools)
    for name in dict.fromkeys([*old, *new]):
        found += _tool_changes(f"Tool {name}", old.get(name), new.get(name))
    return found


def _tool_changes(label: str, before: Any, after: Any) -> Iterator[Change]:
    """Yield what differs in a tool: the whole where it was added or removed, else each field, each argument alone."""
    if before == after:
        return
    if before is None or after is None:
        yield Change(label, before, after)
        return
    for field in dict.fromkeys([*before, *after]):
        one, other = before.get(field), after.get(field)
        if field == "parameters" and isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _schema_changes(label, one, other)
        elif one != other:
            yield Change(f"{label}: {field}", one, other)


def _schema_changes(label: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    old, new = (dict(each.get("properties") or {}) for each in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield Change(f"{label}: argument {name}", old.get(name), new.get(name))
    one, other = ({name: each for name, each in side.items() if name != "properties"} for side in (before, after))
    if one != other:
        yield Change(f"{label}: parameters", one, other)


# A prompt, line by line

AROUND = 3
"""Lines that stayed which are shown before and after one that did not."""
MOST_COMPARISONS = 90_000
"""Of lines between the first that differs and the last; more are shown as one change. Lines that repeat cost the cube
of their number, and whoever wrote a prompt chose them."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines in a row that stayed, went, came or changed."""

    kind: Literal["same", "removed", "added", "changed", "hidden"]
    before: str
    after: str
    count: int
    """How many; of those that are hidden it is all that is told."""
    is_whole: bool = False
    """They were not compared, for there are too many: lines that stayed may be among them."""


def lines(before: str, after: str) -> list[Lines]:
    """Compare two texts by line. Of long runs that stayed only what is near a change is kept."""
    old, new = before.split("\n"), after.split("\n")
    found: list[Lines] = []
    steps = _steps(old, new)
    for number, (what, i1, i2, j1, j2) in enumerate(steps):
        one, other = old[i1:i2], new[j1:j2]
        if what == "equal":
            found += _near(one, is_first=number == 0, is_last=number == len(steps) - 1)
        elif what == "delete":
            found.append(Lines("removed", "\n".join(one), "", len(one)))
        elif what == "insert":
            found.append(Lines("added", "", "\n".join(other), len(other)))
        else:
            count = max(len(one), len(other))
            found.append(Lines("changed", "\n".join(one), "\n".join(other), count, is_whole=what == "whole"))
    return found


def _steps(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """Return difflib's steps from one to the other, or `whole` for what is too long to be compared."""
    shorter = min(len(old), len(new))
    head = next((place for place in range(shorter) if old[place] != new[place]), shorter)
    left = shorter - head
    tail = next((place for place in range(left) if old[-1 - place] != new[-1 - place]), left)
    ends = len(old) - tail, len(new) - tail
    middles = old[head : ends[0]], new[head : ends[1]]
    found: list[tuple[str, int, int, int, int]] = [("equal", 0, head, 0, head)] if head else []
    if len(middles[0]) * len(middles[1]) > MOST_COMPARISONS:
        found.append(("whole", head, ends[0], head, ends[1]))
    else:
        steps = difflib.SequenceMatcher(None, *middles, autojunk=False).get_opcodes()
        found += [(what, head + i1, head + i2, head + j1, head + j2) for what, i1, i2, j1, j2 in steps]
    return found + ([("equal", ends[0], len(old), ends[1], len(new))] if tail else [])


def _near(same: list[str], *, is_first: bool, is_last: bool) -> list[Lines]:
    """Return what is shown of lines that stayed between two changes, or before the first or after the last."""
    head, tail = (0 if is_first else AROUND), (0 if is_last else AROUND)
    hidden = len(same) - head - tail
    if hidden <= 1:
        return [_stayed(same)]
    parts = [same[:head], None, same[len(same) - tail :] if tail else []]
    return [Lines("hidden", "", "", hidden) if part is None else _stayed(part) for part in parts if part != []]


def _stayed(part: list[str]) -> Lines:
    text = "\n".join(part)
    return Lines("same", text, text, len(part))


def _files(artifact: Artifact | None) -> dict[str, str] | None:
    """File names and the beginning of their digests: enough to see which of them differ."""
    if artifact is None:
        return None
    return {name: entry["sha256"][:16] for name, entry in sorted(artifact.manifest.items())}


def _by_name(tools: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {str(tool.get("name")): tool for tool in tools}
