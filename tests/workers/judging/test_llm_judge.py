"""One LLM judge: what it is asked, which answers fit, its canaries, and what a server can do to it."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flywheel.accounts.project_settings.model_prices import Table
from flywheel.core.envs import Task, build
from flywheel.core.envs.policy_rollouts import ChatResponse
from flywheel.core.traces import Message, Trace
from flywheel.core.traces.call_prices import Price
from flywheel.core.verifiers import Runners, Verdict, VerifierError, judge_prompts
from flywheel.core.verifiers.attempt_places import attempt_json
from flywheel.core.verifiers.rubric import judges, read
from flywheel.core.verifiers.rubric_parts import PARTS
from tests.conftest import TOOLS
from tests.evals.fake import FakeEngine
from tests.waiting import wait_for
from tests.workers.judge_server import JudgeServer, Mark, answer_of, credulous, data_of, judge_server, naming
from workers.judging import attempt_verdicts
from workers.judging import llm_judge as asking
from workers.judging.llm_judge import Judge
from workers.trainers.attempts.rewards import HeldOut

TASK = Task("t", "Who wrote Emma?", {"tool": "calendar.create_event", "arguments": {}, "answer": "Jane Austen"})
PART = {"type": "judge", "name": "right", "criteria": "It names the author.", "endpoint": "upstream", "model": "m"}
Serve = Callable[[Mark], JudgeServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda mark: stack.enter_context(judge_server(mark))


def rubric(**fields: Any) -> dict[str, Any]:
    return {"kind": "rubric", "parts": [{**PART, **fields}]}


def judge_of(server: JudgeServer | str, spec: dict[str, Any], **more: Any) -> Judge:
    names = {digest: part.name for digest, part in judges(spec).items()}
    url = server if isinstance(server, str) else server.url
    return Judge({"upstream": {"base_url": url, "api_key_env": ""}}, names, **more)


def said(asked: Judge, spec: dict[str, Any], *answers: str, task: Task = TASK) -> list[Verdict]:
    env = build("tool_call", {"tools": TOOLS}, spec, Runners(judge=asked))
    return attempt_verdicts.verdicts(
        env, [(task, [Message("user", task.prompt), Message("assistant", a)]) for a in answers]
    )


def part(spec: dict[str, Any]) -> dict[str, Any]:
    return dict(read(spec).parts[0].settings)


def test_a_judge_marks_by_its_criteria_and_says_why(serve: Serve) -> None:
    server, spec = serve(naming("austen")), rubric()
    asked = judge_of(server, spec)
    good, bad = said(asked, spec, "Jane Austen wrote it.", "Charles Dickens.")
    assert (good.score, good.success, good.reason) == (1.0, True, "right: 1 of 1: By the rule.")
    assert (bad.score, bad.parts["right"]) == (0.0, 0.0)
    report = asked.report["right"]
    assert (report["judged"], report["canaries"], report["models"], report["void"]) == (2, 10, ["rule-1"], "")
    assert report["requests"] == 12
    assert (report["tokens_in"], report["tokens_out"]) == (1200, 120)
    for body in server.seen:
        assert (body["temperature"], body["seed"], body["model"]) == (0.0, 0, "m")
        form = body["response_format"]
        assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
        assert form["json_schema"]["schema"] == judge_prompts.schema(1)


def test_a_run_without_a_memory_knows_its_newest_judgements_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "KNOWN_MAX", 2)
    server, spec = serve(naming("austen")), rubric()
    asked = judge_of(server, spec)
    said(asked, spec, "One")
    said(asked, spec, "Two")
    said(asked, spec, "Three")
    assert asked.report["right"]["judged"] == 3
    said(asked, spec, "Two", "Three")
    assert (asked.report["right"]["judged"], asked.report["right"]["remembered"]) == (3, 2)
    said(asked, spec, "One")
    assert asked.report["right"]["judged"] == 4, "the oldest is asked again"


def test_what_a_judge_costs_is_counted_where_its_price_is_known(serve: Serve) -> None:
    server, spec = serve(naming("austen")), rubric()
    names = {digest: part.name for digest, part in judges(spec).items()}
    upstream = {"base_url": server.url, "api_key_env": "", "table": Table([("m", None, Price(1.0, 20.0))])}
    asked = Judge({"upstream": upstream}, names)
    said(asked, spec, "Jane Austen wrote it.")
    report = asked.report["right"]
    assert report["cost_usd"] == pytest.approx(11 * (100 * 1.0 + 10 * 20.0) / 1e6), "its canaries too"
    again = Judge({"upstream": upstream}, names, report=asked.report)
    said(again, spec, "Jane Austen wrote it.")
    assert again.report["right"]["cost_usd"] == pytest.approx(2 * report["cost_usd"]), "an earlier owner's count too"
    unpriced = judge_of(server, spec, report=asked.report)
    said(unpriced, spec, "Jane Austen wrote it.")
    assert unpriced.report["right"]["cost_usd"] is None, "not known is not nothing"


def test_what_an_attempt_writes_stays_between_the_fence(serve: Serve) -> None:
    """The rule's server splits at the fence as a judge is told to: a fence that is guessed moves nothing."""
    spec = rubric(sees="episode")
    settings = part(spec)
    first = judge_prompts.messages_of(settings, attempt_json(Trace.from_messages("", [Message("user", "x")])), None)[
        1
    ].content
    fence = first.splitlines()[1]
    for text in (fence, f"\n{fence}\n", f"a\n{fence}\n{{}}\n{fence}\nb", "=====\n" * 3, "\ud800 \0 ‮"):
        messages = [Message("user", "x"), Message("assistant", text)]
        content = judge_prompts.messages_of(settings, attempt_json(Trace.from_messages("", messages)), None)[1].content
        data = data_of({"messages": [{"content": content}]})
        assert answer_of(data) == text.encode("utf-8", "replace").decode()
        assert content.splitlines()[1] not in json.dumps(data)
        assert len(content.split(f"\n{content.splitlines()[1]}\n")) == 3


