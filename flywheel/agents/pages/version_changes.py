"""Changes in a version against another one, usually its parent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.agents.models import Artifact, Version
from flywheel.core.traces.call_forms import LABELS


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
    """Every difference of content, a tool at a time; empty when there is none."""
    pairs = [
        ("Base model", before.base_model, after.base_model),
        ("Endpoint", before.endpoint, after.endpoint),
        ("Weights", _files(before.weights), _files(after.weights)),
        ("Adapter", _files(before.adapter), _files(after.adapter)),
        ("System prompt", before.system_prompt or None, after.system_prompt or None),
        ("Form of calls", LABELS.get(before.form), LABELS.get(after.form)),
        ("Sampling", before.sampling or None, after.sampling or None),
    ]
    old, new = _by_name(before.tools), _by_name(after.tools)
    pairs += [(f"Tool {name}", old.get(name), new.get(name)) for name in sorted({*old, *new})]
    return [Change(label, one, other) for label, one, other in pairs if one != other]


def _files(artifact: Artifact | None) -> dict[str, str] | None:
    """File names and the beginning of their digests: enough to see which of them differ."""
    if artifact is None:
        return None
    return {name: entry["sha256"][:16] for name, entry in sorted(artifact.manifest.items())}


def _by_name(tools: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {str(tool.get("name")): tool for tool in tools}
