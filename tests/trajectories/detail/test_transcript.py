"""One trajectory: it reads as a conversation, a window at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.models import User
from flywheel.core.traces import Intervention, Message, Step, ToolCall, Trace
from flywheel.evals.models import EvalRun, Result
from flywheel.trajectories.detail import transcript
from flywheel.trajectories.detail.transcript import conversation_of
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Source, Trajectory
from flywheel.trajectories.models import Step as StepRow
from flywheel.trajectories.store.merge import Part, store
from flywheel.trajectories.store.stored_traces import step_of
from tests.conftest import Build, Cast, proposed
from tests.trajectories import talking
from tests.trajectories.lengthy import long_trajectory

SignIn = Callable[[User], Client]


def url(row: Trajectory, name: str = "detail") -> str:
    return reverse(f"trajectories:{name}", args=["acme", row.trace_id])


def keep(cast: Cast, parts: Sequence[Part], source: str = Source.PRODUCTION) -> Trajectory:
    store(cast.project, parts, source=source, format="test")
    return Trajectory.objects.get(project=cast.project, trace_id=parts[0].trace_id)


@pytest.fixture
def talk(cast: Cast) -> Trajectory:
    return keep(cast, otlp_traces.decode(talking.body_of(talking.episode()), otlp_traces.PROTOBUF).spans)


@pytest.fixture
def endless(cast: Cast) -> Trajectory:
    return long_trajectory(cast.project)


def test_a_conversation_says_each_message_once(talk: Trajectory) -> None:
    turns = [(turn.kind, turn.name or turn.text) for turn in conversation_of(talk)]
    assert turns == [
        ("system", "Help."),
        ("user", "Where is my order?"),
        ("call", "orders.find"),
        ("observation", "orders.find"),
        ("call", "orders.find"),
        ("observation", "orders.find"),
        ("assistant", "It comes on Friday."),
    ]


def test_a_turn_stands_for_its_step(talk: Trajectory) -> None:
    standing = [(turn.kind, turn.step.kind) for turn in conversation_of(talk) if turn.step]
    assert standing == [
        ("call", "assistant"),
        ("observation", "tool"),
        ("call", "assistant"),
        ("observation", "tool"),
        ("assistant", "assistant"),
    ]


def test_a_tool_that_nobody_was_seen_to_call_shows_its_call(cast: Cast) -> None:
    row = keep(cast, [Trace("t", [Step("x", "tool", tool_name="cron", arguments={"at": "noon"}, result={"ok": True})])])
    turns = conversation_of(row)
    assert [(turn.kind, turn.name) for turn in turns] == [("call", "cron"), ("observation", "cron")]
    assert turns[0].content == {"at": "noon"}


def test_calls_written_as_text_are_calls_and_broken_ones_are_text(cast: Cast) -> None:
    good, bad = '{"tool": "email.send", "arguments": {"to": "Bako"}}', '{"tool": "email.send", "argu'
    row = keep(cast, [Trace.from_messages("t", [Message("assistant", good), Message("assistant", bad)])])
    assert [(turn.kind, turn.name, turn.text) for turn in conversation_of(row)] == [
        ("call", "email.send", good),
        ("assistant", "", bad),
    ]


def test_errors_interventions_and_other_spans(cast: Cast) -> None:
    trace = Trace(
        "t",
        [
            Step("u", "user", output=[Message("user", "hi")]),
            Step("h", "other", "GET /orders"),
            Step("b", "other", "POST /refund", status="error", error="timed out"),
            Step("r", "retrieval", "search", arguments={"query": "kettle"}, result=[{"content": "A kettle boils."}]),
            Step(
                "a",
                "assistant",
                output=[Message("assistant", "", (ToolCall("c", "pay", "{oops"),))],
                status="error",
                error="cut off",
            ),
        ],
        interventions=[Intervention("b", "took_over", "ada"), Intervention("", "stopped", "bo")],
    )
    turns = conversation_of(keep(cast, [trace]))
    assert [(turn.kind, turn.name or turn.text) for turn in turns] == [
        ("user", "hi"),
        ("error", "POST /refund"),
        ("intervention", "took_over"),
        ("call", "search"),
        ("observation", "search"),
        ("call", "pay"),
        ("intervention", "stopped"),
    ]
    assert turns[5].is_broken


def test_a_window_does_not_repeat_the_history_before_it(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    row = keep(cast, otlp_traces.decode(talking.body_of(talking.episode(calls=6)), otlp_traces.PROTOBUF).spans)
    whole = [(turn.kind, turn.text, turn.name) for turn in conversation_of(row)]
    for limit in (1, 2, 3, 5):
        windows = [
            (turn.kind, turn.text, turn.name)
            for start in range(0, row.step_count, limit)
            for turn in conversation_of(row, start, limit)
        ]
        assert windows == whole


def test_the_page_shows_what_happened(cast: Cast, talk: Trajectory, sign_in: SignIn) -> None:
    proposed(talk, "wrong_tool", step=f"{10:016x}", evidence="<b>because</b>")
    response = sign_in(cast.viewer).get(url(talk))
    content = response.content.decode()
    for text in ("It comes on Friday.", "orders.find", "shipped 1", "no such order", "✓</span> success", "conv-1"):
        assert text in content
    assert "&lt;b&gt;because&lt;/b&gt;" in content
    assert "fails here" in content
    assert "Label" not in content.split("</header>")[1]


def test_a_reviewer_is_led_to_the_label(cast: Cast, talk: Trajectory, sign_in: SignIn) -> None:
    assert (
        reverse("failures:review", args=["acme", talk.trace_id])
        in sign_in(cast.reviewer).get(url(talk)).content.decode()
    )


def test_the_chosen_step_is_shown_as_it_arrived(talk: Trajectory, cast: Cast, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)
    chosen = f"{11:016x}"
    content = client.get(url(talk), {"step": chosen}).content.decode()
    assert "Preview" in content
    assert "gen_ai.tool.call.arguments" not in content
    raw = client.get(url(talk), {"step": chosen, "side": "raw"}).content.decode()
    assert "gen_ai.tool.call.arguments" in raw
    fragment = client.get(url(talk, "step"), {"step": chosen, "side": "raw"}).content.decode()
    assert "gen_ai.tool.call.arguments" in fragment
    assert "<html" not in fragment
    assert f'data-chosen="{chosen}"' in client.get(url(talk, "step"), {"at": 2}).content.decode()
    assert "has no step" in client.get(url(talk), {"step": "nope"}).content.decode()
    assert client.get(url(talk, "step"), {"step": "nope"}).status_code == 404
    assert client.get(url(talk, "step"), {"at": 99}).status_code == 404


def test_thirty_five_thousand_steps_open_a_window_at_a_time(cast: Cast, endless: Trajectory, sign_in: SignIn) -> None:
    client = sign_in(cast.viewer)

    def visit(name: str = "detail", **query: Any) -> Any:
        with CaptureQueriesContext(connection) as queries:
            response = client.get(url(endless, name), query)
        assert len(queries) < 40
        assert not any("received_at" in query["sql"] and "COUNT" in query["sql"] for query in queries)
        return response

    first = visit().content.decode()
    assert first.count('id="step-') <= transcript.SCREEN
    assert "Answer 38" in first
    assert "Answer 40" not in first
    assert "35\N{NARROW NO-BREAK SPACE}000" in first
    further = visit("conversation", start=200).content.decode()
    assert "Answer 204" in further
    assert "Answer 198" not in further
    assert "Go on" not in further
    jumped = visit(step="s30001")
    assert jumped.context["start"] == 30_000
    assert "Answer 30004" in jumped.content.decode()
    last = visit(start=34_990)
    assert last.context["next_start"] is None
    assert visit(start=99_999_999_999).status_code == 200


def test_the_page_of_a_long_trajectory_reads_only_the_bodies_that_it_shows(
    cast: Cast, endless: Trajectory, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def noted(row: StepRow) -> Step:
        read.append(row.position)
        return step_of(row)

    monkeypatch.setattr(transcript, "step_of", noted)
    sign_in(cast.viewer).get(url(endless), {"start": 20_000})
    assert len(read) < 2 * transcript.SCREEN
    assert {position for position in read if position > 10} <= set(range(19_990, 20_040))


@pytest.mark.parametrize("start", ["-1", "x", "9" * 30, "1.5", ""])
def test_a_start_that_is_none_is_the_beginning(cast: Cast, talk: Trajectory, sign_in: SignIn, start: str) -> None:
    assert sign_in(cast.viewer).get(url(talk), {"start": start}).context["start"] == 0


def test_a_rollout_shows_its_verdict_and_where_it_comes_from(cast: Cast, build: Build, sign_in: SignIn) -> None:
    version, task_set = build.version(), build.task_set()
    run = EvalRun.objects.create(
        project=cast.project, created_by=cast.builder, version=version, task_set=task_set, verifier_digest="d"
    )
    row = build.trajectory(source=Source.ROLLOUT, version=version)
    task = task_set.tasks.first()
    assert task is not None
    Result.objects.create(
        run=run,
        task=task,
        sample=0,
        seed=1,
        trajectory=row,
        score=0.25,
        success=False,
        parts={"right tool": 0.0, "executes": None},
        reason="the tool is email.send",
    )
    response = sign_in(cast.viewer).get(url(row))
    content = response.content.decode()
    for text in ("0.25", "right tool", "the tool is email.send", "not scored"):
        assert text in content
    assert [link["label"] for link in response.context["lineage"]] == [str(version), f"task {task}", str(run), str(row)]