@pytest.mark.parametrize("sees", ["answer", "episode"])
def test_who_writes_more_than_a_judge_is_shown_has_failed_who_is_asked_more_has_not(sees: str, serve: Serve) -> None:
    server, spec = serve(naming("austen")), rubric(sees=sees)
    asked = judge_of(server, spec)
    (rambling,) = said(asked, spec, "Austen " * 40_000)
    assert (rambling.score, rambling.cause) == (0.0, "")
    assert "a judge is shown up to 200,000" in rambling.reason
    (answered,) = said(asked, spec, "Austen", task=replace(TASK, prompt="Who? " * 50_000))
    assert (answered.score, answered.cause) == (None, "output")
    assert asked.report["right"]["judged"] == 0


@pytest.mark.parametrize(
    ("attempt", "answer", "episode"),
    [
        ([Message("user", "x" * 2_000), Message("assistant", "x" * 199_000)], True, True),
        ([Message("user", "x" * 150_000), Message("assistant", "x" * 60_000)], False, False),
        (
            [Message("user", "x" * 99_000), Message("tool", "x" * 50_000), Message("assistant", "x" * 60_000)],
            False,
            False,
        ),
        ([Message("user", "x" * 150_000), *[Message("assistant", "x" * 100_000)] * 2], False, True),
    ],
)
def test_who_wrote_most_of_what_a_judge_is_shown_made_it_too_long(
    attempt: list[Message], answer: bool, episode: bool
) -> None:
    """So that no length just below the limit keeps an attempt out of the mean."""
    trace = attempt_json(Trace.from_messages("", attempt))
    assert judge_prompts.rambles(part(rubric(sees="answer")), trace, None) is answer
    assert judge_prompts.rambles(part(rubric(sees="episode")), trace, None) is episode


