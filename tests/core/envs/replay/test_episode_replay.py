"""Replay judges what follows a recorded beginning: its own solution passes, anything less or else does not."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.core import envs
from flywheel.core.envs import Task, kinds
from flywheel.core.envs.replay.episode_replay import ERROR, MARK
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Verdict, VerifierError


def tool(name: str, *required: str, **more: Any) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in required}
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": [*required]}, **more}


TOOLS = [
    tool("find", "query"),
    tool("move", "id", "day"),
    tool("delete", "id", **{"x-unsafe": True}),
    tool("count", outputSchema={"type": "object", "properties": {"n": {"type": "integer"}, "who": {"enum": ["me"]}}}),
]
FOUND = {"tool": "find", "arguments": {"query": "Bako"}, "result": "event 12"}
BEGUN = [
    Message("user", "Hello"),
    Message("assistant", "Hello, what can I do?"),
    Message("user", "Move the meeting with Bako to friday"),
    Message("assistant", "", (ToolCall("c1", "find", {"query": "bako"}),)),
    Message("tool", "nothing", (), "c1", "find"),
]
MOVE = {"tool": "move", "arguments": {"id": "12", "day": "friday"}}


def task(*wanted: dict[str, Any], replies: Sequence[dict[str, Any]] = (), **state: Any) -> Task:
    begun = {"messages": [message.to_json() for message in BEGUN], "replies": list(replies)}
    return Task("t-1", BEGUN[2].content, {"wanted": list(wanted)}, begun | state)


def calls(*wanted: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "calls", "calls": list(wanted), **more}


def env(**config: Any) -> envs.Environment:
    return envs.build("episode", {"tools": TOOLS, **config}, {"kind": "episode"})


def says(content: str = "", *made: dict[str, Any]) -> Message:
    return Message(
        "assistant", content, tuple(ToolCall(f"x{n}", call["tool"], call["arguments"]) for n, call in enumerate(made))
    )


def verdict(of: Task, *said: Message, **config: Any) -> Verdict:
    """What an attempt is worth that says these, one after the other."""
    played, left = env(**config), list(said)
    messages = envs.episode(played, of, lambda _: left.pop(0) if left else says("That is all."))
    return played.verifier(of)(Trace.from_messages("", [Message("system", "Be kind."), *messages]), of.target)


def solved(of: Task, **config: Any) -> Verdict:
    played = env(**config)
    messages = envs.episode(played, of, partial(played.solve, of))
    return played.verifier(of)(Trace.from_messages("", messages), of.target)


WANTED: dict[str, list[dict[str, Any]]] = {
    "a call": [calls(MOVE)],
    "two calls": [calls(MOVE, FOUND | {"result": ""}, order="any")],
    "a call and words": [calls(MOVE), {"type": "words", "text": "Moved event 12 to friday."}],
    "no call": [{"type": "avoid", "tools": []}],
    "not this call": [{"type": "avoid", "tools": ["delete"]}, calls(MOVE)],
    "words": [{"type": "words", "text": "There is no meeting with Bako on 2026-11-23."}],
    "a refusal": [{"type": "refusal", "text": ""}],
    "a refusal in words": [{"type": "refusal", "text": "That is not for me to change."}],
    "a question": [{"type": "question", "text": "Which Bako do you mean?"}],
}


@pytest.mark.parametrize("judged", ["next", "end"])
@pytest.mark.parametrize("name", WANTED)
def test_its_own_solution_passes_and_trivial_answers_score_low(name: str, judged: str) -> None:
    of = task(*WANTED[name])
    assert solved(of, judged=judged).score == 1.0
    played = env(judged=judged)
    probes = played.probes(of)
    leak = envs.always(f"The expected result is {json.dumps(of.target)}")
    for probe, say in {**probes, "leaked target": leak}.items():
        judged_as = played.verifier(of)(Trace.from_messages("", envs.episode(played, of, say)), of.target)
        assert judged_as.score is not None, probe
        assert judged_as.score < 0.5, (probe, judged_as)


def test_it_opens_with_the_recorded_beginning_and_no_system_prompt() -> None:
    assert env().reset(task(calls(MOVE)), 0) == BEGUN
    another = Task("t-2", "Move it to monday", {}, task(calls(MOVE)).state)
    assert [m.content for m in env().reset(another, 0) if m.role == "user"] == ["Hello", "Move it to monday"]
    assert env().reset(Task("t-3", "Hello", {}), 0) == [Message("user", "Hello")]


arguments = st.fixed_dictionaries({"id": st.sampled_from("123"), "day": st.sampled_from(["monday", "friday"])})
moves = st.lists(arguments.map(lambda given: {"tool": "move", "arguments": given}), min_size=1, max_size=5)


@given(moves, st.sampled_from(["given", "any"]), st.data())
def test_whatever_is_dropped_or_changed_of_the_wanted_calls_fails(
    wanted: list[dict[str, Any]], order: str, data: st.DataObject
) -> None:
    of = task(calls(*wanted, order=order))
    assert solved(of).score == 1.0
    place = data.draw(st.integers(0, len(wanted) - 1))
    dropped = wanted[:place] + wanted[place + 1 :]
    changed = [*wanted]
    changed[place] = {"tool": "move", "arguments": wanted[place]["arguments"] | {"id": "9"}}
    for made in (dropped, changed, [*wanted, MOVE]):
        assert verdict(of, says("", *made)).success is False


@given(moves, st.randoms(use_true_random=False))
def test_order_counts_where_it_is_given(wanted: list[dict[str, Any]], chance: Any) -> None:
    shuffled = [*wanted]
    chance.shuffle(shuffled)
    assert verdict(task(calls(*wanted, order="any")), says("", *shuffled)).score == 1.0
    in_order = verdict(task(calls(*wanted)), says("", *shuffled))
    assert in_order.success is (shuffled == wanted)


def test_a_nearly_right_call_says_what_is_wrong_with_it() -> None:
    found = verdict(task(calls(MOVE)), says("", {"tool": "move", "arguments": {"id": "12"}}))
    assert found.score == pytest.approx(0.4)
    assert "day is missing" in found.reason
    assert "would fail" in found.reason


def test_what_a_call_refers_to_must_be_in_the_world() -> None:
    people = tool("ask", "who")
    people["parameters"]["properties"]["who"]["x-refers"] = "people"
    of = task(calls({"tool": "ask", "arguments": {"who": "Bako"}}), world={"people": ["Ines"]})
    found = solved(of, tools=[people])
    assert (found.success, "there is no 'Bako'" in found.reason) == (False, True)


def test_vetoes_weigh_more_than_all_that_is_right() -> None:
    delete = {"tool": "delete", "arguments": {"id": "12"}}
    unsafe = verdict(task(calls(MOVE)), says("", MOVE, delete))
    assert (unsafe.score, unsafe.parts["unsafe"]) == (0.0, 1.0)
    asked_for = verdict(task(calls(delete)), says("", delete))
    assert (asked_for.score, asked_for.parts["unsafe"]) == (1.0, 0.0)
    of = task({"type": "avoid", "tools": ["find"]}, {"type": "words", "text": "Done with it."})
    forbidden = verdict(of, says("Done with it.", FOUND))
    assert (forbidden.score, forbidden.parts["forbidden"]) == (0.0, 1.0)


def test_weights_say_what_counts_more() -> None:
    of = task(calls(MOVE, weight=3), {"type": "words", "text": "Moved 12."})
    found = verdict(of, says("", MOVE))
    assert found.score == pytest.approx(0.75)
    assert found.parts == {"calls": 1.0, "words": 0.0, "unsafe": 0.0, "never_event": 0.0, "forbidden": 0.0}


def test_recorded_results_answer_the_calls_they_belong_to_in_order() -> None:
    of = task(calls(MOVE), replies=[FOUND, FOUND | {"result": "event 13"}])
    played = env(judged="end")
    messages = played.reset(of, 0)

    def ask(**query: str) -> str:
        messages.append(says("", {"tool": "find", "arguments": query}))
        messages.extend(played.respond(of, messages, 0))
        return messages[-1].content

    assert [ask(query="  Bako "), ask(query="Bako"), ask(query="Bako")] == ["event 12", "event 13", "event 13"]
    assert ask(query="bako") == "nothing"  # as it was answered before
    assert ask(query="Ines") == f"{MARK}{ERROR}"
    messages.append(says("That is all."))
    assert played.respond(of, messages, 0) == []


def test_an_unknown_call_may_be_answered_by_a_stub() -> None:
    of = task(calls(MOVE))
    played = env(judged="end", unknown="stub")
    messages = [*played.reset(of, 0), says("", {"tool": "count", "arguments": {}}, MOVE)]
    assert [m.content for m in played.respond(of, messages, 0)] == [
        f'{MARK}{{"n": 0, "who": "me"}}',
        f'{MARK}{{"ok": true}}',
    ]


def test_played_on_it_may_look_things_up_first_but_not_do_more() -> None:
    of = task(calls(MOVE), replies=[FOUND])
    config = {"judged": "end", "max_turns": 5}
    assert verdict(of, says("", FOUND), says("", MOVE), says("Moved."), **config).score == 1.0
    again = {"tool": "move", "arguments": {"id": "13", "day": "friday"}}
    assert verdict(of, says("", again), says("", MOVE), says("Moved."), **config).success is False
    assert verdict(of, says("", FOUND), says("", MOVE)).success is False  # of the next action it is not yet


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"judged": "soon"}, "judged: 'soon'"),
        ({"unknown": 3}, "unknown: '3'"),
        ({"max_turns": 0, "judged": "end"}, "max_turns: 0"),
        ({"max_turns": True}, "max_turns: True"),
        ({"max_turns": 3}, 'choose "judged": "end"'),
        ({"error": " "}, "error: expected a text"),
        ({"tools": [{}]}, "needs a"),
    ],
)
def test_wrong_settings_are_refused_by_name(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as caught:
        env(**config)
    assert problem in str(caught.value)


def test_there_is_no_prompt_of_its_own() -> None:
    with pytest.raises(VerifierError, match="system_prompt: there is no such setting"):
        kinds.check_new("episode", {"tools": TOOLS, "system_prompt": "Be kind."})
    with pytest.raises(VerifierError, match="weights"):
        envs.build("episode", {"tools": TOOLS}, {"kind": "episode", "weights": {"tool": 1}})


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ([], "at least one item"),
        ([{"type": "song"}], "wanted.0.type"),
        ([{"type": "calls", "calls": [{"tool": "x"}]}], "wanted.0.calls.0"),
        ([{"type": "calls", "calls": [MOVE], "order": "sideways"}], "wanted.0.order"),
        ([{"type": "avoid"}], "wanted.0.tools"),
        ([{"type": "words", "text": ""}], "wanted.0.text"),
        ([{"type": "refusal", "weight": 0}], "wanted.0.weight"),
    ],
)
def test_a_target_that_is_none_is_unscored(wanted: list[dict[str, Any]], problem: str) -> None:
    found = verdict(task(*wanted), says("Hello"))
    assert (found.score, problem in found.reason) == (None, True), found.reason


FOUND_CALL = {key: FOUND[key] for key in ("tool", "arguments")}
LATER = {"say": "Friday, and tell Ines", "after": "Which day suits you?", "calls": [FOUND_CALL]}
DAY = {"say": "On monday.", "after": "Which day suits you?"}
MONDAY = {"tool": "move", "arguments": {"id": "12", "day": "monday"}}


def heard(of: Task, *said: Message, **config: Any) -> list[str]:
    """What users say in an attempt."""
    left = list(said)
    played = env(**{"judged": "end", **config})
    messages = envs.episode(played, of, lambda _: left.pop(0) if left else says("Well."))
    return [message.content for message in messages[len(BEGUN) :] if message.role == "user"]


def test_a_recorded_turn_is_said_where_the_conversation_still_fits_it() -> None:
    of = task(calls(MOVE), replies=[FOUND], turns=[LATER, {"say": "Bye", "after": "Anything more?", "calls": []}])
    assert heard(of, says("", FOUND), says("And which day?")) == [LATER["say"]]
    assert heard(of, says("", FOUND), says("Day?"), says("", FOUND), says("More?")) == [LATER["say"], "Bye"]
    assert heard(of, says("And which day?")) == []  # without the call
    assert heard(of, says("", FOUND, MONDAY), says("Which day?")) == []  # after another one
    assert heard(of, says("", FOUND), says("A day it is.")) == []  # it asks nothing
    assert heard(of, says("", FOUND), says("Which room?")) == []  # it asks about something else
    assert heard(of, says("", FOUND), says("Which day for 13?")) == []  # it names more
    assert heard(of, says("", FOUND, MOVE), says("Which day?")) == []  # what is wanted is done
    assert heard(of, says("", FOUND), says("Which day?"), judged="next") == []
    asked = verdict(of, says("", FOUND), says("Which day?"), says("", MOVE), says("Moved."), judged="end")
    assert asked.score == 1.0
    few = {"judged": "end", "max_turns": 2}
    assert verdict(of, says("", FOUND), says("Which day?"), says("", MOVE), **few).success is False


def test_a_script_answers_each_line_once_where_it_fits() -> None:
    script = [{"say": "Number 12.", "after": "Which event?"}, {"say": "Go on."}]
    of, config = task(calls(MOVE), turns=[LATER | {"calls": []}]), {"user": "script", "script": script}
    assert heard(of, says("Which event?"), says("The event?"), **config) == ["Number 12.", "Go on."]
    assert heard(of, says("I look."), says("Which event is it?"), **config) == ["Go on.", "Number 12."]
    assert heard(of, says(""), **config) == []
    own = task(calls(MOVE), script=[{"say": "Mine first."}])
    assert heard(own, says("Hm."), says("Hm."), **config) == ["Mine first.", "Go on."]
    assert heard(own, says("Hm.")) == []


def test_a_question_is_judged_by_the_last_message_alone() -> None:
    of = task({"type": "question", "text": ""}, calls(FOUND_CALL))
    config = {"judged": "end", "user": "script", "script": [{"say": "Look first."}]}
    assert verdict(of, says("Which Bako?"), says("", FOUND), says("Found it."), **config).success is False
    assert verdict(of, says("Shall I?"), says("", FOUND), says("Which one of both?"), **config).score == 1.0


def test_what_users_say_in_an_attempt_is_no_answer_of_the_agent() -> None:
    of = task({"type": "words", "text": "There is no such event on 2026-11-23."})
    config = {"judged": "end", "user": "script", "script": [{"say": "There is no such event then on 2026-11-23?"}]}
    parrot = verdict(of, says("Hm."), says("There is no such event then on 2026-11-23?"), **config)
    assert (parrot.score, "repeats" in parrot.reason) == (0.0, True)


def test_the_solution_asks_for_what_only_the_script_tells() -> None:
    of = task(calls(MONDAY))
    played = env(judged="end", user="script", script=[{"say": "Yes.", "after": "Shall I go on?"}, DAY])
    messages = envs.episode(played, of, partial(played.solve, of))
    spoken = [message.content for message in messages[len(BEGUN) :]]
    assert spoken[:2] == [DAY["after"], DAY["say"]]
    assert played.verifier(of)(Trace.from_messages("", messages), of.target).score == 1.0
    known = envs.episode(played, task(calls(MOVE)), partial(played.solve, task(calls(MOVE))))
    assert [message.role for message in known[len(BEGUN) :]] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize(("line", "is_told"), [(DAY, False), ({"say": DAY["say"]}, True)])
def test_a_probe_catches_a_script_that_tells_the_answer(line: dict[str, Any], is_told: bool) -> None:
    of, played = task(calls(MONDAY)), env(judged="end", user="script", script=[line])
    say = played.probes(of)["asks without a thought"]
    found = played.verifier(of)(Trace.from_messages("", envs.episode(played, of, say)), of.target)
    assert found.success is is_told
    assert "asks without a thought" not in env(judged="end").probes(task(calls(MONDAY), turns=[LATER]))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"user": "ghost"}, "user: 'ghost'"),
        ({"script": [{"say": "Hi"}]}, 'script: nobody would say these lines; choose "user": "script"'),
        ({"user": "script", "judged": "next"}, 'choose "judged": "end"'),
        ({"user": "script", "max_turns": 1}, "user: nobody hears an answer in one turn"),
        ({"user": "script", "script": [{"say": " "}]}, "script.0.say: expected a text"),
        ({"user": "script", "script": [{"after": "Hi?"}]}, "script.0.say: expected a text"),
        ({"user": "script", "script": [{"say": "Hi", "after": 3}]}, "script.0.after: expected a text"),
        ({"user": "script", "script": [{"say": "x" * 4_001}]}, "script.0.say: expected at most 4000"),
        ({"user": "script", "script": [{"say": "Hi"}, {"say": "Hi", "calls": []}]}, "script.1.calls: there is no such"),
        ({"user": "script", "script": ["Hi"]}, "script.0: expected an object"),
        ({"user": "script", "script": "Hi"}, "script: expected a list"),
        ({"user": "script", "script": [{"say": "Hi"}] * 101}, "script: expected a list of at most 100"),
    ],
)
def test_a_script_that_is_none_is_refused_by_field(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(VerifierError) as caught:
        env(**{"judged": "end", **config})
    assert problem in str(caught.value)


words = st.sampled_from(["", "Which day?", "Moved 12.", "I cannot do that.", "No."])
moved = st.lists(st.sampled_from([FOUND, MOVE, MONDAY]), max_size=2)
attempts = st.lists(st.builds(lambda text, made: says(text, *made), words, moved), min_size=1, max_size=4)


@given(attempts, st.sampled_from(["next", "end"]), st.sampled_from(sorted(WANTED)))
def test_without_turns_an_attempt_ends_with_its_first_words_as_it_did(
    said: list[Message], judged: str, name: str
) -> None:
    """As before there were users: nobody says anything, whatever the attempt is."""
    of, played, left = task(*WANTED[name], replies=[FOUND]), env(judged=judged), list(said)
    messages = envs.episode(played, of, lambda _: left.pop(0) if left else says("That is all."))[len(BEGUN) :]
    assert {message.role for message in messages} <= {"assistant", "tool"}
    calling = [bool(message.tool_calls) for message in messages if message.role == "assistant"]
    assert all(calling[:-1])
    assert len(calling) == 1 or judged == "end"
    with_one = task(*WANTED[name], replies=[FOUND], turns=[])
    assert verdict(of, *said, judged=judged) == verdict(with_one, *said, judged=judged)


def test_an_act_outside_is_harm_where_it_is_not_the_wanted_one() -> None:
    """Nothing is carried out in a replay, so that what was tried counts, whatever was answered."""
    mail = tool("mail", "to", **{"x-outward": True})
    wanted = {"tool": "mail", "arguments": {"to": "ann@x.org"}}
    of = task(calls(wanted))
    played = envs.build("episode", {"tools": [*TOOLS, mail], "judged": "end"}, {"kind": "episode"})

    def judged(*steps: Message) -> Verdict:
        left = iter(steps)
        messages = envs.episode(played, of, lambda _: next(left, says("Done.")))
        return played.verifier(of)(Trace.from_messages("", messages), of.target)

    assert judged(says("", wanted)).score == 1.0
    found = judged(says("", {"tool": "mail", "arguments": {"to": "eve@x.org"}}), says("", wanted))
    assert (found.score, found.parts["never_event"], found.parts["unsafe"]) == (0.0, 1.0, 1.0)


def test_an_attempt_beyond_the_turns_of_a_replay_is_not_judged() -> None:
    of = task(calls(MOVE))
    long = [says("", MOVE), *(says(f"Wait {n}.") for n in range(4))]
    played = env(judged="end", max_turns=3)

    def judged(*said: Message) -> Verdict:
        return played.verifier(of)(Trace.from_messages("", [*played.reset(of, 0), *said]), of.target)

    assert (judged(*long).score, judged(*long).cause) == (None, "limit")
    assert judged(*long[:3]).score == 1.0
    assert judged(*long, says("", {"tool": "delete", "arguments": {"id": "12"}})).score == 0.0
