"""What is stored depends on the set of steps that arrived, and on nothing else."""

import itertools
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.accounts.models import Project
from flywheel.agents.models import Agent
from flywheel.core.envs.policy_rollouts import ChatResponse, Rollout
from flywheel.core.traces import Intervention, Message, Step, ToolCall, Trace
from flywheel.failures.detectors.proposals import unread
from flywheel.trajectories import models
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Batch, Source, Trajectory
from flywheel.trajectories.store import attachments
from flywheel.trajectories.store import merge as store_module
from flywheel.trajectories.store.merge import store, store_rollouts, write
from flywheel.trajectories.store.rollout_traces import trace_of_rollout
from flywheel.trajectories.store.rows import trajectory_rows
from flywheel.trajectories.store.stored_traces import trace_of, traces_of
from tests.conftest import Build, Cast
from tests.trajectories import talking
from tests.trajectories.talking import TRACE, episode, span, text

slugs = itertools.count()
OTHER = "f" * 32


def parts(spans: list[Any]) -> list[Span]:
    return otlp_traces.decode(talking.body_of(spans), otlp_traces.PROTOBUF).spans


def send(project: Project, spans: list[Any]) -> Batch:
    return store(project, parts(spans), source=Source.PRODUCTION, format="otlp")


def stored(project: Project) -> list[Any]:
    """Everything that is stored, without ids and moments of arrival."""
    left_out = {"id", "project_id", "trajectory_id", "received_at", "changed_at", "detected_at", "agent_id", "_state"}

    def content(row: Any) -> dict[str, Any]:
        return {key: value for key, value in vars(row).items() if key not in left_out}

    rows = Trajectory.objects.filter(project=project).select_related("agent").order_by("trace_id")
    return [(content(row), [content(step) for step in row.steps.order_by("position")]) for row in rows]


def everything() -> list[Any]:
    """Two episodes, with a span that came before it had ended and one that comes in two lengths."""
    spans = [*episode(), *episode(OTHER, calls=1, request="Another one")]
    unended = span(1, took_ms=None, name="invoke_agent support", gen_ai__operation__name="invoke_agent")
    longer = span(30, parent=11, at_ms=12, name="GET /orders", http__route="/orders", note="n" * 50)
    shorter = span(30, parent=11, at_ms=12, name="GET /orders", http__route="/orders")
    tied = [span(number, parent=99, at_ms=15, name=f"tied {number}") for number in (40, 41, 42)]
    said = span(50, at_ms=60, name="feedback", flywheel__outcome="failed", flywheel__meta__region="eu")
    said_before = span(51, at_ms=59, name="feedback", flywheel__meta__region="us", flywheel__meta__plan="free")
    return [*spans, unended, longer, shorter, *tied, said, said_before]


@pytest.fixture(scope="module")
def spans() -> list[Any]:
    return everything()


@given(data=st.data())
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_order_grouping_and_repetition_change_nothing(db: None, spans: list[Any], data: st.DataObject) -> None:
    whole = Project.objects.create(slug=f"whole-{next(slugs)}", name="whole")
    mixed = Project.objects.create(slug=f"mixed-{next(slugs)}", name="mixed")
    send(whole, spans)

    repeats = data.draw(st.lists(st.sampled_from(range(len(spans))), max_size=6))
    order = data.draw(st.permutations([*range(len(spans)), *repeats]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order) - 1), max_size=5)))
    for start, end in itertools.pairwise([0, *cuts, len(order)]):
        batch = send(mixed, [spans[index] for index in order[start:end]])
        assert batch.received == end - start

    assert stored(mixed) == stored(whole)


def test_two_contents_of_one_span_say_the_same_in_any_order_and_grouping(cast: Cast) -> None:
    one, two = (
        span(1, gen_ai__operation__name="chat", gen_ai__agent__name=name, gen_ai__input__messages=[text("user", name)])
        for name in "xy"
    )
    for number, requests in enumerate(([[one, two]], [[two, one]], [[one], [two]], [[two], [one]])):
        project = Project.objects.create(slug=f"tie-{number}", name="tie")
        for request in requests:
            send(project, request)
        row = Trajectory.objects.get(project=project)
        assert (row.agent_name, row.title) == ("x", "x")


def test_a_request_that_comes_again_is_all_duplicates(cast: Cast) -> None:
    first, again = send(cast.project, episode()), send(cast.project, episode())
    assert (first.received, first.inserted, first.duplicate) == (6, 6, 0)
    assert (again.received, again.inserted, again.updated, again.duplicate) == (6, 0, 0, 6)
    assert Trajectory.objects.get().step_count == models.Step.objects.count() == 6