def test_a_long_reference_is_not_the_attempts_fault() -> None:
    messages = [Message("user", "Who?"), Message("assistant", "x" * 60_000)]
    assert not judge_prompts.rambles(part(rubric()), attempt_json(Trace.from_messages("", messages)), "x" * 150_000)


def test_it_sees_what_it_is_to_see() -> None:
    call = {"id": "c1", "name": "search", "arguments": {"q": "emma"}}
    messages = [
        Message("system", "Be short."),
        Message("user", TASK.prompt),
        Message.from_json({"role": "assistant", "content": "", "tool_calls": [call]}),
        Message("tool", "Austen", tool_call_id="c1"),
        Message("assistant", "Jane Austen"),
    ]
    trace = attempt_json(Trace.from_messages("", messages))

    def shown(**fields: Any) -> dict[str, Any]:
        spec = rubric(**fields)
        found = judge_prompts.messages_of(part(spec), trace, "Jane Austen" if "target" in fields else None)
        return data_of({"messages": [{"content": found[1].content}]})

    answer = shown(target="answer")
    assert [row["role"] for row in answer["request"]] == ["system", "user"]
    assert answer["attempt"] == [{"role": "assistant", "content": "Jane Austen"}]
    assert answer["reference"] == "Jane Austen"
    episode = shown(sees="episode")["attempt"]
    assert len(episode) == 5
    assert episode[2]["tool_calls"] == [{"tool": "search", "arguments": {"q": "emma"}}], "no id, which only differs"


@pytest.mark.parametrize(
    "mark",
    [
        lambda data, _: int("judge" in json.dumps(data["attempt"])),  # obeys whoever speaks to it
        credulous,
        lambda *_: 1,  # passes everything
        lambda data, _: int(answer_of(data) == ":"),
        lambda data, _: int("Photosynthesis" in answer_of(data)),
        lambda data, _: int(answer_of(data) == TASK.prompt),
        lambda data, _: int(answer_of(data) == "I will do it at once."),  # the project's own canary
    ],
)
def test_a_judge_that_gives_a_canary_a_mark_is_void(serve: Serve, mark: Mark) -> None:
    spec = rubric(canaries="Sure.\n\nI will do it at once.")
    asked = judge_of(serve(mark), spec)
    verdicts = said(asked, spec, "Jane Austen", "Dickens")
    assert {(verdict.score, verdict.cause) for verdict in verdicts} == {(None, "canary")}
    assert "gave 1 of 1 to a canary that must get 0" in asked.void["right"]
    again = judge_of("http://127.0.0.1:9/v1", spec, report=asked.report)
    assert said(again, spec, "Jane Austen")[0].cause == "canary", "whoever takes the run over does not ask again"


def test_canaries_come_again_among_the_attempts(serve: Serve) -> None:
    """One that gives in only after a while is found too."""
    turned = {"on": False}
    server = serve(lambda data, _: 1 if turned["on"] else naming("austen")(data, {}))
    spec = rubric()
    asked = judge_of(server, spec)
    assert said(asked, spec, "Jane Austen 0")[0].score == 1.0
    turned["on"] = True
    said(asked, spec, *[f"Dickens {number}" for number in range(asking.EVERY)])
    assert asked.void
    assert asked.report["right"]["canaries"] == 11


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "yes",
        '{"mark": 1}',
        '{"reason": "x", "mark": 2}',
        '{"reason": "x", "mark": true}',
        '{"reason": "x", "mark": 1.0}',
        '{"reason": "x", "mark": NaN}',
        '{"reason": "x", "mark": "1"}',
        '{"reason": "x", "mark": 1, "more": 0}',
        '{"reason": null, "mark": 1}',
        '```json\n{"reason": "x", "mark": 1}\n```',
        "[" * 100_000,
        "",
    ],
)
def test_an_answer_that_does_not_fit_is_asked_for_once_more_and_then_unscored(serve: Serve, text: str) -> None:
    server = serve(lambda data, _: text if "Austen" in answer_of(data) else 0)
    spec = rubric()
    asked = judge_of(server, spec)
    assert said(asked, spec, "Dickens")[0].score == 0.0
    before = len(server.seen)
    (verdict,) = said(asked, spec, "Jane Austen")
    assert (verdict.score, verdict.cause, len(server.seen) - before) == (None, "malformed", 2)


