"""One conversation is one trajectory, also where every model call comes as a trace of its own."""

import itertools
import json
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.accounts.models import Project, User
from flywheel.core.traces import Message, Step, ToolCall, Trace
from flywheel.trajectories.annotations import feedback
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Event, Feedback, Label, ModelCall, Source, Trajectory
from flywheel.trajectories.store import continuations
from flywheel.trajectories.store.merge import store
from flywheel.trajectories.store.rows.trajectory_rows import HOMES, homes_of
from flywheel.trajectories.store.stored_traces import trace_of
from tests.conftest import Cast
from tests.trajectories.talking import body_of, span

pytestmark = pytest.mark.django_db

Said = dict[str, Any]
Headers = dict[str, str]
slugs = itertools.count()


def said(role: str, content: str = "", *, calls: str = "", answers: str = "") -> Said:
    message: Said = {"role": role, "content": content}
    if calls:
        message["call"] = calls
    if answers:
        message["answers"] = answers
    return message


def talk(topic: str) -> list[tuple[list[Said], Said]]:
    """A conversation of three model calls: the history that each is given, and its answer."""
    asked = [said("system", "Help."), said("user", f"Where is order {topic}?")]
    looked = said("assistant", calls=topic)
    told = [*asked, looked, said("tool", "packed", answers=topic)]
    answered = said("assistant", f"{topic} is packed.")
    more = [*told, answered, said("user", "And when does it come?")]
    return [(asked, looked), (told, answered), (more, said("assistant", "On Friday."))]


def attributes(history: list[Said], answer: Said) -> dict[str, Any]:
    """As OpenInference's instrumentation of the openai SDK writes them."""
    found: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "gpt-4.1-mini"}
    for side, messages in (("input", history), ("output", [answer])):
        for index, message in enumerate(messages):
            at = f"llm.{side}_messages.{index}.message"
            found[f"{at}.role"] = message["role"]
            if message["content"]:
                found[f"{at}.content"] = message["content"]
            if "call" in message:
                call = f"{at}.tool_calls.0.tool_call"
                found[f"{call}.id"] = f"call_{message['call']}"
                found[f"{call}.function.name"] = "find_order"
                found[f"{call}.function.arguments"] = json.dumps({"order_id": message["call"]})
            if "answers" in message:
                found[f"{at}.tool_call_id"] = f"call_{message['answers']}"
    return found


def call(
    number: int, history: list[Said], answer: Said, *, session: str = "", at_ms: int | None = None, error: str = ""
) -> Any:
    """A model call as a trace of its own."""
    named = {"session.id": session} if session else {}
    said_of = attributes(history, answer) | named
    at = number * 100 if at_ms is None else at_ms
    return span(number, at_ms=at, trace=f"{number:032x}", name="ChatCompletion", error=error, **said_of)


def calls_of(topic: str, first: int, session: str = "") -> list[Any]:
    return [
        call(first + index, history, answer, session=session) for index, (history, answer) in enumerate(talk(topic))
    ]


def send(project: Project, spans: list[Any]) -> Any:
    parts: list[Span] = otlp_traces.decode(body_of(spans), otlp_traces.PROTOBUF).spans
    return store(project, parts, source=Source.PRODUCTION, format="otlp")


def together(project: Project) -> set[frozenset[str]]:
    """The span ids of each trajectory."""
    rows = Trajectory.objects.filter(project=project)
    return {frozenset(row.steps.values_list("span_id", flat=True)) for row in rows}


def ids(*numbers: int) -> frozenset[str]:
    return frozenset(f"{number:016x}" for number in numbers)