def test_what_changes_nothing_does_not_look_new_to_the_detectors(cast: Cast, woken: list[int]) -> None:
    send(cast.project, episode())
    before = Trajectory.objects.get().changed_at
    send(cast.project, episode())
    assert Trajectory.objects.get().changed_at == before


def test_a_span_that_has_ended_replaces_the_one_that_had_not(cast: Cast) -> None:
    send(cast.project, [span(1, took_ms=None, name="a much longer name, but not ended")])
    batch = send(cast.project, [span(1, took_ms=5, name="ended")])
    assert (batch.inserted, batch.updated, batch.duplicate) == (0, 1, 0)
    late = send(cast.project, [span(1, took_ms=None, name="a much longer name, but not ended")])
    assert (late.updated, late.duplicate) == (0, 1)
    assert models.Step.objects.get().name == "ended"


def test_figures_come_from_the_steps(cast: Cast) -> None:
    send(cast.project, episode())
    row = Trajectory.objects.get()
    assert (row.step_count, row.error_count, row.tokens_in, row.tokens_out) == (6, 1, 200, 20)
    assert (row.title, row.outcome, row.session_id) == ("Where is my order?", "success", "conv-1")
    assert row.tool_names == ["orders.find"]
    assert row.latency_ms == 51.0
    assert row.cost_usd is None
    kinds = list(row.steps.order_by("position").values_list("kind", flat=True))
    assert kinds == ["agent", "assistant", "tool", "assistant", "tool", "assistant"]


def test_the_root_names_the_agent_even_when_it_comes_last(cast: Cast) -> None:
    *children, root = episode()
    send(cast.project, children)
    assert Trajectory.objects.get().agent_name == "sub-agent"
    send(cast.project, [root])
    row = Trajectory.objects.select_related("agent").get()
    assert row.agent is not None
    assert (row.agent_name, row.agent.name, row.agent.description) == ("support", "support", "seen in telemetry")


def test_a_service_names_the_agent_where_no_step_does(cast: Cast) -> None:
    send(cast.project, [span(1)])
    assert Trajectory.objects.get().agent_name == "shop"


def test_agents_whose_names_no_address_takes_are_agents_of_their_own(cast: Cast) -> None:
    names = ["客服助手", "客服 assistant", "订单 assistant", "客服-1", "Ａssistant", "Łódź", "---"]
    for number, name in enumerate(names):
        one = talking.span(1, gen_ai__agent__name=name)
        one.trace_id = bytes([number + 1]) * 16
        send(cast.project, [one])
    made = dict(Trajectory.objects.values_list("agent_name", "agent__name"))
    assert set(made) == set(names)
    assert len(set(made.values())) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name or "") for name in made.values())
    assert (made["Ａssistant"], made["Łódź"]) == ("assistant", "odz")
    assert Agent.objects.get(name=made["客服助手"]).description == "seen in telemetry as 客服助手"


def test_a_version_of_an_agent_with_such_a_name_is_found_by_its_label(cast: Cast, build: Build) -> None:
    send(cast.project, [span(1, gen_ai__agent__name="客服助手")])
    version = build.version(Agent.objects.get())
    send(cast.project, [span(2, gen_ai__agent__name="客服助手", gen_ai__agent__version="客服助手@1")])
    assert Trajectory.objects.get().version == version


@pytest.mark.parametrize("label", ["1", "v1", "support@1"])
def test_a_known_version_is_found_by_its_label(cast: Cast, build: Build, label: str) -> None:
    version = build.version(build.agent("support"))
    send(cast.project, [span(1, gen_ai__agent__name="support", gen_ai__agent__version=label)])
    row = Trajectory.objects.get()
    assert (row.version, row.version_label) == (version, label)


@pytest.mark.parametrize("label", ["2", "other@1", "1.0", "one", "9" * 30])
def test_an_unknown_version_keeps_its_label(cast: Cast, build: Build, label: str) -> None:
    build.version(build.agent("support"))
    send(cast.project, [span(1, gen_ai__agent__name="support", gen_ai__agent__version=label)])
    row = Trajectory.objects.get()
    assert (row.version, row.version_label) == (None, label)


def test_projects_do_not_share_traces(cast: Cast) -> None:
    send(cast.project, episode())
    batch = send(cast.elsewhere, episode())
    assert batch.inserted == 6
    assert Trajectory.objects.filter(trace_id=TRACE).count() == 2


