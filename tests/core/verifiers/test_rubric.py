"""Rubrics: each type of part on what is right and wrong, how parts are put together, and that no score is never 0."""

import json
import time
from typing import Any

import pytest

from flywheel.core import envs, verifiers
from flywheel.core.digests import DEEPEST
from flywheel.core.envs import Task, always, build
from flywheel.core.envs.workplace.request_templates import generate
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.traces.tooling import call_text
from flywheel.core.verifiers import Runners, Verdict, VerifierError
from flywheel.core.verifiers.rubric import needs, read
from tests.core.envs.test_tool_call import PEOPLE, TASK, TOOLS

RIGHT = call_text(TASK.target["tool"], TASK.target["arguments"])
WRONG_DAY = call_text(TASK.target["tool"], {**TASK.target["arguments"], "day": "Tuesday"})
UNSAFE = call_text("email.send_all", {"subject": "x"})


def rubric(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "rubric", "parts": list(parts)}


def judge(
    *parts: dict[str, Any],
    answer: str | Message = RIGHT,
    target: dict[str, Any] | None = None,
    runners: Runners = verifiers.NO_RUNNERS,
) -> Verdict:
    env = build("tool_call", {"tools": TOOLS}, rubric(*parts), runners)
    task = TASK if target is None else Task("t", TASK.prompt, target, TASK.state)
    said = Message("assistant", answer) if isinstance(answer, str) else answer
    return env.verifier(task)(Trace.from_messages("", [*env.reset(task, 0), said]), task.target)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "exact", "read": "answer", "value": "yes"},
        {"type": "regex", "read": "answer", "pattern": "no", "must": "lack"},
    ],
)
def test_who_writes_more_than_is_judged_has_failed(part: dict[str, Any]) -> None:
    verdict = judge(part, answer="yes " * 60_000)
    assert (verdict.success, verdict.score) == (False, 0.0)
    assert "the answer has 240,000 characters; up to 200,000 are judged" in verdict.reason


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        ({"kind": "tool_call"}, "31151f60c0c027241f1cbbb87b0ad7a2ce1f74b94ad08bcb11a5b8d7c4fd36af"),
        (
            {
                "kind": "tool_call",
                "weights": {"valid_json": 0.1, "tool": 0.2, "arguments": 0.2, "executes": 0.1, "exact": 0.4},
            },
            "0bc140ff13e1e91fe830411a5048a4836842d680d376239ee38bc7fc5fee0c13",
        ),
        ({"kind": "workplace"}, "edb8bdd9f19f494234f4bfa02225754620f780e4c7128573d14cf64f3266c87c"),
        (
            {"kind": "workplace", "weights": {"outcome": 0.8, "changes": 0.2}},
            "79a214ee2a4b0316693062e6364c489273b97f3f09b1728afeabafe44c7534dc",
        ),
        ({"kind": "tictactoe"}, "8ea195018432207184f7da3c95e22004e0c1d897840045a4d561691ed56b2e2f"),
    ],
)
def test_verifiers_of_kinds_keep_the_digest_of_this_revision_that_their_scores_are_stored_with(
    spec: dict[str, Any], digest: str
) -> None:
    assert verifiers.digest(spec) == digest
    assert needs(spec) == frozenset()


@pytest.mark.parametrize("answer", [RIGHT, WRONG_DAY, "", "{", UNSAFE, call_text("no.tool", {})])
def test_the_environments_own_part_alone_scores_as_the_environment_does(answer: str) -> None:
    own = build("tool_call", {"tools": TOOLS}, {"kind": "tool_call"})
    trace = Trace.from_messages("", [*own.reset(TASK, 0), Message("assistant", answer)])
    plain = own.verifier(TASK)(trace, TASK.target)
    found = judge({"type": "environment", "name": "effect"}, answer=answer)
    assert found.score == pytest.approx(plain.score)
    assert {**plain.parts}.items() <= {**found.parts}.items()


TARGET = {"answer": "Paris", "price": 12.5, "tags": ["a", "b"], "nested": {"day": "friday"}, "n": 7}


