"""The cells of the list of trajectories: what each column shows of a row, as HTML.

In Python and by hand, since a page has six hundred of them: what a row needs is read by one statement into tuples, and
written into f-strings. What an agent or a person wrote passes `said`, which makes it visible and escapes it; all else
that is written here is ours, or a number.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import quote

from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from flywheel.accounts.models import Project
from flywheel.core.detectors.standard_buckets import Bucket, name_of
from flywheel.system.sql import planned
from flywheel.templatetags.flywheel import NOTHING, count, duration, mark_outcome, money, number, relative, tokens
from flywheel.trajectories.annotations import project_buckets
from flywheel.trajectories.detail.markup import html, joined, said
from flywheel.trajectories.search.list_columns import COLUMNS

TAGS_SHOWN = 3
_NONE = f'<span class="none">{NOTHING}</span>'
_SEGMENT = "~:@!$&'()*+,;="
"""What stands in an address as it is."""


class Row(NamedTuple):
    """What the list shows of a trajectory."""

    id: int
    trace_id: str
    started_at: datetime
    outcome: str | None
    title: str
    tool_names: list[str]
    step_count: int
    error_count: int
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: float | None
    latency_ms: float | None
    proposed_bucket: str
    proposed_score: float | None
    label: str
    label_bucket: str
    feedback_count: int
    version_label: str
    tags: list[str]
    agent_name: str
    environment: str
    session_id: str
    user_id: str
    source: str
    agent: str | None
    """Its name here, where the project has it."""
    version_of: str | None
    """The agent's name of the version, where the project has it."""
    version: int | None
    comments: int
    """Those that stand."""


_OWN = Row._fields[:-4]
_ROWS = f"""
SELECT {", ".join(f"t.{name}" for name in _OWN)}, agent.name, maker.name, version.number,
    (SELECT count(*) FROM trajectories_comment WHERE trajectory_id = t.id AND project_id = t.project_id
        AND deleted_at IS NULL)
FROM trajectories_trajectory AS t
LEFT JOIN agents_agent AS agent ON agent.id = t.agent_id
LEFT JOIN agents_version AS version ON version.id = t.version_id
LEFT JOIN agents_agent AS maker ON maker.id = version.agent_id
WHERE t.id = ANY(%s)
"""  # noqa: S608


def read(keys: list[int]) -> dict[int, Row]:
    """The rows with these keys, in one statement."""
    return {row[0]: Row._make(row) for row in planned(_ROWS, [keys])} if keys else {}


class Cells:
    """Writes the rows of one project's list."""

    def __init__(self, project: Project) -> None:
        self.url = reverse("trajectories:index", args=[project.slug])
        self.now = timezone.now()
        self.known: Mapping[str, Bucket] = project_buckets.every(project)
        self.version_url = cache(lambda name, number: reverse("agents:version", args=[project.slug, name, number]))
        self.agent_url = cache(lambda name: reverse("agents:agent", args=[project.slug, name]))
        self.bucket = cache(lambda key: said(name_of(key, self.known)))
        self.outcome = cache(lambda outcome: f"<td>{mark_outcome(outcome)}</td>")

    def rows(self, items: Iterable[Row], columns: Iterable[str]) -> SafeString:
        shown = [_CELLS[key] for key in columns]
        return SafeString("".join([self._row(item, shown) for item in items]))

    def _row(self, t: Row, shown: Iterable["Cell"]) -> str:
        address = self.address(t)
        return (
            f'<tr data-href="{address}" data-preview="{address}preview/"><td class="tick"><input type="checkbox"'
            f' name="id" value="{said(t.trace_id)}" form="bulk" aria-label="Select trajectory'
            f' {said(t.trace_id[:12])}"></td>{"".join([cell(self, t) for cell in shown])}</tr>\n'
        )

    def address(self, t: Row) -> str:
        """As it stands in an attribute."""
        return said(f"{self.url}{quote(t.trace_id, safe=_SEGMENT)}/")


Cell = Callable[[Cells, Row], str]


def _when(cells: Cells, t: Row) -> str:
    """As `ago` writes it."""
    moment = t.started_at.astimezone(UTC)
    exact = moment.isoformat(timespec="seconds")
    return (
        f'<td class="nowrap"><time datetime="{exact}" title="{exact[:10]} {exact[11:19]} UTC">'
        f"{relative(moment, cells.now)}</time></td>"
    )


def _bucket(cells: Cells, t: Row) -> str:
    if t.label_bucket:
        return f'<td class="nowrap"><span class="chip bucket">{cells.bucket(t.label_bucket)}</span></td>'
    if not t.label and t.proposed_bucket:
        return (
            '<td class="nowrap"><span class="chip proposed" title="proposed by a detector, not yet decided">'
            f"{cells.bucket(t.proposed_bucket)} {number(t.proposed_score)}</span></td>"
        )
    return f'<td class="nowrap">{_NONE}</td>'