def test_a_whole_trace_without_times_keeps_its_order(cast: Cast) -> None:
    steps = [Step(f"s{index}", "user", output=[Message("user", str(index))]) for index in range(12)]
    store(cast.project, [Trace("t", steps)], source=Source.IMPORT, format="atif")
    assert [step.span_id for step in trace_of(Trajectory.objects.get()).steps] == [f"s{index}" for index in range(12)]


def test_a_trace_is_read_back_as_it_came(cast: Cast) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    call = ToolCall("c", "mail.send", {"to": "Bako", "cc": [1, {"a": None}]})
    trace = Trace(
        "t" * 32,
        [
            Step("u", "user", started_at=at, output=[Message("user", "hi")]),
            Step(
                "a",
                "assistant",
                "chat",
                "u",
                at + timedelta(seconds=1),
                at + timedelta(seconds=2),
                "error",
                "it broke",
                "m-1",
                [Message("user", "hi")],
                [Message("assistant", "", (call, ToolCall("d", "x", "{broken")), reasoning="because")],
                finish_reason="tool_calls",
                tokens_in=1,
                tokens_out=2,
                tokens_cached=0,
                cost_usd=0.5,
                raw={"k": [1]},
            ),
            Step(
                "t",
                "tool",
                parent_id="a",
                started_at=at + timedelta(seconds=3),
                tool_name="mail.send",
                tool_call_id="c",
                arguments={"to": "Bako"},
                result=[1, 2],
            ),
        ],
        agent="support",
        version="3",
        session_id="s",
        user_id="u",
        environment="production",
        tools=[{"name": "mail.send", "description": "", "parameters": {}}],
        outcome="failed",
        interventions=[Intervention("a", "edited", "ada", "softened", at.isoformat())],
        tags=["b", "a"],
        metadata={"state": {"people": ["Bako"]}},
    )
    store(cast.project, [trace], source=Source.IMPORT, format="atif")
    row = Trajectory.objects.get()
    trace.tags.sort()
    assert trace_of(row) == trace
    assert traces_of([row]) == {row.pk: trace}
    assert [step.span_id for step in trace_of(row, limit=2).steps] == ["u", "a"]


def test_hostile_text_is_stored(cast: Cast) -> None:
    hostile = "nul \x00 surrogate \ud800"
    message = Message("assistant", hostile, (ToolCall("c", hostile, {"x": float("nan")}),))
    written = Message("assistant", '{"tool": "a\\u0000b", "arguments": {}}')
    steps = [
        Step("u", "user", output=[Message("user", hostile)]),
        Step("s" * 900, "assistant", output=[message]),
        Step("w", "assistant", output=[written]),
    ]
    (row,) = store_rollouts(cast.project, [Trace("t", steps, session_id=hostile, metadata={"k": hostile})])
    tame = "nul \u2400 surrogate \ufffd"
    row.refresh_from_db()
    assert (row.title, row.session_id, row.metadata) == (tame, tame, {"k": tame})
    assert row.tool_names == ["a\u2400b", tame]
    step = row.steps.get(position=1)
    assert step.body["output"][0]["content"] == tame
    assert step.body["output"][0]["tool_calls"][0]["arguments"] == {"x": "NaN"}


def test_parents_in_a_circle_are_stored(cast: Cast) -> None:
    send(cast.project, [span(1, parent=2), span(2, parent=1), span(3, parent=3)])
    assert Trajectory.objects.get().step_count == 3


def test_rollouts_belong_to_their_version_and_are_not_for_detectors(cast: Cast, build: Build) -> None:
    version = build.version()
    task: Any = None
    rollout = Rollout(
        task,
        0,
        1,
        [
            Message("system", "s"),
            Message("user", "Do it"),
            Message("assistant", '{"tool": "email.send", "arguments": {}}'),
        ],
        [ChatResponse("…", finish_reason="stop", tokens_in=5, tokens_out=7, latency_ms=250)],
    )
    traces = [
        trace_of_rollout(rollout, trace_id=f"r{index}", started_at=datetime(2026, 1, 1, tzinfo=UTC), session_id="c-1")
        for index in range(3)
    ]
    with CaptureQueriesContext(connection) as few:
        rows = store_rollouts(cast.project, traces, version=version)
    assert [row.trace_id for row in rows] == ["r0", "r1", "r2"]
    row = Trajectory.objects.get(pk=rows[1].pk)
    assert (row.version, row.agent, row.source, row.latency_ms, row.tokens) == (
        version,
        version.agent,
        Source.ROLLOUT,
        250.0,
        12,
    )
    assert row.tool_names == ["email.send"]
    assert unread() == []
    assert not Batch.objects.exists()
    again = store_rollouts(cast.project, traces, version=version)
    assert [row.pk for row in again] == [row.pk for row in rows]
    many = [
        trace_of_rollout(rollout, trace_id=f"m{index}", started_at=datetime(2026, 1, 1, tzinfo=UTC))
        for index in range(60)
    ]
    with CaptureQueriesContext(connection) as more:
        store_rollouts(cast.project, many, version=version)
    assert len(more) == len(few)


