"""Whatever is asked, PostgreSQL finds what a slow reading of the query, row by row, finds too."""

import fnmatch
import operator
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Message, Step, Trace
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.search import full_text, grammar
from flywheel.trajectories.search.grammar import And, Node, Not, Or, Term, Value, Words
from flywheel.trajectories.search.query import parse
from tests.conftest import Build, Cast
from tests.trajectories.search.test_grammar import _grown

FIRST = datetime(2026, 1, 30, 12, tzinfo=UTC)


@pytest.fixture
def rows(cast: Cast, build: Build) -> list[Trajectory]:
    support, mail = build.agent("support"), build.agent("mail-agent")
    known = build.version(support)
    made: list[dict[str, Any]] = [
        {},
        {"environment": "dev", "outcome": "failed", "latency_ms": 500.0, "tags": ["vip"], "metadata": {"region": "eu"}},
        {"environment": "dev_2", "outcome": "success", "latency_ms": None, "metadata": {"region": "us", "run": 7}},
        {"tool_names": ["calendar.get", "email.send"], "tokens_in": 1500, "tokens_out": 600, "cost_usd": 0.02},
        {"tool_names": ["calendar%get"], "tokens_in": 90, "cost_usd": 0.0, "tags": ["vip", "eu%"]},
        {"agent": support, "version": known, "label": "failure", "label_bucket": "wrong_tool"},
        {"agent": mail, "version_label": "v1", "label": "pass", "proposed_bucket": "wrong_tool", "proposed_score": 0.9},
        {"agent_name": "mail-old", "version_label": "1-rc", "proposed_bucket": "format_error", "proposed_score": 0.4},
        {"error_count": 2, "interventions": [{"kind": "edited"}], "step_count": 12, "user_id": "u-1"},
        {"source": Source.IMPORT, "feedback_count": 1, "session_id": "", "title": 'Say "no" or (maybe)'},
        {"source": Source.ROLLOUT, "outcome": "failed", "environment": "dev"},
    ]
    rows = [
        build.trajectory(
            **{"prompt": f"Tell Bako {at}", "started_at": FIRST + timedelta(hours=9 * at), "step_count": at, **fields}
        )
        for at, fields in enumerate(made)
    ]
    full_text.index(
        {row.pk: Trace(row.trace_id, [Step("s", "user", input=[Message("user", row.title)])]) for row in rows}
    )
    return rows


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def like(value: Value, *texts: str) -> bool:
    """Whether one of the texts is this one, or has the form of the glob."""
    if value.is_exact or "*" not in value.text:
        return value.text in texts
    pattern = "*".join(part.replace("[", "[[]").replace("?", "[?]") for part in value.text.split("*"))
    return any(fnmatch.fnmatchcase(text, pattern) for text in texts)


def compares(text: str, number: float | None, scale: float = 1) -> bool:
    if number is None:
        return False
    for sign, holds in ((">=", operator.ge), ("<=", operator.le), (">", operator.gt), ("<", operator.lt)):
        if text.startswith(sign):
            return bool(holds(number, float(text.removeprefix(sign)) * scale))
    low, between, high = text.partition("..")
    if not between:
        return number == float(text) * scale
    return (not low or number >= float(low) * scale) and (not high or number <= float(high) * scale)


def lies(text: str, moment: datetime) -> bool:
    """Days and months, which are compared as the text that they begin with."""
    for sign in (">=", "<=", ">", "<", ""):
        if text.startswith(sign):
            break
    wanted = text.removeprefix(sign)
    low, between, high = wanted.partition("..")
    start, end = moment.isoformat()[: len(low)], moment.isoformat()[: len(high)]
    if between:
        return low <= start and end <= high
    return {">=": start >= low, "<=": start <= low, ">": start > low, "<": start < low, "": start == low}[sign]


