"""The columns of the list of trajectories: what each is called, and what is read for it.

How a cell looks says the block of its key in `templates/jinja/trajectories/cells.html`; a column without one shows the
first value that it reads, as text or as a number. Beside them any attribute that was sent is a column, `attr.<key>`,
which is declared nowhere and shows the values of its key.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from flywheel.system.sql import planned
from flywheel.trajectories.formats.semantics import sent_attributes


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    label: str
    reads: tuple[str, ...]
    """SQL about the trajectory `t`, what is joined in `_FROM`, or a query of its own; the last word is its name."""
    is_usual: bool = True
    """Shown to who has chosen nothing."""
    is_number: bool = False

    @property
    def names(self) -> list[str]:
        """The names of its values in a row."""
        return [read.replace(".", " ").split()[-1] for read in self.reads]


_COMMENTS = """(SELECT count(*) FROM trajectories_comment
    WHERE trajectory_id = t.id AND project_id = t.project_id AND deleted_at IS NULL) AS comments"""

COLUMNS = {
    column.key: column
    for column in (
        Column("when", "When", ("t.started_at",)),
        Column("outcome", "Outcome", ("t.outcome",)),
        Column("bucket", "Category", ("t.label", "t.label_bucket", "t.proposed_bucket", "t.proposed_score")),
        Column("request", "Request", ("t.title",)),
        Column("tools", "Tools", ("t.tool_names",)),
        Column("steps", "Steps", ("t.step_count", "t.error_count"), is_number=True),
        Column("tokens", "Tokens", ("t.tokens_in", "t.tokens_out"), is_number=True),
        Column("cost", "Cost", ("t.cost_usd",), is_number=True),
        Column("latency", "Latency", ("t.latency_ms",), is_number=True),
        Column("version", "Version", ("t.version_label", "maker.name AS version_of", "version.number AS version")),
        Column("feedback", "Feedback", ("t.feedback_count",), is_number=True),
        Column("label", "Label", ("t.label",)),
        Column("comments", "Comments", (_COMMENTS,), is_usual=False, is_number=True),
        Column("tags", "Tags", ("t.tags",), is_usual=False),
        Column("agent", "Agent", ("t.agent_name", "agent.name AS agent"), is_usual=False),
        Column("env", "Environment", ("t.environment",), is_usual=False),
        Column("session", "Session", ("t.session_id",), is_usual=False),
        Column("user", "User", ("t.user_id",), is_usual=False),
        Column("source", "Source", ("t.source",), is_usual=False),
    )
}
ATTRIBUTE = "attr."
MOST_ATTRIBUTES = 8
"""Columns of attributes at once."""
OFFERED = 24
"""Keys that the menu of columns offers, of those that a page's trajectories sent."""
USUAL = [key for key, column in COLUMNS.items() if column.is_usual]
_KEYS = Column("", "", ("t.id", "t.trace_id", "t.started_at", "t.attributes"))
"""By which rows are found and their pages are cut, and what columns of attributes show."""
_FROM = """
FROM trajectories_trajectory AS t
LEFT JOIN agents_agent AS agent ON agent.id = t.agent_id
LEFT JOIN agents_version AS version ON version.id = t.version_id
LEFT JOIN agents_agent AS maker ON maker.id = version.agent_id
WHERE t.id = ANY(%s)
"""


def existing(keys: Iterable[str]) -> list[str]:
    """Those that there are, in the order of the list, and behind them attributes as they were asked for; what is no
    column any more is ignored."""
    wanted = dict.fromkeys(keys)
    return [key for key in COLUMNS if key in wanted] + attributes_in(wanted)[:MOST_ATTRIBUTES]


def attributes_in(keys: Iterable[str]) -> list[str]:
    """Those that are columns of attributes. A key with a comma is none, since commas stand between columns."""
    return [key for key in keys if key.startswith(ATTRIBUTE) and _is_column(key.removeprefix(ATTRIBUTE))]


def _is_column(key: str) -> bool:
    return bool(sent_attributes.keys_of([key])) and key.isprintable() and "," not in key


def column(key: str) -> Column:
    """The column of a key that `existing` answers."""
    return COLUMNS.get(key) or Column(key, key.removeprefix(ATTRIBUTE), ("t.attributes",), is_usual=False)


def offered(items: Iterable[SimpleNamespace], shown: Iterable[str]) -> list[Column]:
    """Every column that can be chosen: the declared ones, the attributes that are shown, and those that most of these
    rows sent."""
    keys = Counter(item for row in items for item in row.attributes if "=" not in item)
    own = attributes_in([*shown, *(f"{ATTRIBUTE}{key}" for key, _ in keys.most_common(OFFERED))])
    return [*COLUMNS.values(), *map(column, dict.fromkeys(own))]


def read(keys: list[int]) -> dict[int, SimpleNamespace]:
    """By their keys, what the list shows of trajectories: every column's, so that it is one statement for everybody."""
    columns = (_KEYS, *COLUMNS.values())
    reads = {name: sql for column in columns for name, sql in zip(column.names, column.reads, strict=True)}
    found = planned(f"SELECT {', '.join(reads.values())} {_FROM}", [keys]) if keys else []
    return {row[0]: SimpleNamespace(**dict(zip(reads, row, strict=True))) for row in found}
