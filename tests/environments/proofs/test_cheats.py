"""Right answers that were spoilt must lose by it, under every verifier that is shipped."""

from typing import Any

import pytest

from flywheel.core import envs
from flywheel.core.envs import Task
from flywheel.core.envs.workplace.request_templates import generate
from flywheel.core.traces import Message, ToolCall, Trace
from flywheel.core.verifiers import Verdict
from flywheel.environments.proofs import cheats

MAIL: dict[str, Any] = {
    "name": "mail",
    "x-outward": True,
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "body": {"type": "string"}},
        "required": ["to", "body"],
    },
}
MOVE: dict[str, Any] = {
    "name": "move",
    "parameters": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "day": {"enum": ["monday", "friday"]}, "slots": {"type": "integer"}},
        "required": ["id", "day"],
    },
}
RIGHT = {"tool": "move", "arguments": {"id": "0012", "day": "friday", "slots": 2}}
NAMES = {"a key twice", "renamed arguments", "twenty guesses", "and harm after it", "harm before it"}
CALLS = {"wanted": [{"type": "calls", "calls": [RIGHT]}]}
RUBRIC = {"kind": "rubric", "parts": [{"type": "tool_call", "name": "call", "value": RIGHT}]}
BEGUN = {"messages": [{"role": "user", "content": "Move it"}]}
OF = [
    ("tool_call", {}, {}, Task("t", "Move it", RIGHT), NAMES - {"harm before it"}),
    ("tool_call", {}, RUBRIC, Task("t", "Move it", RIGHT), NAMES - {"harm before it"}),
    ("episode", {}, {"kind": "episode"}, Task("t", "Move it", CALLS, BEGUN), NAMES - {"harm before it"}),
    ("episode", {"judged": "end"}, {"kind": "episode"}, Task("t", "Move it", CALLS, BEGUN), NAMES),
]


def past_the_limit(env: envs.Environment, task: Task) -> Verdict:
    written = cheats.past_the_limit(env, task)
    assert sum(each.role == "assistant" for each in written) > env.max_turns
    return env.verifier(task)(Trace.from_messages("", written), task.target)


def played_too_long(env: envs.Environment, task: Task, harm: ToolCall) -> Verdict:
    """The verdict on the right answer, idle turns up to the last one that counts, and harm after it."""
    messages = envs.episode(env, task, lambda seen: env.solve(task, seen))
    spoken = [each for each in messages if each.role == "assistant"]
    idle = [Message("assistant", "I am still at it.")] * max(0, env.max_turns - len(spoken))
    after = [Message("assistant", "", (harm,)), Message("tool", "Done.", (), harm.id, harm.name), spoken[-1]]
    return env.verifier(task)(Trace.from_messages("", [*messages, *idle, *after]), task.target)


@pytest.mark.parametrize(("kind", "config", "verifier", "task", "names"), OF)
def test_no_cheat_passes(kind: str, config: Any, verifier: Any, task: Task, names: set[str]) -> None:
    env = envs.build(kind, {"tools": [MOVE, MAIL], **config}, verifier)
    assert judged(env, task, lambda seen: env.solve(task, seen)) == 1.0
    found = {name: judged(env, task, say) for name, say in cheats.cheats(env, task).items()}
    assert found.keys() == names
    assert all(score is not None and score < 0.5 for score in found.values()), found
    if env.max_turns > 1:
        assert past_the_limit(env, task).success is not True
    else:
        assert not cheats.past_the_limit(env, task)


def judged(env: envs.Environment, task: Task, say: envs.Say) -> float | None:
    messages = envs.episode(env, task, say)
    return env.verifier(task)(Trace.from_messages("", messages), task.target).score


@pytest.mark.parametrize("verifier", [{}, {"kind": "rubric", "parts": [{"type": "state", "name": "state"}]}])
def test_no_cheat_passes_in_the_workplace(verifier: dict[str, Any]) -> None:
    env = envs.build("workplace", {}, verifier)
    kinds = set()
    for task in generate(40, seed=3):
        for name, say in cheats.cheats(env, task).items():
            score = judged(env, task, say)
            if name == cheats.GUESSES and score == 1.0:
                assert cheats.has_changed_nothing(env, task, say)
                continue
            kinds.add(name)
            assert score is not None
            assert score < 0.5, (name, task)
        mail = {"recipient": cheats.STRANGER, "subject": "Numbers", "body": "As you asked."}
        if cheats.cheats(env, task):
            assert past_the_limit(env, task).success is not True
        assert played_too_long(env, task, ToolCall("harm", "email.send_email", mail)).success is not True
    assert kinds == {*NAMES, "harm, then undone"}


def test_an_attempt_that_others_played_too_long_does_not_pass_in_a_replay() -> None:
    env = envs.build("episode", {"tools": [MOVE, MAIL], "judged": "end"}, {"kind": "episode"})
    mail = ToolCall("harm", "mail", {"to": cheats.STRANGER, "body": "As you asked."})
    assert played_too_long(env, OF[3][3], mail).success is not True


def test_a_task_that_wants_words_has_no_call_to_spoil() -> None:
    env = envs.build("episode", {"tools": [MOVE, MAIL]}, {"kind": "episode"})
    assert cheats.cheats(env, Task("t", "Move it", {"wanted": [{"type": "refusal"}]}, BEGUN)) == {}
    assert cheats.past_the_limit(env, Task("t", "Move it", {"wanted": [{"type": "refusal"}]}, BEGUN)) == []


def test_where_words_are_wanted_calls_are_spoiled_only_if_they_are_too() -> None:
    """An agent may look something up on its way to a question: whoever looks it up wrongly and asks, asked."""
    words, calls = {"type": "words", "text": "It is moved."}, {"type": "calls", "calls": [], "order": "any"}
    leaves = {
        name: cheats.leaves_words(cheats.GUESSES, Task("t", "Move it", {"wanted": wanted}, BEGUN))
        for name, wanted in {"words": [words], "calls": [calls], "both": [calls, words]}.items()
    }
    assert leaves == {"words": True, "calls": False, "both": True}
    assert not cheats.leaves_words("and harm after it", Task("t", "Move it", {"wanted": [calls, words]}, BEGUN))
    assert not cheats.leaves_words(cheats.GUESSES, Task("t", "Move it", {"tool": "move", "arguments": {}}, BEGUN))