@pytest.mark.parametrize("session", ["s-1", ""])
def test_calls_that_continue_each_other_are_one_trajectory(cast: Cast, session: str) -> None:
    for sent in calls_of("A", 1, session):
        send(cast.project, [sent])
    row = Trajectory.objects.get(project=cast.project)
    assert row.trace_id == f"{1:032x}"
    assert row.step_count == 3
    assert row.title == "Where is order A?"
    assert [message.role for message in trace_of(row).conversation()] == [
        "system", "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip


@pytest.mark.parametrize("session", ["s-1", ""])
@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_neither_order_nor_grouping_nor_repetition_matters(cast: Cast, session: str, data: st.DataObject) -> None:
    project = Project.objects.create(slug=f"stitched-{next(slugs)}", name="Stitched")
    every = [*calls_of("A", 1, session), *calls_of("B", 11, session), *calls_of("C", 21, session and "s-2")]
    sent = data.draw(st.permutations([*every, *data.draw(st.lists(st.sampled_from(every), max_size=3))]))
    while sent:
        some = data.draw(st.integers(1, len(sent)))
        send(project, sent[:some])
        sent = sent[some:]
    assert together(project) == {ids(1, 2, 3), ids(11, 12, 13), ids(21, 22, 23)}
    for row in Trajectory.objects.filter(project=project):
        starts = [step.started_at for step in row.steps.order_by("position") if step.started_at]
        assert starts == sorted(starts)
        assert row.step_count == 3


def test_spans_that_come_again_are_duplicates(cast: Cast) -> None:
    every = calls_of("A", 1, "s-1")
    assert send(cast.project, every).inserted == 3
    again = [send(cast.project, [sent]) for sent in every]
    assert [(batch.inserted, batch.duplicate) for batch in again] == [(0, 1)] * 3
    assert Trajectory.objects.get().step_count == 3


def test_what_differs_in_white_space_or_instructions_alone_goes_on(cast: Cast) -> None:
    first, second, _ = talk("A")
    spaced = [said("system", "Help. It is 12:04.")] + [{**m, "content": f"  {m['content']}\n"} for m in second[0][1:]]
    send(cast.project, [call(1, *first), call(2, spaced, second[1])])
    assert together(cast.project) == {ids(1, 2)}


def test_a_summary_of_the_history_is_not_its_continuation(cast: Cast) -> None:
    first, second, third = talk("A")
    short = [said("system", "Help."), said("user", "Order A is packed."), third[0][-1]]
    send(cast.project, [call(1, *first), call(2, *second), call(3, short, third[1])])
    assert together(cast.project) == {ids(1, 2), ids(3)}


def test_sessions_agents_and_projects_are_kept_apart(cast: Cast) -> None:
    first, second, _ = talk("A")
    send(cast.project, [call(1, *first, session="s-1"), call(2, *second, session="s-2")])
    other = Project.objects.create(slug="next-door", name="Next door")
    send(other, [call(3, *second, session="s-1")])
    assert together(cast.project) == {ids(1), ids(2)}
    assert together(other) == {ids(3)}


def test_a_branch_stays_where_the_session_is_named(cast: Cast) -> None:
    first, second, third = talk("A")
    edited = [*third[0][:-1], said("user", "Cancel it.")]
    send(cast.project, [call(1, *first, session="s"), call(2, *second, session="s"), call(3, *third, session="s")])
    send(cast.project, [call(4, edited, said("assistant", "Cancelled."), session="s")])
    assert together(cast.project) == {ids(1, 2, 3, 4)}


def test_a_branch_is_a_new_trajectory_where_nobody_named_the_session(cast: Cast) -> None:
    first, second, third = talk("A")
    edited = [*third[0][:-1], said("user", "Cancel it.")]
    send(cast.project, [call(1, *first), call(2, *second), call(3, *third)])
    send(cast.project, [call(4, edited, said("assistant", "Cancelled."))])
    assert together(cast.project) == {ids(1, 2, 3), ids(4)}


def test_conversations_that_are_alike_word_for_word_stay_several(cast: Cast) -> None:
    """As when a test suite asks the same every night, and the model says the same."""
    for start in (1, 11, 21):
        for sent in calls_of("A", start):
            send(cast.project, [sent])
    assert together(cast.project) == {ids(1, 2, 3), ids(11, 12, 13), ids(21, 22, 23)}


def test_conversations_that_begin_alike_at_the_same_time_stay_several(cast: Cast) -> None:
    hello = [said("user", "Hi")]
    greeting = said("assistant", "Hello!")
    send(cast.project, [call(1, hello, greeting), call(2, hello, greeting)])
    for number, words in ((3, "A refund."), (4, "The weather?")):
        history = [*hello, greeting, said("user", words)]
        send(cast.project, [call(number, history, said("assistant", f"On {words}"))])
    assert sorted(map(len, together(cast.project))) == [2, 2]


@pytest.mark.parametrize("session", ["s-1", ""])
def test_a_call_that_failed_is_followed_by_its_retry(cast: Cast, session: str) -> None:
    first, second, _ = talk("A")
    failed = call(2, second[0], said("assistant"), session=session, error="429")
    send(cast.project, [call(1, *first, session=session), failed, call(3, *second, session=session)])
    assert together(cast.project) == {ids(1, 2, 3)}


@pytest.mark.parametrize("session", ["", "s-1"])
@pytest.mark.parametrize("begun", [0, 1])
def test_a_call_that_failed_twice_is_followed_by_its_retry(cast: Cast, session: str, begun: int) -> None:
    first, second, third = talk("A-17")
    before, again, after = ([], first, second) if begun == 0 else ([first], second, third)
    spans = [call(number, *each, session=session) for number, each in enumerate(before, 1)]
    for number in (2, 3):
        spans.append(call(number, again[0], said("assistant"), session=session, error="429"))
    spans += [call(4, *again, session=session), call(5, *after, session=session)]
    for each in spans:
        send(cast.project, [each])
    assert Trajectory.objects.count() == 1


def test_calls_whose_senders_count_their_spans_in_each_trace_lose_nothing(cast: Cast) -> None:
    first, second, _ = talk("A-17")
    one, other = call(1, *first), call(2, *second)
    other.span_id = one.span_id
    for each in (one, other):
        send(cast.project, [each])
    assert sorted(Trajectory.objects.values_list("step_count", flat=True)) == [1, 1]


def test_what_has_a_span_of_its_own_above_stays_what_it_is(cast: Cast) -> None:
    first, second, _ = talk("A")
    for number, (history, answer) in ((1, first), (2, second)):
        trace = f"{number:032x}"
        root = span(number + 100, trace=trace, name="agent", openinference__span__kind="AGENT", session__id="s")
        inner = span(number, parent=number + 100, trace=trace, session__id="s", **attributes(history, answer))
        send(cast.project, [root, inner])
    assert Trajectory.objects.filter(project=cast.project).count() == 2
    assert not ModelCall.objects.exists()


def test_calls_without_content_are_not_put_together(cast: Cast) -> None:
    bare = [span(number, trace=f"{number:032x}", session__id="s", openinference__span__kind="LLM") for number in (1, 2)]
    send(cast.project, bare)
    assert together(cast.project) == {ids(1), ids(2)}


def test_spans_below_a_call_that_came_before_it_come_along(cast: Cast) -> None:
    first, second, _ = talk("A")
    send(cast.project, [call(1, *first, session="s")])
    below = span(50, parent=2, trace=f"{2:032x}", at_ms=201, name="POST /chat/completions")
    feedback.give(cast.project, [{"trace_id": f"{2:032x}", "key": "outcome", "value": "failed"}])
    assert send(cast.project, [below]).inserted == 1
    assert Trajectory.objects.filter(project=cast.project).count() == 2
    batch = send(cast.project, [call(2, *second, session="s")])
    assert (batch.inserted, batch.duplicate) == (1, 0)
    row = Trajectory.objects.get(project=cast.project)
    assert together(cast.project) == {ids(1, 2, 50)}
    assert (row.outcome, row.feedback_count) == ("failed", 1)
    late = span(51, parent=2, trace=f"{2:032x}", at_ms=202, name="GET /models")
    send(cast.project, [late])
    assert together(cast.project) == {ids(1, 2, 50, 51)}


def test_what_a_person_has_decided_about_is_not_taken_into_another(cast: Cast) -> None:
    first, second, _ = talk("A")
    send(cast.project, [call(1, *first, session="s")])
    send(cast.project, [span(50, parent=2, trace=f"{2:032x}", at_ms=201, name="POST /chat/completions")])
    Trajectory.objects.filter(trace_id=f"{2:032x}").update(label=Label.PASS)
    send(cast.project, [call(2, *second, session="s")])
    assert together(cast.project) == {ids(1), ids(2, 50)}


@pytest.mark.parametrize("number", [1, 2])
def test_feedback_finds_its_call_before_it_and_after(cast: Cast, number: int) -> None:
    first, second, _ = talk("A")
    given = {"trace_id": f"{number:032x}", "key": "helpful", "value": 1, "by": "before"}
    feedback.give(cast.project, [given])
    send(cast.project, [call(1, *first, session="s")])
    send(cast.project, [call(2, *second, session="s")])
    feedback.give(cast.project, [{**given, "by": "after"}])
    row = Trajectory.objects.get(project=cast.project)
    assert row.feedback_count == 2
    assert set(Feedback.objects.values_list("trace_id", flat=True)) == {row.trace_id}
    assert feedback.give(cast.project, [{**given, "by": "after"}]).duplicate == 1
    assert not Event.objects.exists()


def test_ids_of_later_traces_lead_to_the_trajectory(cast: Cast) -> None:
    send(cast.project, calls_of("A", 1, "s"))
    first = f"{1:032x}"
    assert homes_of(cast.project.pk, [f"{number:032x}" for number in (1, 2, 3, 4)]) == {
        f"{number:032x}": first for number in (1, 2, 3)
    }
    Trajectory.objects.all().delete()
    assert not ModelCall.objects.exists()


def gateway_call(number: int, history: list[Message], answer: Message, thread: str = "gateway 1") -> Trace:
    step = Step(f"{number:016x}", "assistant", input=history, output=[answer])
    return Trace(f"{number:032x}", [step], thread=thread)


def test_calls_that_no_span_brought_are_put_together_by_their_thread(cast: Cast) -> None:
    asked = [Message("user", "Where is order A?")]
    looked = Message("assistant", tool_calls=(ToolCall("c1", "find_order", {"id": "A"}),))
    told = [*asked, looked, Message("tool", "packed", tool_call_id="c1")]
    for number, (history, answer) in enumerate([(asked, looked), (told, Message("assistant", "It is packed."))], 1):
        store(cast.project, [gateway_call(number, history, answer)], source=Source.PRODUCTION, format="gateway")
    other = gateway_call(3, told, Message("assistant", "It is packed."), thread="gateway 2")
    unsaid = gateway_call(4, told, Message("assistant", "It is packed."), thread="")
    store(cast.project, [other, unsaid], source=Source.PRODUCTION, format="gateway")
    assert together(cast.project) == {ids(1, 2), ids(3), ids(4)}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("session", ["s-1", ""])
def test_calls_that_come_at_the_same_moment_are_put_together(cast: Cast, session: str) -> None:
    every = [sent for index in range(6) for sent in calls_of(f"T{index}", 1 + 10 * index, session)]
    random.Random(7).shuffle(every)
    ready = threading.Barrier(6)
    failed: list[BaseException] = []

    def work(some: list[Any]) -> None:
        try:
            ready.wait()
            for sent in some:
                send(cast.project, [sent])
        except BaseException as error:
            failed.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=[every[index::6]]) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert together(cast.project) == {ids(*range(1 + 10 * index, 4 + 10 * index)) for index in range(6)}