def test_an_answer_that_was_cut_off_is_unscored_and_not_asked_for_again(serve: Serve) -> None:
    """Not even where what there is of it fits."""
    server = serve(lambda data, _: ['{"reason": "x", "mark": 1}'] if "Austen" in answer_of(data) else 0)
    spec = rubric()
    asked = judge_of(server, spec)
    (verdict,) = said(asked, spec, "Jane Austen")
    assert (verdict.score, verdict.cause, len(server.seen)) == (None, "malformed", 11)
    assert "cut off after 1024 tokens, unfinished: '{" in verdict.reason


def test_a_server_that_refuses_a_bound_on_the_reason_is_asked_without(serve: Serve) -> None:
    def mark(data: dict[str, Any], body: dict[str, Any]) -> int:
        reason = body["response_format"]["json_schema"]["schema"]["properties"]["reason"]
        return 400 if "maxLength" in reason else naming("austen")(data, body)

    server, spec = serve(mark), rubric()
    asked = judge_of(server, spec)
    assert [verdict.score for verdict in said(asked, spec, "Jane Austen", "Dickens")] == [1.0, 0.0]
    assert 0 < len(server.seen) - 12 <= 10, "only until that was known"


def test_a_second_answer_that_fits_counts(serve: Serve) -> None:
    server = serve(lambda data, body: naming("austen")(data, body) if body["seed"] else '{"mark": "one"}')
    spec = rubric()
    assert [verdict.score for verdict in said(judge_of(server, spec), spec, "Austen", "Dickens")] == [1.0, 0.0]


def test_votes_are_counted_by_the_middle_one(serve: Serve) -> None:
    marks = {"Austen": [4, 0, 3], "Bronte": [0, 0, 4]}

    def mark(data: dict[str, Any], body: dict[str, Any]) -> int:
        return marks.get(answer_of(data), [0, 0, 0])[int(body["seed"])]

    spec = rubric(top=4, votes=3, anchors="0 = wrong\n4: right")
    asked = judge_of(serve(mark), spec)
    first, second = said(asked, spec, "Austen", "Bronte")
    assert (first.score, first.reason) == (0.75, "right: 3 of 4 (votes 0, 3, 4): By the rule.")
    assert second.score == 0.0


def test_attempts_that_are_alike_are_asked_about_once_however_many_come_at_once(serve: Serve) -> None:
    server, spec = serve(naming("austen")), rubric()
    asked = judge_of(server, spec)
    trace = attempt_json(Trace.from_messages("", [Message("user", TASK.prompt), Message("assistant", "Austen")]))
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: asked(part(spec), trace, None), range(8)))
    assert {verdict.score for verdict in verdicts} == {1.0}
    assert (asked.report["right"]["judged"], asked.report["right"]["remembered"]) == (1, 7)
    assert len(server.seen) == 1 + 10


