"""Full-text search: which words are found where."""

import re

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flywheel.core.traces import Message, Step, ToolCall, Trace
from flywheel.trajectories.models import Trajectory, Words
from flywheel.trajectories.search import full_text
from flywheel.trajectories.search.query import parse
from flywheel.trajectories.store.merge import store_rollouts
from tests.conftest import Build, Cast
from workers.jobs.detection import detect_waiting

pytestmark = pytest.mark.django_db


def found(text: str) -> set[str]:
    """Titles of the trajectories that say this."""
    condition = full_text.says(text)
    assert condition is not None
    return set(Trajectory.objects.filter(condition).values_list("title", flat=True))


def index(build: Build, title: str, *steps: Step) -> Trajectory:
    row = build.trajectory(title=title)
    full_text.index({row.pk: Trace(row.trace_id, list(steps))})
    return row


def said(text: str) -> Step:
    return Step("s1", "assistant", output=[Message("assistant", text)])


def test_a_word_that_is_longer_than_any_finds_nothing(build: Build) -> None:
    build.searchable(build.trajectory("a" * 50))
    for length in (101, 3_000):
        assert found("a" * length) == set()


def test_words_are_found_once_detectors_have_read_them(build: Build) -> None:
    build.trajectory(prompt="Meet Bako on friday", answer="Done.")
    build.trajectory(prompt="Meet Aino on monday", answer="Done.")
    assert found("bako") == set()
    detect_waiting()
    assert found("bako") == {"Meet Bako on friday"}
    assert found("meet") == {"Meet Bako on friday", "Meet Aino on monday"}
    assert found("on friday") == {"Meet Bako on friday"}
    assert found("friday on") == set(), "a phrase, in this order"


def test_rollouts_are_found_too(cast: Cast) -> None:
    trace = Trace("ab" * 16, [said("A refund of apples")])
    store_rollouts(cast.project, [trace])
    assert detect_waiting() == 0
    query = parse("source:rollout refund")
    assert [row.trace_id for row in query.apply(Trajectory.objects.all())] == [trace.trace_id]


def test_names_with_dots_and_underscores_are_phrases(build: Build) -> None:
    build.trajectory(prompt="Meet Bako")
    detect_waiting()
    for text in ("calendar.create_event", "create_event", "CALENDAR create", "event"):
        assert found(text) == {"Meet Bako"}, text
    assert found("calendar.event") == set()


def test_arguments_results_and_errors_are_looked_in(build: Build) -> None:
    index(build, "arguments", Step("s", "tool", tool_name="mail.send", arguments={"to": ["bako@example.com"], "n": 17}))
    index(build, "result", Step("s", "tool", result={"rows": [{"city": "Żyrardów", "open": True}]}))
    index(build, "error", Step("s", "tool", error="TimeoutError: no answer within 30 s"))
    call = ToolCall("c1", "files.read", {"path": "/etc/motd"})
    index(build, "call", Step("s", "assistant", output=[Message("assistant", tool_calls=(call,))]))
    index(build, "text", Step("s", "tool", arguments='{"broken": "yes'))
    for text, title in {
        "bako@example.com": "arguments",
        "mail.send": "arguments",
        "n 17": "arguments",
        "żyrardów": "result",
        "timeouterror": "error",
        "/etc/motd": "call",
        "files.read": "call",
        "broken": "text",
    }.items():
        assert found(text) == {title}, text


def test_a_star_stands_for_the_rest_of_the_last_word(build: Build) -> None:
    index(build, "long", said("The reservation is cancelled"))
    assert found("reservation is cancel*") == {"long"}
    assert found("cancel") == set()


def test_growth_is_found_and_what_is_gone_is_not(build: Build) -> None:
    row = index(build, "row", said("apples"))
    full_text.index({row.pk: Trace(row.trace_id, [said("pears")])})
    assert (found("apples"), found("pears")) == (set(), {"row"})
    row.delete()
    assert not Words.objects.exists()


def test_a_long_trajectory_is_found_by_its_last_words_and_bounded(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"word{number}" for number in range(3 * full_text.WORDS))
    row = index(build, "long", said(text))
    assert row.words.count() == 3
    assert found(f"word{3 * full_text.WORDS - 1}") == {"long"}
    monkeypatch.setattr(full_text, "MOST_WORDS", full_text.WORDS)
    full_text.index({row.pk: Trace(row.trace_id, [said(text)])})
    assert row.words.count() == 1


def test_long_words_of_letters_that_take_several_bytes_are_stored(build: Build) -> None:
    words = [chr(0x20000 + number) * full_text.LONGEST for number in range(full_text.WORDS)]
    index(build, "long", said(" ".join(words)))
    assert found(words[0]) == found(words[-1]) == {"long"}


def test_words_that_the_database_does_not_take_leave_those_of_others_alone(build: Build) -> None:
    kept, bad = index(build, "kept", said("pears")), index(build, "bad", said("apples"))
    full_text.write({kept.pk: ["'plums':1"], bad.pk: [f"'{'a' * 3_000}':1"]})
    assert (found("pears"), found("plums")) == (set(), {"kept"})
    assert found("apples") == set(), "what it said before is not what it says"


def test_text_without_a_word_asks_for_nothing() -> None:
    assert full_text.says(" …'\\:*& ") is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(), st.text())
def test_whatever_is_written_is_storable_and_found_by_its_own_words(build: Build, text: str, query: str) -> None:
    vectors = full_text.vectors(Trace("t", [said(text)]))
    words = [word for word in re.findall(r"[^\W_]+", text.casefold()) if len(word) <= full_text.LONGEST]
    with connection.cursor() as cursor:
        for word in words[:5]:
            asked = "SELECT bool_or(v::tsvector @@ %s::tsquery) FROM unnest(%s::text[]) AS v"
            cursor.execute(asked, [f"'{word}'", vectors])
            assert cursor.fetchone() == (True,), word
    if (condition := full_text.says(query)) is not None:
        assert list(Trajectory.objects.filter(condition)) == []
