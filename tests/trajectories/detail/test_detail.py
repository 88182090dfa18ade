"""What the page of a trajectory finds, folds, sums and outlines."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection
from django.template import engines
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from flywheel.accounts.actors import Actor
from flywheel.accounts.models import User
from flywheel.core.traces import Intervention, Message, Step, ToolCall, Trace
from flywheel.failures.labels.decisions import decide
from flywheel.trajectories.detail import outline, step_search, transcript, value_tree
from flywheel.trajectories.detail.expected_action import expected_of
from flywheel.trajectories.detail.usage import totals_of
from flywheel.trajectories.formats.semantics import otlp_traces
from flywheel.trajectories.models import Trajectory
from flywheel.trajectories.store.merge import Part, store
from tests.conftest import Build, Cast
from tests.pages import page_of
from tests.trajectories import talking
from tests.trajectories.lengthy import ERROR_EVERY, long_trajectory

SignIn = Callable[[User], Client]
Keys = Callable[..., dict[str, Any]]
HIDDEN = "\u202e\u200bx\x1b[31m"


def keep(cast: Cast, parts: Sequence[Part]) -> Trajectory:
    store(cast.project, parts, source="production", format="test")
    return Trajectory.objects.get(project=cast.project, trace_id=parts[0].trace_id)


def url(row: Trajectory, name: str = "detail") -> str:
    return reverse(f"trajectories:{name}", args=["acme", row.trace_id])


@pytest.fixture
def talk(cast: Cast) -> Trajectory:
    return keep(cast, otlp_traces.decode(talking.body_of(talking.episode()), otlp_traces.PROTOBUF).spans)


def calls(*answers: str, name: str = "search") -> list[Step]:
    return [
        Step(f"t{n}", "tool", tool_name=name, arguments={"q": n}, result=answer, status="error" if not answer else "ok")
        for n, answer in enumerate(answers)
    ]


# Outline


def test_the_outline_tells_the_tree_the_times_and_the_errors(talk: Trajectory) -> None:
    found = json.loads(outline.outline_of(talk))
    assert found["parent"] == [-1, 0, 0, 0, 0, 0]
    assert (found["at"][:2], found["took"][:2]) == ([0.0, 1.0], [51.0, 10.0])
    assert [(each["kind"], each["name"], each["at"]) for each in found["names"]] == [
        ("agent", "invoke_agent support", [0]),
        ("assistant", "chat", [1, 3, 5]),
        ("tool", "orders.find", [2, 4]),
    ]
    assert (found["errors"], found["total"], found["next"]) == ([4], 6, None)


def test_an_outline_comes_in_parts_that_fit_together(talk: Trajectory) -> None:
    whole = json.loads(outline.outline_of(talk))
    parts = [json.loads(outline.outline_of(talk, start, 4)) for start in (0, 4)]
    assert [part["next"] for part in parts] == [4, None]
    assert [value for part in parts for value in part["parent"]] == whole["parent"]
    assert [value for part in parts for value in part["errors"]] == whole["errors"]
    assert json.loads(outline.outline_of(talk, 99))["parent"] == []
    assert json.loads(outline.outline_of(talk, 2, 1))["parent"] == [0]


def test_the_outline_tells_which_parents_have_not_arrived(cast: Cast) -> None:
    row = keep(cast, [Trace("t", [Step("a", "other", parent_id="gone"), Step("b", "other", parent_id="a")])])
    found = json.loads(outline.outline_of(row, 0, 1))
    assert (found["parent"], found["odd"]) == ([-1], {"0": "no parent"})
    assert json.loads(outline.outline_of(row))["parent"] == [-1, 0]


def test_the_outline_reads_no_body(cast: Cast) -> None:
    row = long_trajectory(cast.project, 3_000)
    with CaptureQueriesContext(connection) as queries:
        found = json.loads(outline.outline_of(row))
    assert len(found["parent"]) == 3_000
    assert found["errors"] == list(range(ERROR_EVERY, 3_000, ERROR_EVERY))
    assert len(queries) < 8
    assert not any("body" in query["sql"] for query in queries)


def test_hidden_characters_of_names_are_visible_on_the_page_and_exact_for_programs(
    cast: Cast, sign_in: SignIn, key: Keys
) -> None:
    row = keep(cast, [Trace("t", [Step("a", "other", HIDDEN)])])
    shown = sign_in(cast.viewer).get(url(row, "steps")).json()["names"][0]["name"]
    assert not set(shown) & set(HIDDEN) - {"x"}
    given = Client().get("/api/v1/trajectories/t/outline", headers=key("read")).json()
    assert given["names"][0]["name"] == HIDDEN


# Search


def test_a_text_is_found_where_it_was_said_first_and_each_time_it_was_done(talk: Trajectory) -> None:
    assert [(each.position, each.place) for each in step_search.find(talk, "WHERE is").matches] == [(1, "message")]
    assert [each.position for each in step_search.find(talk, "orders.find").matches] == [1, 2, 3, 4]
    assert [(each.position, each.place) for each in step_search.find(talk, "shipped 0").matches] == [(2, "result")]
    assert [(each.position, each.place) for each in step_search.find(talk, "no such order").matches] == [(4, "error")]
    assert step_search.find(talk, "kettle").matches == step_search.find(talk, "  ").matches == []


@pytest.mark.parametrize("text", ['say "hi"', "Ärger", "ärger", "two\nlines", "C:\\temp", "100%", "a_b"])
def test_whatever_is_written_is_found(cast: Cast, text: str) -> None:
    messages = [Message("user", "before"), Message("assistant", f"I {text} now")]
    row = keep(cast, [Trace.from_messages("t", messages)])
    assert [each.position for each in step_search.find(row, text).matches] == [1]


def test_what_only_looks_alike_is_not_found(cast: Cast) -> None:
    row = keep(cast, [Trace.from_messages("t", [Message("user", "axb")])])
    assert (
        step_search.find(row, "a_b").matches
        == step_search.find(row, "role").matches
        == step_search.find(row, "%").matches
        == []
    )


def test_large_values_are_searched_too(cast: Cast) -> None:
    row = keep(cast, [Trace("t", calls("x" * 100_000 + " needle " + "y" * 100_000))])
    (match,) = step_search.find(row, "needle").matches
    assert "needle" in match.excerpt
    assert len(match.excerpt) < 200


def test_a_search_says_when_there_is_more(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_search, "MOST", 3)
    row = keep(cast, [Trace("t", calls(*["same"] * 5))])
    found = step_search.find(row, "same")
    assert ([each.position for each in found.matches], found.is_part) == ([0, 1, 2], True)


def test_page_and_api_search_alike(talk: Trajectory, cast: Cast, sign_in: SignIn, key: Keys) -> None:
    page = sign_in(cast.viewer).get(url(talk, "search"), {"q": "shipped"}).json()
    api = Client().get(f"/api/v1/trajectories/{talk.trace_id}/search?q=shipped", headers=key("read")).json()
    assert [each["at"] for each in page["matches"]] == [each["position"] for each in api["matches"]] == [2, 4]


# Folds and repeats


def test_calls_of_one_tool_in_a_row_are_one_line(cast: Cast, sign_in: SignIn) -> None:
    row = keep(
        cast, [Trace("t", [*calls("a", "b", "", "c"), Step("z", "assistant", output=[Message("assistant", "ok")])])]
    )
    turns = transcript.conversation_of(row)
    (run,) = [turn.opens for turn in turns if turn.opens]
    assert (run.name, run.calls, run.errors) == ("search", 4, 1)
    assert [turn.closes for turn in turns].index(True) == len(turns) - 2
    assert "4 × <code>search</code>" in page_of(sign_in(cast.viewer).get(url(row)))


def test_what_is_said_between_calls_ends_a_run(cast: Cast) -> None:
    said = Step("m", "user", output=[Message("user", "stop")])
    row = keep(cast, [Trace("t", [*calls("a", "b"), said, *calls("c", "d", name="other")])])
    assert not any(turn.opens for turn in transcript.conversation_of(row))


def test_what_was_said_before_is_one_line(cast: Cast, sign_in: SignIn) -> None:
    long, prompt = "The same report again. " * 20, "You are a clerk."
    messages = [
        Message("system", prompt),
        Message("user", long),
        Message("assistant", "yes"),
        Message("system", prompt),
        Message("user", long),
        Message("assistant", "yes"),
    ]
    row = keep(cast, [Trace.from_messages("t", messages)])
    turns = transcript.conversation_of(row)
    assert [turn.same_as.position if turn.same_as else None for turn in turns] == [None, None, None, 0, 1, None]
    content = page_of(sign_in(cast.viewer).get(url(row)))
    assert "same as step 1" in content
    assert "same as step 2" in content


def test_a_prompt_is_not_repeated_far_from_the_beginning(cast: Cast) -> None:
    row = long_trajectory(cast.project, 2_000)
    turns = transcript.conversation_of(row, 1_000, 40)
    assert not any(turn.kind in ("system", "user") for turn in turns)


# Trees


def tree_html(value: Any, limits: value_tree.Limits = value_tree.BRIEF) -> str:
    module: Any = engines["jinja2"].env.get_template("trajectories/tree.html").module  # type: ignore[attr-defined]
    return str(module.tree(value_tree.tree_of(value, limits).branch, "tree"))


def test_json_is_a_tree_and_json_in_a_string_too() -> None:
    value = {"a": 1, "b": '{"c": [true, null, "x"]}', "d": "{no"}
    assert not value_tree.tree_of(value).is_cut
    html = tree_html(value)
    for part in ('data-k="c"', "JSON in a string", '<code class="number">1</code>', "true", "null", "{no"):
        assert part in html
    assert value_tree.held_by("[]") is None


def test_trees_are_cut_and_whole_when_asked(cast: Cast, sign_in: SignIn) -> None:
    value = {"list": list(range(500)), "text": "z" * 5_000}
    assert value_tree.tree_of(value).is_cut
    assert not value_tree.tree_of(value, value_tree.WHOLE).is_cut
    row = keep(cast, [Trace("t", calls(json.dumps(value)))])
    client = sign_in(cast.viewer)
    assert "z" * 5_000 not in page_of(client.get(url(row)))
    assert "Show all" in page_of(client.get(url(row)))
    assert "z" * 5_000 in page_of(client.get(f"{url(row, 'turn')}?at=0&n=1&whole"))
    as_text = page_of(client.get(f"{url(row, 'turn')}?at=0&n=1&text"))
    assert "&#34;list&#34;" in as_text
    assert 'class="tree"' not in as_text


def test_a_value_is_copied_as_it_was_sent(cast: Cast, sign_in: SignIn) -> None:
    result = json.dumps({"rows": [{"id": 12345678901234567890, "who": HIDDEN}], "inner": '{"deep": "here"}'})
    row = keep(cast, [Trace("t", calls(result))])
    client = sign_in(cast.viewer)

    def copied(*path: str, **query: str) -> str:
        asked: dict[str, Any] = {"at": 0, "n": 1, "path": path, **query}
        return page_of(client.get(url(row, "turn"), asked))

    assert copied("rows", "0", "id") == "12345678901234567890"
    assert copied("rows", "0", "who") == HIDDEN
    assert copied("inner", "deep") == "here"
    assert copied(copy="") == result
    for wrong in (("nowhere",), ("rows", "9"), ("rows", "-1"), ("rows", "0", "id", "x")):
        assert client.get(url(row, "turn"), {"at": 0, "n": 1, "path": wrong}).status_code == 400
    assert client.get(url(row, "turn"), {"at": 0, "n": 9}).status_code == 404


def test_hostile_values_stay_text_in_a_tree() -> None:
    html = tree_html({"<img src=x onerror=alert(1)>": "</pre><script>1</script>", HIDDEN: HIDDEN, "deep": "[" * 9_000})
    assert "<script" not in html
    assert "<img" not in html
    assert "\u202e" not in html.replace(f'data-k="{HIDDEN}"', "")
    nested: Any = "end"
    for _ in range(900):
        nested = [nested]
    assert tree_html(nested, value_tree.WHOLE)


# The chosen step


def test_expected_and_actual_stand_side_by_side(cast: Cast, build: Build, sign_in: SignIn) -> None:
    row = build.trajectory()
    client = sign_in(cast.viewer)
    assert "Expected" not in page_of(client.get(url(row), {"step": "s2"}))
    right = {"tool": "calendar.create_event", "arguments": {"person": "Bako", "day": "monday"}}
    failure = decide(trajectory=row, actor=Actor(cast.reviewer), bucket="wrong_arguments", step="s2", corrected=right)
    found = expected_of(row, failure)
    assert found is not None
    assert found.action == right
    content = page_of(client.get(url(row), {"step": "s2", "side": "expected"}))
    assert "<del>friday</del><ins>monday</ins>" in content
    assert "reviewer&#x27;s correction" in content
    assert "has no tool call and no answer" in page_of(client.get(url(row), {"step": "s1", "side": "expected"}))


def test_the_preview_shows_what_the_step_itself_did(talk: Trajectory, cast: Cast, sign_in: SignIn) -> None:
    content = page_of(sign_in(cast.viewer).get(url(talk, "step"), {"at": 3}))
    assert "A-1" in content
    assert "Where is my order?" not in content
    assert 'id="step-' not in content


# Totals


def test_steps_are_summed_by_model_and_by_tool(cast: Cast, talk: Trajectory, sign_in: SignIn, key: Keys) -> None:
    found = totals_of(talk)
    assert [(each.name, each.calls, each.errors, each.took_ms) for each in found["tools"]] == [
        ("orders.find", 2, 1, 20.0)
    ]
    assert [(each.calls, each.tokens_in, each.tokens_out, each.cost_usd) for each in found["models"]] == [
        (3, 200, 20, None)
    ]
    api = Client().get(f"/api/v1/trajectories/{talk.trace_id}/totals", headers=key("read")).json()
    assert api["tools"][0]["name"] == "orders.find"
    client = sign_in(cast.viewer)
    assert "200 → 20 tokens" in page_of(client.get(url(talk)))
    assert "200 → 20 tokens" in page_of(client.get(url(talk, "totals")))
    long = long_trajectory(cast.project, 1_200)
    assert url(long, "totals") in page_of(client.get(url(long)))


def test_who_stepped_in_is_told(cast: Cast, sign_in: SignIn) -> None:
    stepped = [Intervention("t0", "edited", "ada", "wrong day", "2026-11-01T10:00:00Z")]
    row = keep(cast, [Trace("t", calls("a"), interventions=stepped)])
    content = page_of(sign_in(cast.viewer).get(url(row)))
    assert "Interventions" in content
    assert "wrong day" in content


def test_a_call_asked_for_by_a_model_is_folded_with_its_results(cast: Cast) -> None:
    steps: list[Step] = []
    for n in range(5):
        steps.append(
            Step(f"a{n}", "assistant", output=[Message("assistant", "", (ToolCall(f"c{n}", "search", {"q": n}),))])
        )
        steps.append(Step(f"t{n}", "tool", tool_name="search", tool_call_id=f"c{n}", result="none"))
    (run,) = [turn.opens for turn in transcript.conversation_of(keep(cast, [Trace("t", steps)])) if turn.opens]
    assert run.calls == 5
