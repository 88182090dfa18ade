"""Feedback by API and by telemetry: what holds, what is history, and what it does to the trajectory."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from flywheel.accounts.models import Project, User
from flywheel.core.traces import Message, Step, Trace
from flywheel.trajectories.annotations.feedback import MOST, give
from flywheel.trajectories.formats.otlp.spans import Event as SpanEvent
from flywheel.trajectories.formats.otlp.spans import Span
from flywheel.trajectories.formats.semantics import judgments
from flywheel.trajectories.models import Feedback, Source, Trajectory
from flywheel.trajectories.search import query
from flywheel.trajectories.store.merge import store
from tests.conftest import Build, Cast
from tests.trajectories import talking
from tests.trajectories.store.test_log_events import send, tell
from tests.trajectories.talking import TRACE, episode, span
from tests.trajectories.telling import evaluation

URL = "/api/v1/feedback"
SignIn = Callable[[User], Client]


def item(key: str = "helpful", value: Any = True, **more: Any) -> dict[str, Any]:
    return {"trace_id": TRACE, "key": key, "value": value, **more}


@pytest.fixture
def post(client: Client, key: Callable[..., dict[str, str]]) -> Callable[[Any], Any]:
    headers = key("ingest")
    return lambda body: client.post(URL, json.dumps(body), content_type="application/json", headers=headers)


def outcome() -> str | None:
    return Trajectory.objects.get().outcome


# By API


def test_one_is_kept_and_the_same_again_is_one(cast: Cast, post: Callable[[Any], Any]) -> None:
    send(cast.project, episode())
    one = item(comment="Quick", source="end user", by="u-1", span_id=f"{1:016x}")
    answer = post(one)
    assert answer.status_code == 200
    assert answer.json() == {
        "received": 1,
        "stored": 1,
        "duplicate": 0,
        "rejected": 0,
        "waiting": 0,
        "problems": [],
    }
    assert post(one).json()["duplicate"] == 1
    row = Feedback.objects.get()
    assert (row.project, row.trace_id, row.span_id, row.key, row.value) == (
        cast.project,
        TRACE,
        f"{1:016x}",
        "helpful",
        True,
    )
    assert (row.comment, row.source, row.by, row.current) == ("Quick", "end_user", "u-1", True)
    assert Trajectory.objects.get().feedback_count == 1


@pytest.mark.parametrize("value", [True, False, 0, 1, 0.5, -3, "good", "1"])
def test_a_value_is_kept_as_it_is(cast: Cast, value: Any) -> None:
    assert give(cast.project, [item(value=value)]).stored == 1
    kept = Feedback.objects.get().value
    assert (kept, type(kept)) == (value, type(value))


def test_it_may_come_before_its_trajectory(cast: Cast, post: Callable[[Any], Any]) -> None:
    answer = post([item("outcome", "thumbs_down", source="end_user"), item()]).json()
    assert (answer["stored"], answer["waiting"]) == (2, 2)
    send(cast.project, episode())
    row = Trajectory.objects.get()
    assert (row.outcome, row.feedback_count) == ("failed", 2)


def test_good_siblings_are_kept_and_each_bad_item_is_named(cast: Cast, post: Callable[[Any], Any]) -> None:
    bad = [
        item(value=[1]),
        item(value=None),
        {"key": "helpful", "value": 1},
        item(key=""),
        item(source="oracle"),
        item("outcome", 0.7),
        item(at="2999-01-01T00:00:00Z"),
        item(at="yesterday"),
        item(valeu=1),
        "no object",
        item(value=float("nan")),
        item(value="x" * 1001),
        item(at="2026-01-01T00:00:00"),
    ]
    answer = post([item(), *bad, item("tone", "kind")])
    assert answer.status_code == 200
    body = answer.json()
    assert (body["received"], body["stored"], body["rejected"]) == (15, 2, 13)
    fields = [
        "value",
        "value",
        "trace_id",
        "key",
        "source",
        "value",
        "at",
        "at",
        "valeu",
        "item",
        "value",
        "value",
        "at",
    ]
    assert [problem["loc"] for problem in body["problems"]] == [[at, name] for at, name in enumerate(fields, 1)]
    assert all(problem["msg"] for problem in body["problems"])
    assert Feedback.objects.filter(project=cast.project).count() == 2


def test_nothing_good_is_an_error(cast: Cast, post: Callable[[Any], Any]) -> None:
    answer = post(item(value={}))
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["body", "value"])
    answer = post([item(source="x"), {**item(), "key": 1}])
    assert [detail["loc"] for detail in answer.json()["detail"]] == [["body", 0, "source"], ["body", 1, "key"]]
    assert post([]).json()["received"] == 0


def test_a_body_that_is_no_json_or_too_long_is_refused(
    client: Client, key: Callable[..., dict[str, str]], post: Callable[[Any], Any]
) -> None:
    broken = client.post(URL, "{", content_type="application/json", headers=key("ingest"))
    assert (broken.status_code, "JSON" in broken.json()["detail"]) == (400, True)
    assert post([item()] * (MOST + 1)).status_code == 413


def test_trouble_on_our_side_asks_to_send_again(
    cast: Cast, post: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr("flywheel.trajectories.store.attachments.held", away)
    assert post(item()).status_code == 503


def test_a_key_that_sends_cannot_read(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    give(cast.project, [item()])
    address = f"/api/v1/trajectories/{TRACE}/feedback"
    assert client.get(address, headers=key("ingest")).status_code == 403
    assert client.post(URL, "{}", content_type="application/json", headers=key("read")).status_code == 403
    read = client.get(address, headers=key("read")).json()
    assert [row["key"] for row in read["items"]] == ["helpful"]
    assert client.get(address, headers=key("read", by=cast.stranger, project=cast.elsewhere)).status_code == 404


def test_a_newer_word_of_the_same_giver_holds_and_the_older_is_history(cast: Cast) -> None:
    send(cast.project, episode())
    give(cast.project, [item(value=True, by="u-1"), item(value=True, by="u-2"), item(value=0.9, source="model")])
    give(cast.project, [item(value=False, by="u-1")])
    give(cast.project, [item(value=True, by="u-1")])
    rows = list(Feedback.objects.filter(by="u-1").order_by("id"))
    assert [(row.value, row.current) for row in rows] == [(True, False), (False, False), (True, True)]
    assert Trajectory.objects.get().feedback_count == 3


def test_an_older_word_that_comes_late_is_history(cast: Cast) -> None:
    now = timezone.now()
    give(cast.project, [item(value=1, at=now.isoformat())])
    give(cast.project, [item(value=2, at=(now - timedelta(days=1)).isoformat())])
    assert Feedback.objects.get(current=True).value == 1


def test_an_id_makes_it_one_for_ever(cast: Cast) -> None:
    assert give(cast.project, [item(value=1, id="a"), item(value=2, id="b")]).stored == 2
    again = give(cast.project, [item(value=1, id="a"), item(value=2, id="b")])
    assert (again.stored, again.duplicate) == (0, 2)
    other = give(cast.project, [item(value=3, id="a"), item(value=4, id="c"), item(value=5, id="c")])
    assert [(problem.index, problem.field) for problem in other.problems] == [(0, "id"), (2, "id")]
    assert give(cast.elsewhere, [item(value=3, id="a")]).stored == 1


def test_secrets_are_not_kept(cast: Cast) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 6
    give(cast.project, [item(comment=f"see {secret}"), item("why", f"used {secret}")])
    assert all(secret not in f"{row.comment}{row.value}" for row in Feedback.objects.all())


def test_hostile_text_is_kept(cast: Cast) -> None:
    report = give(cast.project, [item("a\x00b", "c\x00d", comment="\ud800", by="\x00", span_id="\x00" * 99)])
    assert report.stored == 1
    row = Feedback.objects.get()
    assert (row.key, row.value, row.comment) == ("a\u2400b", "c\u2400d", "\ufffd")


def test_a_trace_id_in_capitals_is_the_same(cast: Cast) -> None:
    send(cast.project, episode())
    assert give(cast.project, [{**item(), "trace_id": TRACE.upper()}]).waiting == 0


# Outcomes and interventions


@pytest.mark.parametrize(
    ("value", "means"),
    [
        (True, "success"),
        (1, "success"),
        ("Pass", "success"),
        ("👍", "success"),
        ("thumbs_up", "success"),
        (False, "failed"),
        (0.0, "failed"),
        ("FAILURE", "failed"),
        ("no", "failed"),
        ("👎", "failed"),
    ],
)
def test_an_outcome_is_understood(cast: Cast, value: Any, means: str) -> None:
    send(cast.project, [span(1)])
    give(cast.project, [item("outcome", value)])
    assert outcome() == means


def test_the_last_outcome_holds(cast: Cast) -> None:
    send(cast.project, episode())
    assert outcome() == "success"
    give(cast.project, [item("outcome", "failed")])
    assert outcome() == "failed"
    give(cast.project, [item("outcome", "success", at="2020-01-01T00:00:00Z")])
    assert outcome() == "failed"


def test_a_person_is_believed_before_a_machine(cast: Cast) -> None:
    send(cast.project, [span(1)])
    give(cast.project, [item("outcome", "failed", source="human")])
    give(cast.project, [item("outcome", "success", source="model")])
    send(cast.project, [span(2, at_ms=10**8, flywheel__outcome="success")])
    assert outcome() == "failed"
    give(cast.project, [item("outcome", "success", source="end_user")])
    assert outcome() == "success"


def test_a_changed_outcome_is_news_for_the_detectors_and_other_feedback_is_not(cast: Cast, woken: list[int]) -> None:
    send(cast.project, episode())
    before = Trajectory.objects.get().changed_at
    woken.clear()
    give(cast.project, [item()])
    assert (Trajectory.objects.get().changed_at, Trajectory.objects.get().feedback_count) == (before, 1)
    give(cast.project, [item("outcome", "failed")])
    assert Trajectory.objects.get().changed_at > before


@pytest.mark.django_db(transaction=True)
def test_a_changed_outcome_wakes_the_detectors(woken: list[int]) -> None:
    project = Project.objects.create(slug="awake", name="Awake")
    send(project, episode())
    woken.clear()
    give(project, [item()])
    assert woken == []
    give(project, [item("outcome", "failed")])
    assert woken == [project.pk]


@pytest.mark.parametrize(("first", "then"), [("success", "failed"), ("failed", "success")])
def test_a_file_imported_again_with_another_outcome_is_believed(cast: Cast, first: Any, then: Any) -> None:
    def part(said: Any) -> Trace:
        return Trace("t", [Step("u", "user", output=[Message("user", "hi")])], outcome=said)

    for said in (first, then):
        batch = store(cast.project, [part(said)], source=Source.IMPORT, format="atif")
        before = Trajectory.objects.get()
        assert before.outcome == said
    assert batch.duplicate == 1


@pytest.mark.django_db(transaction=True)
def test_another_outcome_of_the_same_steps_wakes_the_detectors(woken: list[int]) -> None:
    project = Project.objects.create(slug="again", name="Again")
    for said in ("success", "failed"):
        woken.clear()
        part = Trace("t", [Step("u", "user", output=[Message("user", "hi")])], outcome=said)
        store(project, [part], source=Source.IMPORT, format="atif")
        assert woken == [project.pk]


def test_an_intervention_is_one_of_the_trajectory(cast: Cast) -> None:
    send(cast.project, episode())
    first = item("intervention", "took_over", span_id=f"{2:016x}", by="ada", comment="Wrong order", source="human")
    give(cast.project, [first])
    give(cast.project, [first, item("intervention", True), item("intervention", False, by="bea")])
    found = [(each["step"], each["kind"], each["by"], each["note"]) for each in Trajectory.objects.get().interventions]
    assert sorted(found) == [("", "stepped_in", "code", ""), (f"{2:016x}", "took_over", "ada", "Wrong order")]


def test_an_intervention_in_telemetry_still_counts(cast: Cast) -> None:
    late = span(70, at_ms=70)
    event = late.events.add(name="flywheel.intervention", time_unix_nano=talking.START_NS)
    event.attributes.add(key="kind", value=talking.value("edited"))
    send(cast.project, [*episode(), late])
    assert [each["kind"] for each in Trajectory.objects.get().interventions] == ["edited"]


# By telemetry


def judged_span() -> Any:
    """A span that is evaluated by an event, and annotated."""
    found = span(7, at_ms=5, openinference__span__kind="CHAIN")
    event = found.events.add(name="gen_ai.evaluation.result", time_unix_nano=talking.START_NS + 9 * talking.MS)
    for key, value in {"name": "relevance", "score.label": "relevant", "explanation": "On the point"}.items():
        event.attributes.add(key=f"gen_ai.evaluation.{key}", value=talking.value(value))
    event.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = 0.9
    annotations: dict[str, dict[str, Any]] = {
        "annotations.0": {"name": "tone", "label": "rude", "annotator_kind": "HUMAN", "identifier": "ada"},
        "annotations.1": {"name": "length", "score": 3, "annotator_kind": "CODE"},
        "trace.annotations.0": {"name": "outcome", "label": "failed", "annotator_kind": "LLM"},
        "session.annotations.0": {"name": "mood", "explanation": "Cross in the end"},
        "annotations.2": {"name": "nothing"},
    }
    for place, fields in annotations.items():
        for key, value in fields.items():
            found.attributes.add(key=f"{place}.annotation.{key}", value=talking.value(value))
    return found


def test_judgments_in_spans_become_feedback(cast: Cast) -> None:
    for _ in range(2):
        send(cast.project, [judged_span()])
    rows = Feedback.objects.order_by("key")
    assert [(row.key, row.value, row.score, row.source, row.by, row.span_id != "") for row in rows] == [
        ("length", 3, 3.0, "code", "", True),
        ("mood", None, None, "code", "", False),
        ("outcome", "failed", None, "model", "", False),
        ("relevance", "relevant", 0.9, "code", "", True),
        ("tone", "rude", None, "human", "ada", True),
    ]
    assert [row.comment for row in rows if row.comment] == ["Cross in the end", "On the point"]
    assert (outcome(), Trajectory.objects.get().feedback_count) == ("failed", 5)


@pytest.mark.parametrize("first", ["judge", "judged"])
@pytest.mark.parametrize(("judged", "ends"), [(1, "failed"), (11, "success")])
def test_an_evaluator_judges_the_span_that_it_links_to(cast: Cast, first: str, judged: int, ends: str) -> None:
    judge = span(8, trace="d" * 32, openinference__span__kind="EVALUATOR")
    judge.links.add(trace_id=bytes.fromhex(TRACE), span_id=judged.to_bytes(8, "big"))
    for key, value in {"name": "outcome", "label": "incorrect", "annotator_kind": "HUMAN"}.items():
        judge.attributes.add(key=f"evaluations.0.evaluation.{key}", value=talking.value(value))
    for spans in ([judge], episode()) if first == "judge" else (episode(), [judge]):
        send(cast.project, spans)
    row = Feedback.objects.get()
    assert (row.trace_id, row.span_id) == (TRACE, f"{judged:016x}")
    found = Trajectory.objects.get(trace_id=TRACE)
    assert (found.outcome, found.feedback_count) == (ends, 1)
    assert Trajectory.objects.get(trace_id="d" * 32).feedback_count == 0


@pytest.mark.parametrize("first", ["logs", "spans"])
def test_evaluations_sent_as_logs_become_feedback(cast: Cast, first: str) -> None:
    about = [evaluation("outcome", label="fail", explanation="No refund"), evaluation("tone", None, value=0.25)]
    if first == "spans":
        send(cast.project, [span(1)])
    tell(cast.project, about)
    tell(cast.project, about)
    if first == "logs":
        send(cast.project, [span(1)])
    rows = Feedback.objects.order_by("key")
    assert [(row.key, row.value, row.score, row.comment) for row in rows] == [
        ("outcome", "fail", None, "No refund"),
        ("tone", 0.25, 0.25, ""),
    ]
    assert (outcome(), Trajectory.objects.get().feedback_count) == ("failed", 2)


def test_an_evaluation_in_a_span_and_as_a_log_is_one(cast: Cast) -> None:
    inside = span(1)
    event = inside.events.add(name="gen_ai.evaluation.result", time_unix_nano=talking.START_NS + 70 * talking.MS)
    event.attributes.add(key="gen_ai.evaluation.name", value=talking.value("tone"))
    event.attributes.add(key="gen_ai.evaluation.score.label", value=talking.value("kind"))
    send(cast.project, [inside])
    tell(cast.project, [evaluation("tone", label="kind")])
    assert Feedback.objects.count() == 1


def test_an_outcome_that_says_nothing_is_kept_and_warned_of(cast: Cast) -> None:
    odd = span(1)
    event = odd.events.add(name="gen_ai.evaluation.result", time_unix_nano=1)
    event.attributes.add(key="gen_ai.evaluation.name", value=talking.value("outcome"))
    event.attributes.add(key="gen_ai.evaluation.score.label", value=talking.value("so-so"))
    batch = send(cast.project, [odd])
    assert ["so-so" in warning for warning in batch.warnings] == [True]
    assert (Feedback.objects.get().value, outcome()) == ("so-so", None)


_odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just([{"annotation": 1}])
)
_names = st.builds(
    lambda scope, one, at, name: f"{scope}{one}s.{at}.{one}.{name}",
    st.sampled_from(["", "trace.", "session."]),
    st.sampled_from(["annotation", "evaluation"]),
    st.sampled_from(["0", "1", "x"]),
    st.sampled_from(["name", "label", "score", "explanation", "annotator_kind", "metadata.a"]),
) | st.sampled_from(["annotations", "annotations.0", "annotations.0.annotation"])


@given(
    attributes=st.dictionaries(_names, _odd, max_size=9),
    event=st.dictionaries(
        st.sampled_from([f"gen_ai.evaluation.{n}" for n in ("name", "score.value", "score.label")]), _odd
    ),
    links=st.lists(st.dictionaries(st.sampled_from(["trace_id", "span_id"]), _odd), max_size=2),
)
def test_whatever_a_span_holds_its_judgments_can_be_read(
    attributes: dict[str, Any], event: dict[str, Any], links: list[dict[str, Any]]
) -> None:
    found = judgments.of_span(
        Span("t", "s", attributes=attributes, events=[SpanEvent(judgments.EVALUATION, 0, event)], links=links)
    )
    for judged in found:
        assert judged.key
        assert judged.value is not None or judged.comment
        judgments.outcome_of(judged.value)


# Seen


def matching(cast: Cast, text: str) -> list[str]:
    asked = query.parse(text)
    assert not asked.problems
    return sorted(asked.apply(Trajectory.objects.filter(project=cast.project)).values_list("trace_id", flat=True))


def test_feedback_is_a_filter(cast: Cast, build: Build) -> None:
    for name in "abc":
        send(cast.project, [span(1, trace=name * 32)])
    about: dict[str, list[tuple[str, Any]]] = {
        "a": [("helpful", True), ("score.x", 0.75)],
        "b": [("helpful", "true"), ("score.x", 0.25)],
    }
    for name, said in about.items():
        give(cast.project, [{"trace_id": name * 32, "key": key, "value": value} for key, value in said])
    give(cast.project, [{"trace_id": "b" * 32, "key": "helpful", "value": False, "at": "2020-01-01T00:00:00Z"}])
    give(cast.elsewhere, [{"trace_id": "c" * 32, "key": "helpful", "value": True}])
    a, b, c = (name * 32 for name in "abc")
    assert matching(cast, "has:feedback") == [a, b]
    assert matching(cast, "-has:feedback") == [c]
    assert matching(cast, "feedback.helpful:true") == [a, b]
    assert matching(cast, "feedback.helpful:false") == []
    assert matching(cast, "feedback.score.x:>0.5") == [a]
    assert matching(cast, "feedback.score.x:0..0.5,0.75") == [a, b]
    assert matching(cast, "feedback.score.x:<=0.25") == matching(cast, "feedback.score.x:=0.25") == [b]
    assert matching(cast, "-feedback.score.x:0.25") == [a, c]
    assert query.parse("feedback:1").problems
    assert query.parse("feedback.x:").problems


def test_the_page_shows_what_holds_and_the_step_that_it_is_about(cast: Cast, sign_in: SignIn) -> None:
    send(cast.project, episode())
    step = f"{2:016x}"
    give(cast.project, [item("tone", "rude", comment="<b>Cross</b>", source="human", by="Ada", span_id=step)])
    give(cast.project, [item("tone", "kind", source="human", by="Ada", span_id=step), item("relevance", 0.5)])
    page = sign_in(cast.reviewer).get(f"/p/acme/trajectories/{TRACE}/").content.decode()
    for words in ("Feedback", "kind", "relevance", "0.5", "Ada", f"?step={step}", "rude", "&lt;b&gt;Cross&lt;/b&gt;"):
        assert words in page
    assert "2 pieces of feedback" in sign_in(cast.reviewer).get("/p/acme/trajectories/").content.decode()


def test_the_api_answers_feedback(cast: Cast, client: Client, key: Callable[..., dict[str, str]]) -> None:
    send(cast.project, episode())
    give(cast.project, [item(value=1), item("tone", "kind", by="x")])
    give(cast.project, [item(value=2)])
    headers = key("read")
    row = client.get("/api/v1/trajectories", headers=headers).json()["items"][0]
    assert row["feedback_count"] == 2
    found = client.get(f"/api/v1/trajectories/{TRACE}", headers=headers).json()["feedback"]
    assert [(each["key"], each["value"]) for each in found] == [("helpful", 2), ("tone", "kind")]
    every = client.get(f"/api/v1/trajectories/{TRACE}/feedback?limit=2", headers=headers).json()
    assert [(each["value"], each["current"]) for each in every["items"]] == [(2, True), ("kind", True)]
    rest = client.get(f"/api/v1/trajectories/{TRACE}/feedback?limit=2&cursor={every['next']}", headers=headers).json()
    assert [(each["value"], each["current"]) for each in rest["items"]] == [(1, False)]
