"""The columns of the list of trajectories."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    is_usual: bool = True
    """Shown to who has chosen nothing."""
    is_number: bool = False


COLUMNS = {
    column.key: column
    for column in (
        Column("when", "When"),
        Column("outcome", "Outcome"),
        Column("bucket", "Bucket"),
        Column("request", "Request"),
        Column("tools", "Tools"),
        Column("steps", "Steps", is_number=True),
        Column("tokens", "Tokens", is_number=True),
        Column("cost", "Cost", is_number=True),
        Column("latency", "Latency", is_number=True),
        Column("version", "Version"),
        Column("feedback", "Feedback", is_number=True),
        Column("label", "Label"),
        Column("comments", "Comments", is_usual=False, is_number=True),
        Column("tags", "Tags", is_usual=False),
        Column("agent", "Agent", is_usual=False),
        Column("env", "Environment", is_usual=False),
        Column("session", "Session", is_usual=False),
        Column("user", "User", is_usual=False),
        Column("source", "Source", is_usual=False),
    )
}
USUAL = [key for key, column in COLUMNS.items() if column.is_usual]


def known(keys: Iterable[str]) -> list[str]:
    """Those that there are, in the order of the list; what is no column any more is ignored."""
    wanted = set(keys)
    return [key for key in COLUMNS if key in wanted]
