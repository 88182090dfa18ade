"""The columns of the list of trajectories."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from django.utils.safestring import SafeString

from flywheel.trajectories.markup import html, joined


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


@lru_cache(maxsize=256)
def heads(shown: tuple[str, ...]) -> SafeString:
    """The head of the table with these columns."""
    return joined(
        [
            html('<th class="num">{}</th>' if c.is_number else "<th>{}</th>", c.label)
            for c in map(COLUMNS.__getitem__, shown)
        ]
    )


@lru_cache(maxsize=256)
def boxes(shown: tuple[str, ...]) -> SafeString:
    """Every column, those that are shown with a tick."""
    form = '<label><input type="checkbox" name="column" value="{}"{}> {}</label>'
    return joined([html(form, c.key, _TICKED if c.key in shown else "", c.label) for c in COLUMNS.values()])


_TICKED = SafeString(" checked")