def test_a_long_conversation_is_looked_up_by_index(cast: Cast) -> None:
    """However many calls there are, the neighbours of one are found by its points."""
    send(cast.project, calls_of("A", 1, "s"))
    row = Trajectory.objects.get(project=cast.project)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO trajectories_modelcall (project_id, trajectory_id, trace_id, span_id, reaches, passes)"
            " SELECT %s, %s, md5(n::text), left(md5(n::text), 16), gen_random_uuid(),"
            " ARRAY[gen_random_uuid(), gen_random_uuid()] FROM generate_series(1, 35000) AS n",
            [cast.project.pk, row.pk],
        )
        cursor.execute("ANALYZE trajectories_modelcall")
        point = ["00000000-0000-0000-0000-000000000001"]
        cursor.execute(f"EXPLAIN {continuations.NEIGHBOURS}", [point, cast.project.pk, point, cast.project.pk])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "model_call_end" in plan
    assert "model_call_points" in plan
    assert "Seq Scan" not in plan


@pytest.mark.parametrize(
    ("statement", "index"), [(HOMES, "model_call_once"), (continuations.NEIGHBOURS, "model_call_end")]
)
def test_what_every_request_asks_is_planned_well_on_empty_tables(cast: Cast, statement: str, index: str) -> None:
    numbers = itertools.count(1)
    generic = re.sub("%s", lambda _: f"${next(numbers)}", statement)
    with connection.cursor() as cursor:
        for table in ("trajectory", "modelcall"):
            cursor.execute("SELECT pg_clear_relation_stats('public', %s)", [f"trajectories_{table}"])
        cursor.execute(f"EXPLAIN (GENERIC_PLAN) {generic}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert index in plan
    assert "trajectories_trajectory_pkey" in plan
    assert "Seq Scan" not in plan


def test_pages_api_and_filters_find_it_by_each_of_its_ids(
    cast: Cast, client: Client, key: Callable[..., Headers], sign_in: Callable[[User], Client]
) -> None:
    send(cast.project, calls_of("A", 1, "s"))
    row, reader = Trajectory.objects.get(), key("read")
    for number in (1, 2, 3):
        trace = f"{number:032x}"
        found = client.get(f"/api/v1/trajectories/{trace}", headers=reader).json()
        assert (found["trace_id"], len(found["steps"])) == (row.trace_id, 3)
        listed = client.get("/api/v1/trajectories", {"q": f"trace:{trace}"}, headers=reader).json()["items"]
        assert [item["trace_id"] for item in listed] == [row.trace_id]
        page = reverse("trajectories:detail", args=[cast.project.slug, trace])
        assert sign_in(cast.viewer).get(page).status_code == 200


def test_a_bridge_makes_one_of_two(cast: Cast) -> None:
    """The calls between come later than the window is wide."""
    every: list[Any] = []
    history: list[Said] = []
    for number in range(1, 8):
        history = [*history, said("user", f"Question {number}?")]
        answer = said("assistant", f"Answer {number}.")
        every.append(call(number, history, answer, session="s"))
        history = [*history, answer]
    send(cast.project, [every[0]])
    send(cast.project, [every[6]])
    assert together(cast.project) == {ids(1), ids(7)}
    batches = [send(cast.project, [each]) for each in every[1:6]]
    assert together(cast.project) == {ids(*range(1, 8))}
    assert sum(batch.inserted for batch in batches) == 5
    row = Trajectory.objects.get()
    assert row.step_count == 7
    assert ModelCall.objects.filter(trajectory=row).count() == 7