def _request(cells: Cells, t: Row) -> str:
    title = said(t.title) or "no request recorded"
    return f'<td class="clip"><a href="{cells.address(t)}">{title}</a></td>'


def _tools(_: Cells, t: Row) -> str:
    names = t.tool_names
    if not names:
        return f'<td class="clip-2" title="">{_NONE}</td>'
    if len(names) == 1:
        return f'<td class="clip-2" title="{said(names[0])}">{said(names[0])}</td>'
    more = f' <span class="muted">+{len(names) - 1}</span>'
    return f'<td class="clip-2" title="{said(", ".join(names))}">{said(names[0])}{more}</td>'


def _figure(key: str, shown: str) -> str:
    """In a narrow window, where a column has no head, the cell names it."""
    return f'<td class="num" data-label="{COLUMNS[key].label}">{_NONE if shown == NOTHING else shown}</td>'


def _steps(_: Cells, t: Row) -> str:
    bad = ""
    if t.error_count:
        bad = f' <span class="chip bad" title="{t.error_count} steps ended in an error">✕ {t.error_count}</span>'
    return _figure("steps", f"{count(t.step_count)}{bad}")


def _tokens(_: Cells, t: Row) -> str:
    known = [each for each in (t.tokens_in, t.tokens_out) if each is not None]
    return _figure("tokens", tokens(sum(known) if known else None))


def _cost(_: Cells, t: Row) -> str:
    return _figure("cost", said(money(t.cost_usd)))


def _latency(_: Cells, t: Row) -> str:
    return _figure("latency", duration(t.latency_ms))


def _version(cells: Cells, t: Row) -> str:
    shown = _NONE
    if t.version_of is not None:
        address = said(cells.version_url(t.version_of, t.version))
        shown = f'<a href="{address}">{said(t.version_of)}@{t.version}</a>'
    elif t.version_label:
        told = "as the agent reported it; no version of this project"
        shown = f'<span class="muted" title="{told}">{said(t.version_label)}</span>'
    return f'<td class="nowrap">{shown}</td>'


def _feedback(cells: Cells, t: Row) -> str:
    given = t.feedback_count
    if not given:
        return _figure("feedback", NOTHING)
    what = f"{given} piece{'' if given == 1 else 's'} of feedback"
    return _figure("feedback", f'<a href="{cells.address(t)}#feedback" title="{what}">{count(given)}</a>')


_LABELS = {
    "failure": '<td><span class="chip bad">✕ failure</span></td>',
    "pass": '<td><span class="chip ok">✓ pass</span></td>',
}


def _label(_: Cells, t: Row) -> str:
    return _LABELS.get(t.label) or f"<td>{_NONE}</td>"


def _comments(cells: Cells, t: Row) -> str:
    shown = f'<a href="{cells.address(t)}#comments">{count(t.comments)}</a>' if t.comments else NOTHING
    return _figure("comments", shown)


def _tags(_: Cells, t: Row) -> str:
    some = "".join([f'<span class="chip">{said(tag)}</span> ' for tag in t.tags[:TAGS_SHOWN]])
    further = len(t.tags) - TAGS_SHOWN
    more = f'<span class="muted">+{further}</span>' if further > 0 else ""
    return f'<td class="clip-2" title="{said(", ".join(t.tags))}">{some or _NONE}{more}</td>'


def _agent(cells: Cells, t: Row) -> str:
    if t.agent is not None:
        return f'<td class="nowrap"><a href="{said(cells.agent_url(t.agent))}">{said(t.agent)}</a></td>'
    return f'<td class="nowrap">{said(t.agent_name) or NOTHING}</td>'


def _env(_: Cells, t: Row) -> str:
    return f'<td class="nowrap">{said(t.environment) or NOTHING}</td>'


def _id(text: str) -> str:
    shown = said(text)
    return f'<td class="clip-2" title="{shown}">{shown or NOTHING}</td>'


def _source(_: Cells, t: Row) -> str:
    return f'<td class="nowrap">{said(t.source)}</td>'


_CELLS: dict[str, Cell] = {
    "when": _when,
    "outcome": lambda cells, t: cells.outcome(t.outcome),
    "bucket": _bucket,
    "request": _request,
    "tools": _tools,
    "steps": _steps,
    "tokens": _tokens,
    "cost": _cost,
    "latency": _latency,
    "version": _version,
    "feedback": _feedback,
    "label": _label,
    "comments": _comments,
    "tags": _tags,
    "agent": _agent,
    "env": _env,
    "session": lambda _, t: _id(t.session_id),
    "user": lambda _, t: _id(t.user_id),
    "source": _source,
}
"""By the key of the column."""


# The head of the table, and the menu of its columns


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