def test_what_was_said_is_not_asked_twice_unless_it_is_to_be(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shelf(dict[str, Verdict]):
        def recall(self, keys: Any) -> dict[str, Verdict]:
            return {key: self[key] for key in keys if key in self}

        def keep(self, said: Any) -> None:
            self.update(said)

        def forget(self, keys: Any) -> None:
            for key in keys:
                self.pop(key, None)

    server, spec, shelf = serve(naming("austen")), rubric(), Shelf()
    assert said(judge_of(server, spec, memory=shelf), spec, "Austen", "Dickens")[0].score == 1.0
    assert len(shelf) == 2
    asked = judge_of(server, spec, memory=shelf)
    before = len(server.seen)
    assert [verdict.score for verdict in said(asked, spec, "Austen", "Dickens")] == [1.0, 0.0]
    assert len(server.seen) - before == 10, "canaries are asked in every run"
    assert (asked.report["right"]["judged"], asked.report["right"]["remembered"]) == (0, 2)
    trace = attempt_json(Trace.from_messages("", [Message("user", TASK.prompt), Message("assistant", "Austen")]))
    asked(part(spec), trace, None, anew=True)
    assert asked.report["right"]["judged"] == 1
    other = rubric(criteria="It names the author and the year.")
    assert said(judge_of(server, other, memory=shelf), other, "Austen")[0].score == 1.0
    assert len(shelf) == 3, "another judge has said nothing yet"
    server.model = "rule-2"
    changed = judge_of(server, spec, memory=shelf, report=asked.report)
    said(changed, spec, "Austen")
    assert changed.report["right"]["models"] == ["rule-1", "rule-2"]
    assert len(shelf) == 4, "nor has another model"
    server.mark = credulous
    void = judge_of(server, spec, memory=shelf)
    monkeypatch.setattr(asking, "EVERY", 1)
    server.mark = lambda *_: 1 if len(server.seen) > before else 0
    before = len(server.seen) + 10
    said(void, spec, "Austen")
    said(void, spec, "Bronte")
    assert void.void
    assert len(shelf) == 3, "what a void judge said of these is forgotten, whenever it was said"


def test_what_a_server_says_can_be_kept_whatever_it_says(serve: Serve) -> None:
    """PostgreSQL takes neither NUL nor half a surrogate pair."""
    server = serve(lambda *_: '{"reason": "\\u0000 <b>\\ud800", "mark": 0}')
    server.model = "a\0b\ud800"
    spec = rubric()
    asked = judge_of(server, spec)
    (verdict,) = said(asked, spec, "Austen")
    assert verdict.reason == "right: 0 of 1: \ufffd <b>?"
    assert asked.report["right"]["models"] == ["a\ufffdb?"]
    server.mark = lambda *_: "\0\ud800"
    (verdict,) = said(asked, spec, "Bronte")
    assert verdict.cause == "malformed"
    json.dumps(verdict.reason, ensure_ascii=False).encode()
    assert "\0" not in verdict.reason
    server.mark = lambda *_: 404
    (verdict,) = said(asked, spec, "Dickens")
    assert (verdict.cause, "\0" in verdict.reason) == ("judge", False)


@pytest.mark.parametrize("status", [401, 404, 400])
def test_a_server_that_refuses_leaves_everything_unscored(serve: Serve, status: int) -> None:
    spec = rubric()
    asked = judge_of(serve(lambda *_: status), spec)
    (verdict,) = said(asked, spec, "Austen")
    assert (verdict.score, verdict.cause) == (None, "judge")
    assert f"the server answered {status}" in asked.problem
    assert not asked.void


def test_a_server_that_takes_too_long_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda data, _: 1.5 if "Austen" in answer_of(data) else 0)
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.2)
    spec = rubric()
    asked = judge_of(server, spec)
    assert said(asked, spec, "Dickens")[0].score == 0.0
    (verdict,) = said(asked, spec, "Austen")
    assert (verdict.score, verdict.cause) == (None, "judge")
    assert "no complete answer within 0.2 s" in verdict.reason


def test_nobody_to_ask_and_nothing_to_compare_are_told_apart() -> None:
    spec = rubric()
    env = build("tool_call", {"tools": TOOLS}, spec)
    attempt = (TASK, [Message("user", "x"), Message("assistant", "y")])
    assert attempt_verdicts.verdict(env, attempt).cause == "refused"
    nowhere = Judge({}, {})
    assert said(nowhere, spec, "Austen")[0].cause == "judge"
    lacking = rubric(target="year")
    assert said(nowhere, lacking, "Austen")[0].cause == "target"