def holds(row: Trajectory, term: Term, value: Value) -> bool:
    text = value.text
    known = {
        "intervention": row.interventions,
        "error": row.error_count,
        "label": row.label,
        "cost": row.cost_usd is not None,
        "version": row.version_id,
        "session": row.session_id,
        "tools": row.tool_names,
        "feedback": row.feedback_count,
    }
    match term.field:
        case "env":
            return row.environment == "" if value == Value("none") else like(value, row.environment)
        case "user":
            return like(value, row.user_id)
        case "agent":
            return like(value, row.agent.name if row.agent else "", row.agent_name)
        case "tool":
            return like(value, *row.tool_names)
        case "tag":
            return like(value, *row.tags)
        case "version":
            return str(row.version.number) == text if row.version else row.version_label in (text, f"v{text}")
        case "bucket":
            if row.label:
                return like(value, row.label_bucket)
            return like(Value("", True) if value == Value("none") else value, row.proposed_bucket)
        case "outcome":
            return (row.outcome or "unknown") == text
        case "label":
            return (row.label or "none") == text
        case "source":
            return row.source == text
        case "has":
            return bool(known[text])
        case "meta":
            return term.key in row.metadata and like(value, str(row.metadata[term.key]))
        case "latency":
            return compares(text, row.latency_ms, 1000)
        case "steps":
            return compares(text, row.step_count)
        case "tokens":
            return compares(text, row.tokens)
        case "cost":
            return compares(text, row.cost_usd)
        case "score":
            return compares(text, row.proposed_score)
        case "started":
            return lies(text, row.started_at)
        case "after":
            return lies(f">={text}", row.started_at)
        case "before":
            return lies(f"<{text}", row.started_at)
    raise AssertionError(term.field)


def matches(row: Trajectory, node: Node) -> bool:
    match node:
        case And(parts):
            return all(matches(row, part) for part in parts)
        case Or(parts):
            return any(matches(row, part) for part in parts)
        case Not(part):
            return not matches(row, part)
        case Words(text):
            title, wanted = words_of(row.title), words_of(text)
            return any(title[at : at + len(wanted)] == wanted for at in range(len(title) + 1))
        case _:
            return any(holds(row, node, value) for value in node.values)


def asked(field: str, *values: str, exact: tuple[str, ...] = (), key: str = "") -> st.SearchStrategy[Node]:
    one = st.sampled_from([Value(text) for text in values] + [Value(text, True) for text in exact])
    return st.lists(one, min_size=1, max_size=2).map(lambda found: Term(field, tuple(found), key))


LEAVES: st.SearchStrategy[Node] = st.one_of(
    st.sampled_from([Words("bako"), Words("3"), Words('"no" or (', True), Words("bako 3", True)]),
    asked("env", "dev", "dev*", "*2", "none", "*", exact=("dev", "dev*", "none")),
    asked("user", "u-1", "u*"),
    asked("agent", "support", "mail*", "*-*", "m*o*d", exact=("mail*",)),
    asked("tool", "email.send", "calendar.*", "calendar*", "*%*", "*.s*d", exact=("calendar.get", "a,b")),
    asked("tag", "vip", "v*", "eu%", "eu*"),
    asked("version", "1", "2"),
    asked("bucket", "wrong_tool", "format_error", "none", "w*"),
    asked("outcome", "failed", "success", "unknown"),
    asked("label", "failure", "pass", "none"),
    asked("source", "production", "rollout", "import"),
    asked("has", "intervention", "error", "label", "cost", "version", "session", "tools", "feedback"),
    asked("meta", "eu", "u*", "*", "7", key="region") | asked("meta", "7", "*", key="run"),
    asked("latency", ">0.9", "<=0.5", "0.5", "0.6..2", "..0.7", "1.."),
    asked("steps", ">3", "3..5", "12", "<1"),
    asked("tokens", ">100", "<100", "2100", "0"),
    asked("cost", ">0.01", "0", "<=0.02"),
    asked("score", ">0.5", "<0.5"),
    asked("started", "2026-01-31", ">2026-01-31", ">=2026-02", "<2026-02-01", "<=2026-01", "2026-01-31..2026-02-01"),
    asked("started", "2026-02..", "..2026-01-31") | asked("after", "2026-01-31") | asked("before", "2026-02"),
)


@given(node=st.recursive(LEAVES, _grown, max_leaves=6))
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_database_finds_what_a_slow_reading_finds(rows: list[Trajectory], node: Node) -> None:
    query = parse(grammar.show(node))
    assert not query.problems
    fields = {leaf.field for leaf in grammar.terms_of(node) if isinstance(leaf, Term)}
    considered = [row for row in rows if fields & {"source", "trace"} or row.source != Source.ROLLOUT]
    wanted = [row.pk for row in considered if matches(row, node)]
    for project in (None, rows[0].project_id):  # as it means, and as one project is asked for it
        assert sorted(query.apply(Trajectory.objects.all(), project).values_list("pk", flat=True)) == wanted