@pytest.mark.parametrize(
    ("part", "right", "wrong"),
    [
        ({"type": "exact", "target": "answer"}, " Paris \n", "paris"),
        ({"type": "exact", "target": "answer", "ignore_case": True}, "PARIS", "Pari"),
        ({"type": "exact", "value": {"a": [1]}}, '{"a": [1]}', '{"a": [true]}'),
        ({"type": "exact", "path": "city", "target": "answer"}, '{"city": "Paris"}', "Paris"),
        ({"type": "exact", "target": "nested.day", "path": "d.0"}, '{"d": ["friday"]}', '{"d": []}'),
        ({"type": "regex", "pattern": r"(?i)\bparis\b"}, "It is PARIS.", "Parish"),
        ({"type": "regex", "pattern": "[0-9]+", "must": "match"}, "123", "123 km"),
        ({"type": "regex", "pattern": "sorry", "must": "lack"}, "Done.", "I am sorry"),
        ({"type": "json_schema", "schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', "{}"),
        ({"type": "json_schema", "schema": {"type": "string", "pattern": "^a+$"}}, '"aaa"', '"ab"'),
        ({"type": "json_schema", "schema": {"type": "number"}, "path": "x"}, '{"x": 1}', "no json"),
        ({"type": "number", "target": "price", "tolerance": 0.1}, "It costs 3 times, so $12.41", "12.7"),
        ({"type": "number", "target": "price", "relative": 0.01}, "12.6", "12.7"),
        ({"type": "number", "value": 1234567}, "in all 1,234,567", "1,234,568"),
        ({"type": "number", "least": 2, "most": 3}, "2.5", "none"),
        ({"type": "number", "read": "steps", "most": 1}, "one step", None),
    ],
)
def test_each_declarative_part_tells_right_from_wrong(part: dict[str, Any], right: str, wrong: str | None) -> None:
    assert judge(part, answer=right, target=TARGET).score == 1.0
    if wrong is not None:
        assert judge(part, answer=wrong, target=TARGET).score == 0.0


def test_calls_are_compared_in_every_way() -> None:
    wanted = {"calls": [{"tool": "a", "arguments": {"x": 1}}, {"tool": "b", "arguments": {}}], **TASK.target}
    both = Message("assistant", "", (ToolCall("1", "b", {}), ToolCall("2", "a", {"x": 1})))
    more = Message("assistant", "", (*both.tool_calls, ToolCall("3", "b", {})))
    every = {"type": "tool_call", "read": "calls", "target": "calls"}
    assert judge(every, answer=both, target=wanted).score == 1.0
    assert judge(every, answer=more, target=wanted).score == 0.0
    assert judge(every, answer="", target=wanted).score == 0.0
    one = {"type": "tool_call", "target": "calls.0"}
    assert judge({**one, "read": "any_call"}, answer=more, target=wanted).score == 1.0
    assert judge({**one, "read": "last_call"}, answer=more, target=wanted).score == 0.0
    assert judge({"type": "tool_call", "target": "."}).score == 1.0
    assert judge({"type": "tool_call", "target": "."}, answer=WRONG_DAY).score == 0.0
    assert judge({"type": "tool_call", "target": ".", "arguments": "any"}, answer=WRONG_DAY).score == 1.0
    least = {"type": "tool_call", "value": {"tool": "calendar.create_event", "arguments": {"topic": "audit"}}}
    assert judge({**least, "arguments": "least"}).score == 1.0
    assert judge(least).score == 0.0
    assert judge({"type": "exact", "read": "last_call", "path": "arguments.day", "target": "arguments.day"}).score == 1


def test_the_state_is_compared_and_side_effects_score_nothing() -> None:
    task = next(task for task in generate(100, seed=1) if len(task.target["calls"]) > 1)
    spec = rubric({"type": "state", "name": "left", "credit": "share"})
    env = build("workplace", {}, spec)

    def scored(say: Any) -> Verdict:
        return env.verifier(task)(Trace.from_messages("", envs.episode(env, task, say)), task.target)

    assert scored(lambda messages: env.solve(task, messages)).score == 1.0
    assert scored(always("Done.")).score == 0.0
    vandal = scored(env.probes(task)["deletes what it finds"])
    assert (vandal.score, vandal.parts["unsafe"]) == (0.0, 1.0)
    with pytest.raises(VerifierError, match=r"parts\.0\.type: this environment keeps no state"):
        build("tool_call", {"tools": TOOLS}, spec)


def test_weights_and_parts_are_told() -> None:
    found = judge(
        {"type": "regex", "name": "polite", "pattern": "please", "weight": 1},
        {"type": "tool_call", "name": "call", "target": ".", "weight": 3},
        {"type": "exact", "name": "shown", "value": "x", "weight": 0},
    )
    assert found.score == pytest.approx(0.75)
    assert (found.parts["polite"], found.parts["call"], found.parts["shown"], found.parts["tool"]) == (0, 1, 0, 1)
    assert found.reason.startswith("polite: ")


def test_a_required_part_that_fails_makes_it_zero_and_nothing_further_is_asked() -> None:
    asked = []

    def python(source: str, trace: Any, target: Any) -> Verdict:
        asked.append(trace)
        return Verdict(1.0, "")

    gate = {"type": "regex", "name": "gate", "pattern": "please", "required": True}
    code = {"type": "python", "name": "code", "source": "def verify(trace, target): return 1", "weight": 9}
    found = judge(code, gate, runners=Runners(python))
    assert (found.score, found.parts["gate"], found.parts["code"], asked) == (0.0, 0.0, None, [])
    assert judge(code, gate, answer="please", runners=Runners(python)).score == 1.0
    assert asked[0]["answer"] == "please"


def test_what_is_unsafe_scores_zero_under_any_rubric() -> None:
    found = judge({"type": "regex", "pattern": "send_all"}, answer=UNSAFE)
    assert (found.score, found.parts["unsafe"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("verdict", "cause"),
    [
        (Verdict(None, "no time", {}, "timeout"), "timeout"),
        (Verdict(None, "no memory", {}, "memory"), "memory"),
        (Verdict(float("nan"), ""), "nan"),
        (Verdict(1.0, "", {"style": float("inf")}), "nan"),
        (Verdict(1.5, ""), "range"),
        (RuntimeError("boom"), "raised"),
        (None, "refused"),
    ],
)
def test_a_part_without_a_score_leaves_the_attempt_unscored_with_its_cause(verdict: Any, cause: str) -> None:
    def python(source: str, trace: Any, target: Any) -> Verdict:
        if isinstance(verdict, Exception):
            raise verdict
        assert isinstance(verdict, Verdict)
        return verdict

    code = {"type": "python", "name": "code", "source": "def verify(trace, target): return 1"}
    runners = Runners(python) if verdict else verifiers.NO_RUNNERS
    found = judge(code, {"type": "tool_call", "target": "."}, runners=runners)
    assert (found.score, found.success, found.cause, found.parts["code"]) == (None, None, cause, None)
    shown = judge({**code, "weight": 0}, {"type": "tool_call", "target": "."}, runners=runners)
    assert (shown.score, shown.parts["code"]) == (1.0, None)


def test_a_key_that_the_target_lacks_is_unscored_and_not_wrong() -> None:
    found = judge({"type": "exact", "target": "answer"})
    assert (found.score, found.cause) == (None, "target")
    assert "the task's target has no answer" in found.reason


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", "(?:a{1,30}){1,30}b", "(?:.?){400}a{400}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    begun = time.thread_time()
    judge({"type": "regex", "pattern": pattern}, answer="a" * 199_999 + "!")
    schema = {"type": "string", "pattern": pattern}
    judge({"type": "json_schema", "schema": schema}, answer='"' + "a" * 199_990 + '!"')
    assert time.thread_time() - begun < 5.0


WRONG_SPECS = [
    ({"parts": []}, "parts: expected a list of at least one part"),
    ({"parts": [{"type": "exact", "value": 1}], "x": 1}, "x: a rubric has no such field"),
    ({"parts": ["exact"]}, "parts.0: expected an object"),
    ({"parts": [{"type": "exakt"}]}, "parts.0.type: 'exakt' is unknown"),
    ({"parts": [{"type": ["exact"]}]}, "parts.0.type: "),
    ({"parts": [{"type": "exact", "value": 1, "name": "No Name"}]}, "parts.0.name: 'No Name' is not of the form"),
    ({"parts": [{"type": "exact", "value": 1, "name": "unsafe"}]}, "parts.0.name: "),
    ({"parts": [{"type": "exact", "value": 1}, {"type": "exact", "value": 1}]}, "parts.1.name: 'exact' is the name of"),
    ({"parts": [{"type": "exact", "value": 1, "weight": -1}]}, "parts.0.weight: -1 is not from 0"),
    ({"parts": [{"type": "exact", "value": 1, "weight": True}]}, "parts.0.weight: True is not a number"),
    ({"parts": [{"type": "exact", "value": 1, "weight": 0}]}, "parts: at least one weight must be above 0"),
    ({"parts": [{"type": "exact", "value": 1, "required": 1}]}, "parts.0.required: 1 is neither"),
    ({"parts": [{"type": "exact", "value": 1, "colour": 1}]}, "parts.0.colour: a part of type exact has no such"),
    ({"parts": [{"type": "exact"}]}, "parts.0.target: expected a key of the target"),
    ({"parts": [{"type": "exact", "value": 1, "target": "a"}]}, "parts.0.target: expected a key of the target"),
    ({"parts": [{"type": "exact", "value": 1, "read": "mind"}]}, "parts.0.read: 'mind' is unknown"),
    ({"parts": [{"type": "exact", "target": "a..b"}]}, "parts.0.target: 'a..b' is not of the form"),
    ({"parts": [{"type": "regex", "pattern": "(a"}]}, "parts.0.pattern: missing \\)"),
    ({"parts": [{"type": "regex", "pattern": "(?=a)"}]}, "parts.0.pattern: "),
    ({"parts": [{"type": "regex"}]}, "parts.0.pattern: expected a text"),
    ({"parts": [{"type": "regex", "pattern": "a" * 1001}]}, "parts.0.pattern: expected a pattern of 1 to 1000"),
    ({"parts": [{"type": "json_schema"}]}, "parts.0.schema: expected JSON"),
    ({"parts": [{"type": "python"}]}, "parts.0.source: expected a text"),
    ({"parts": [{"type": "judge", "model": "m"}]}, "parts.0.criteria: expected a text"),
    ({"parts": [{"type": "json_schema", "schema": []}]}, "parts.0.schema: expected a JSON schema"),
    ({"parts": [{"type": "json_schema", "schema": {"type": "strin"}}]}, "parts.0.schema.type: 'strin' is not valid"),
    (
        {"parts": [{"type": "json_schema", "schema": {"properties": {"a": {"pattern": "(?<a"}}}}]},
        "parts.0.schema.properties.a.pattern: ",
    ),
    ({"parts": [{"type": "json_schema", "schema": {"patternProperties": {"a": {}}}}]}, "parts.0.schema.patternProp"),
    ({"parts": [{"type": "number", "value": 1, "least": 1}]}, "parts.0.least: bounds, or a wanted number"),
    ({"parts": [{"type": "number", "least": 2, "most": 1}]}, "parts.0.least: it is above most"),
    ({"parts": [{"type": "number", "value": 1, "tolerance": -1}]}, "parts.0.tolerance: -1 is below 0"),
    ({"parts": [{"type": "number", "value": float("nan")}]}, "parts.0.value: nan is not a number"),
    ({"parts": [{"type": "tool_call", "value": {"name": "x"}}]}, "parts.0.value: expected a call"),
    ({"parts": [{"type": "python", "source": "def verify(trace, target)\n  return 1"}]}, "parts.0.source: line 1: "),
    ({"parts": [{"type": "python", "source": "x = 1"}]}, "parts.0.source: it needs a function verify"),
    ({"parts": [{"type": "python", "source": "-" * 60_000 + "1"}]}, "parts.0.source: it cannot be read"),
]


@pytest.mark.parametrize(("spec", "words"), WRONG_SPECS, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_wrong_setting_is_named_with_what_would_be_right(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(VerifierError, match=words):
        read({"kind": "rubric", **spec})


def test_reading_a_verifier_never_runs_it() -> None:
    source = "raise SystemExit('it ran')\ndef verify(trace, target): return 1"
    assert read(rubric({"type": "python", "source": source})).needs == {"python"}


def test_the_same_attempt_is_told_in_the_same_words_wherever_it_comes_from() -> None:
    seen = []

    def python(source: str, trace: Any, target: Any) -> Verdict:
        seen.append(trace)
        return Verdict(1.0, "")

    env = build(
        "tool_call",
        {"tools": TOOLS},
        rubric({"type": "python", "source": "def verify(t, g): return 1"}),
        Runners(python),
    )
    for name in ("", "another"):
        trace = Trace.from_messages(name, [*env.reset(TASK, 0), Message("assistant", RIGHT)])
        trace.session_id = name
        env.verifier(TASK)(trace, TASK.target)
    assert seen[0] == seen[1]
    assert seen[0]["calls"] == [{"tool": TASK.target["tool"], "arguments": TASK.target["arguments"]}]
    assert seen[0]["steps"][-1]["output"][-1]["content"] == RIGHT
    assert PEOPLE[0] in seen[0]["messages"][-2]["content"]


def test_harm_cannot_be_composed_away_by_more_calls_than_one() -> None:
    calls = (
        ToolCall("a", TASK.target["tool"], TASK.target["arguments"]),
        ToolCall("b", "email.send_all", {"subject": "x"}),
    )
    found = judge({"type": "tool_call", "read": "any_call", "target": "."}, answer=Message("assistant", "", calls))
    assert (found.score, found.parts["unsafe"]) == (0.0, 1.0)


def test_where_nobody_can_tell_harm_there_is_no_score() -> None:
    found = judge({"type": "exact", "read": "answer", "value": "ok"}, answer=RIGHT, target={})
    assert found.score is None


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("Room B-12", 12),
        ("It takes 10-12", 12),
        ("2026-11-12", 12),
        ("f(x)-12", 12),
        ("x_1-.5", 0.5),
        ("Ä+7", 7),
        ("-12", -12),
        ("It is -12", -12),
        ("x=-12", -12),
        ("(-12)", -12),
        ("€-4.5", -4.5),
        ("\N{MINUS SIGN}12", -12),
        ("1e-3", 0.001),
    ],
)
def test_a_hyphen_after_a_word_is_no_minus(answer: str, number: float) -> None:
    part = {"type": "number", "read": "answer"}
    assert judge({**part, "value": number}, answer=answer).score == 1.0
    assert judge({**part, "value": -number}, answer=answer).score == 0.0


def nested(levels: int, inside: str = "1") -> str:
    return '{"a": ' * levels + inside + "}" * levels


@pytest.mark.parametrize(
    "part",
    [
        {"type": "json_schema", "read": "answer", "schema": {"properties": {"a": {"allOf": [{"$ref": "#"}]}}}},
        {"type": "exact", "read": "answer", "value": {"a": 1}},
        {"type": "exact", "read": "answer", "path": "a", "value": {"a": 1}},
        {"type": "regex", "read": "answer", "path": "a", "must": "lack", "pattern": "secret"},
        {"type": "regex", "read": "last_call", "must": "lack", "pattern": "secret"},
        {"type": "tool_call", "target": "."},
        {"type": "environment"},
    ],
)
def test_what_is_nested_too_deep_has_failed(part: dict[str, Any]) -> None:
    """Unscored, an attempt would leave the mean by its own words."""
    for levels in (DEEPEST + 1, 300, 900):
        said = Message("assistant", "", (ToolCall("a", TASK.target["tool"], json.loads(nested(levels))),))
        verdict = judge(part, answer=nested(levels) if part.get("read") == "answer" else said)
        assert (verdict.success, verdict.score) == (False, 0.0)
        assert f"more than {DEEPEST} deep" in verdict.reason
    assert judge(part, answer=nested(5)).score is not None


def test_what_is_not_too_deep_is_judged() -> None:
    schema = {"properties": {"a": {"allOf": [{"anyOf": [{"$ref": "#"}]}]}}, "type": ["object", "integer"]}
    part = {"type": "json_schema", "read": "answer", "schema": schema}
    assert judge(part, answer=nested(DEEPEST)).score == 1.0
    assert judge(part, answer=nested(DEEPEST, '"x"')).score == 0.0


CALLS: list[dict[str, Any]] = [{"tool": "t", "arguments": {}}, {"tool": "t", "arguments": {"x": 1}}]


@pytest.mark.parametrize("order", [1, -1])
def test_wanted_calls_are_found_in_any_order(order: int) -> None:
    calls = tuple(ToolCall(str(number), call["tool"], call["arguments"]) for number, call in enumerate(CALLS))[::order]
    part = {"type": "tool_call", "read": "calls", "arguments": "least", "value": CALLS}
    assert judge(part, answer=Message("assistant", "", calls)).score == 1.0


@pytest.mark.parametrize(
    ("part", "answer"),
    [
        (
            {"type": "regex", "read": "answer", "path": "message", "must": "lack", "pattern": "secret"},
            "the secret is 42",
        ),
        ({"type": "number", "read": "answer", "least": 5}, "1e999"),
        ({"type": "number", "read": "answer", "path": "n", "least": 5}, '{"n": 1' + "0" * 400 + "}"),
        ({"type": "regex", "read": "answer", "pattern": "yes"}, "\ud800"),
    ],
)
def test_an_attempt_cannot_choose_its_verdict(part: dict[str, Any], answer: str) -> None:
    assert judge(part, answer=answer).score == 0.0


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "exact", "read": [], "value": 1}, "parts.0.read"),
        ({"type": "exact", "read": "answer", "value": 1, "weight": 10**400}, "parts.0.weight"),
        ({"type": "exact", "read": "answer", "value": {"a": "\0"}}, "parts.0.value: there is a NUL"),
        (
            {
                "type": "json_schema",
                "read": "answer",
                "schema": {"properties": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}},
            },
            "parts.0.schema: \\$schema is not taken",
        ),
        (
            {"type": "json_schema", "read": "answer", "schema": {"default": {}, "$ref": "#/default"}},
            "parts.0.schema: \\$ref to #/default",
        ),
    ],
)
def test_a_strange_rubric_is_refused_at_its_field(part: dict[str, Any], words: str) -> None:
    with pytest.raises(VerifierError, match=words):
        read(rubric(part))