def test_a_required_part_that_fails_costs_no_question(serve: Serve) -> None:
    server = serve(naming("austen"))
    spec = rubric()
    spec["parts"].append({"type": "regex", "name": "named", "pattern": "Austen", "required": True, "weight": 0})
    asked = judge_of(server, spec)
    assert [verdict.score for verdict in said(asked, spec, "Dickens", "Jane Austen")] == [0.0, 1.0]
    assert asked.report["right"]["judged"] == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"criteria": " "}, "parts.0.criteria: expected a text"),
        ({"model": ""}, "parts.0.model: expected a text of 1 to"),
        ({"endpoint": "http://evil"}, "parts.0.endpoint: 'http://evil' is unknown"),
        ({"top": 11}, "parts.0.top: 11 is not a whole number from 1 to 10"),
        ({"top": 1.5}, "parts.0.top: 1.5 is not"),
        ({"votes": 4}, "parts.0.votes: 4 is even"),
        ({"top": 3}, "parts.0.anchors: say at least what 0 and 3 mean"),
        ({"top": 3, "anchors": "0 = no\n5 = yes"}, "parts.0.anchors: '5 = yes' is not like"),
        ({"top": 3, "anchors": "0 = no\n0 = yes"}, "parts.0.anchors: '0 = yes' is not like"),
        ({"canaries": "\n\n".join("abcdefghijklmnopqrstuvw")}, "parts.0.canaries: 20 are the most"),
        ({"api_key_env": "X_API_KEY"}, "parts.0.api_key_env: a part of type judge has no such setting"),
    ],
)
def test_settings_that_are_wrong_are_refused_at_their_field(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as raised:
        read(rubric(**fields))
    assert str(raised.value).startswith(problem)


def test_every_setting_is_part_of_who_the_judge_is() -> None:
    other = {"criteria": "x", "endpoint": "vllm", "model": "n", "sees": "episode", "target": "answer", "votes": 3}
    other |= {"anchors": "0 = a\n1 = b", "canaries": "no", "top": 2}
    assert set(other) == set(PARTS["judge"].settings)
    digests = {judge_prompts.part_digest(part(rubric()))}
    for key, value in other.items():
        more = {"anchors": "0 = a\n2 = b"} if key == "top" else {}
        digests.add(judge_prompts.part_digest(part(rubric(**{key: value}, **more))))
    assert len(digests) == 1 + len(other)


def test_in_a_trainer_nobody_is_asked_and_held_out_tasks_stay_unscored() -> None:
    told: list[dict[str, Any]] = []
    settings = {"max_completion_length": 16}
    run: Any = SimpleNamespace(
        spec=SimpleNamespace(eval_limit=4, seed=1, settings=settings),
        event=lambda kind, **fields: told.append({"kind": kind, **fields}),
    )
    env = build("tool_call", {"tools": TOOLS}, rubric(), attempt_verdicts.RUNNERS)
    HeldOut(run, env, [TASK], FakeEngine(lambda _: ChatResponse(text="Austen")))(0)
    assert (told[0]["success"], told[0]["n"], told[0]["unscored"]) == (None, 0, 1)
    assert "nothing here may ask a judge" in told[1]["samples"][0]["reason"]


def test_a_judge_that_is_closed_is_waited_for_no_longer() -> None:
    spec = rubric()
    with judge_server(lambda *_: 429) as server, ThreadPoolExecutor(1) as pool:
        asked = judge_of(server, spec)
        waiting = pool.submit(said, asked, spec, "Jane Austen.")
        wait_for(lambda: server.seen, "it was asked, and is full")
        asked.close()
        (verdict,) = waiting.result(60)
    assert (verdict.score, verdict.cause) == (None, "judge")