def test_an_attempt_without_an_answer_says_why(cast: Cast) -> None:
    task: Any = None
    rollout = Rollout(task, 0, 1, [Message("user", "Do it")], [ChatResponse(error="the server is away", latency_ms=5)])
    (row,) = store_rollouts(
        cast.project, [trace_of_rollout(rollout, trace_id="r", started_at=datetime(2026, 1, 1, tzinfo=UTC))]
    )
    assert (row.error_count, row.steps.get(position=1).error) == (1, "the server is away")


def test_the_number_of_queries_does_not_grow_with_the_batch(cast: Cast) -> None:
    def cost(trajectories: int, prefix: str) -> int:
        spans = [
            item for index in range(trajectories) for item in episode(f"{prefix}{index:0>31}", calls=1 + index % 3)
        ]
        with CaptureQueriesContext(connection) as queries:
            write(cast.project, parts(spans), source=Source.PRODUCTION)
        return len(queries)

    cost(1, "a")  # makes the agent
    assert cost(30, "b") == cost(2, "c")


@pytest.mark.django_db(transaction=True)
def test_writers_of_the_same_trajectories_do_not_disturb_each_other() -> None:
    project = Project.objects.create(slug="busy", name="Busy")
    spans = [item for index in range(1, 9) for item in episode(f"{index:032x}")]
    failures: list[BaseException] = []

    def run(mine: list[Any]) -> None:
        try:
            for start in range(0, len(mine), 7):
                send(project, mine[start : start + 7])
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [
        threading.Thread(target=run, args=(order,)) for order in (spans, spans[::-1], spans[::2] + spans[1::2], spans)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    alone = Project.objects.create(slug="alone", name="Alone")
    send(alone, spans)
    assert stored(project) == stored(alone)
    batches = Batch.objects.filter(project=project)
    assert sum(batch.inserted for batch in batches) == len(spans)
    assert Agent.objects.filter(project=project).count() <= 3


def test_the_statement_that_takes_trajectories_is_planned_once_per_connection(cast: Cast) -> None:
    for number in range(1, 3):
        store_rollouts(cast.project, [Trace(f"{number:032x}", steps=[Step("a", "other")])])
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        prepared = [statement for (statement,) in cursor.fetchall()]
    assert sum("FOR NO KEY UPDATE" in text for text in prepared) == 1
    assert connection.connection.prepare_threshold is None, "Django's own statements hold their values"


@pytest.mark.parametrize(
    ("statement", "indexes"),
    [(trajectory_rows.LOCK, ["trajectory_once"]), (attachments.WAITING, ["feedback_of", "event_once"])],
)
def test_what_is_planned_once_is_planned_well_on_empty_tables(cast: Cast, statement: str, indexes: list[str]) -> None:
    numbers = itertools.count(1)
    generic = re.sub("%s", lambda _: f"${next(numbers)}", statement)
    with connection.cursor() as cursor:
        for table in ("trajectory", "feedback", "event"):  # of which autovacuum may know that others tried it
            cursor.execute("SELECT pg_clear_relation_stats('public', %s)", [f"trajectories_{table}"])
        cursor.execute(f"EXPLAIN (GENERIC_PLAN) {generic}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    found = re.findall(
        r"using (\w+) on .*\n *Index Cond: \(\(project_id = \$\d\) AND \(+trace_id\)?(?:::text)? = asked", plan
    )
    assert found == indexes


def test_new_trajectories_begin_as_django_makes_them_and_share_nothing(cast: Cast) -> None:
    now = timezone.now()
    blank = store_module._blank(cast.project, Source.PRODUCTION, now)
    made, other = (store_module._new(blank, trace_id) for trace_id in ("a", "b"))
    same = Trajectory(
        project=cast.project, trace_id="a", source=Source.PRODUCTION, started_at=now, received_at=now, changed_at=now
    )
    assert {field.attname: getattr(made, field.attname) for field in Trajectory._meta.concrete_fields} == {
        field.attname: getattr(same, field.attname) for field in Trajectory._meta.concrete_fields
    }
    assert made.project is cast.project
    assert made._state.adding
    assert made._state is not other._state
    values = vars(made).items()
    assert [name for name, value in values if isinstance(value, list | dict) and value is vars(other)[name]] == []