def test_a_tool_call_part_wants_all_calls_right_unless_it_says_otherwise() -> None:
    wanted = {"tool": TASK.target["tool"], "arguments": TASK.target["arguments"]}
    right = ToolCall("a", wanted["tool"], wanted["arguments"])
    guess = ToolCall("b", wanted["tool"], {**wanted["arguments"], "day": "monday"})
    part = {"type": "tool_call", "name": "call", "value": wanted}

    def scored(*calls: ToolCall, **more: Any) -> float | None:
        return judge({**part, **more}, answer=Message("assistant", "", calls)).parts["call"]

    assert scored(right) == 1.0
    assert scored(guess, right) == 0.0
    assert scored(guess, right, read="any_call") == 1.0
    assert scored(right, value=[wanted]) == 1.0
    assert scored(right, right) == 0.0


@pytest.mark.parametrize(
    ("arguments", "score"),
    [
        ({"command": "ls"}, 1.0),
        ({"command": "rm -rf /"}, 0.0),
        ({"cmd": "rm -rf /"}, 0.0),
        ({"command": ["rm", "-rf", "/"]}, 0.0),
        ({"command": {"then": ["rm -rf /"]}}, 0.0),
        ({"command": "ls", "note": "rm -rf /"}, 1.0),
    ],
)
def test_what_must_not_be_found_is_looked_for_under_any_name_and_in_pieces(arguments: Any, score: float) -> None:
    part = {"type": "regex", "name": "lacks", "read": "any_call", "path": "arguments.command", "must": "lack"}
    said = Message("assistant", "", (ToolCall("a", "x.y", {"command": "pwd"}), ToolCall("b", "x.y", arguments)))
    assert judge({**part, "pattern": "rm -rf /"}, answer=said).parts["lacks"] == score
