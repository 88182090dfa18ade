"""The turns of a user in an attempt that is played on: answers to what the agent says without calling anything.

A turn is `{"say": the user's words, "after": the agent's words that they answer, "calls": [{"tool", "arguments"}, …]}`,
the calls being those that the agent made since the turn before. Recorded turns (`turns` in a task's state) are said in
their order, and only while the conversation still fits: the calls of the attempt are, as a set, those that were
recorded by then, and the agent asks only where the recorded one asked, naming the same things.

A script (`script` in an environment's config, or in a task's state, whose lines come first) is a list of
`{"say": …, "after": …}`. The first line that fits what the agent says is said, each once; without `after` it fits
anything. Nothing here is a model: who says something else than was foreseen gets no answer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from flywheel.core.envs.replay import spoken_answers
from flywheel.core.envs.replay.spoken_answers import Known
from flywheel.core.envs.replay.wanted_items import STOCK, is_exact_call, wanted_calls
from flywheel.core.traces import Message, ToolCall, tooling
from flywheel.core.verifiers import VerifierError

USERS = ("replay", "script")
MOST_LINES = 100
"""Of a script, and turns of a recording: no attempt has more."""
LONGEST_LINE = 4_000
"""Characters."""
_CORRECTS = re.compile(
    r"^\W*(?:no|nope|not|don't|wait|stop|hold on|sorry|actually)\b|\b(?:wrong|wrongly|incorrect)\b"
    r"|\bi (?:meant|mean|said|told|never|asked|wanted|already)\b"
    r"|(?:\b(?:is|was|are|were)(?: not|n't)|'s not) (?:right|correct|true|what)\b"
    r"|\b(?:you (?:forgot|missed|misunderstood|did not|didn't|should)|instead|undo|mistake)\b",
    re.IGNORECASE,
)
"""How a user says that something went wrong, in English."""


def next_turn(state: Mapping[str, Any], script: Sequence[Mapping[str, Any]] | None, messages: Sequence[Message]) -> str:
    """Answer the last of an attempt's messages: by the script, or as recorded where it is None. Empty where the user
    has no answer."""
    if script is None:
        return _recorded_turn(state.get("turns") or (), messages)
    line = _fitting(_unused(lines_of(state, script), messages), messages[-1].content)
    return str(line["say"]) if line else ""


def lines_of(state: Mapping[str, Any], script: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of a script for a task: its own, and then everybody's."""
    return [*(state.get("script") or ()), *script]


def lines_in(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All that a user may say in attempts at a task by its own state, recorded or not. In a state of another kind these
    names may be tables of its world, in which whatever looks otherwise is passed over."""
    rows = [*_rows(state.get("turns")), *_rows(state.get("script"))]
    return [row for row in rows if isinstance(row, Mapping) and isinstance(row.get("say"), str)]


def lead(
    lines: Sequence[Mapping[str, Any]],
    items: Sequence[Mapping[str, Any]],
    before: Sequence[Message],
    messages: Sequence[Message],
) -> str:
    """The words to which a script answers with something that is wanted and that nobody has said, for a solution that
    makes nothing up; empty where there are none. `before` is the beginning, `messages` the attempt."""
    known = Known(words_of([*before, *messages]))
    telling = (line for line in _unused(lines, messages) if gives_away(line["say"], items, known))
    return next((str(line.get("after") or STOCK["question"]) for line in telling), "")


def gives_away(text: str, items: Sequence[Mapping[str, Any]], known: Known) -> bool:
    """Whether a user's words tell what is wanted, as far as it is not known."""
    return any(spoken_answers.gives_away(text, value, known) for value in _values(items))


def recorded_turns(
    begun: Sequence[Message], later: Sequence[Message], wanted: Sequence[Mapping[str, Any]], *, is_failure: bool
) -> list[dict[str, Any]]:
    """The turns of the user in what was recorded after the beginning, up to the first that cannot be said to another
    attempt: it corrects the failure, tells what is wanted, or answers no words. What follows it was said to an agent
    that had heard it."""
    turns: list[dict[str, Any]] = []
    calls: list[ToolCall] = []
    words, known = "", Known(words_of(begun))
    for role, group in groupby(later, key=lambda message: message.role):
        some = list(group)
        if role == "assistant":
            calls += [call for message in some for call in tooling.calls_of(message)]
            words = "" if tooling.calls_of(some[-1]) else some[-1].content.strip()
        elif role == "user":
            say = "\n\n".join(filter(None, (message.content.strip() for message in some)))
            is_correction = is_failure and _CORRECTS.search(say.replace("’", "'"))
            is_broken = any(not isinstance(call.arguments, dict) for call in calls)
            is_all = len(turns) == MOST_LINES
            if is_all or not (say and words) or is_correction or is_broken or gives_away(say, wanted, known):
                break
            made = [{"tool": call.name, "arguments": call.arguments} for call in calls]
            turns.append({"say": say, "after": words, "calls": made})
            calls, words = [], ""
        known.add(words_of(some))
    return turns


def check_script(value: Any) -> list[Mapping[str, Any]]:
    """The lines of a script. Raises VerifierError, which names the field."""
    return _checked("script", value, ("say", "after"))


def check_turns(value: Any) -> list[Mapping[str, Any]]:
    """The recorded turns of a task. Raises VerifierError, which names the field."""
    turns = _checked("turns", value, ("say", "after", "calls"))
    for place, turn in enumerate(turns):
        if "after" not in turn:
            raise VerifierError(f"turns.{place}.after: expected the agent's words")
        calls = turn.get("calls")
        if not isinstance(calls, list):
            raise VerifierError(f"turns.{place}.calls: expected a list of calls")
        for number, call in enumerate(calls):
            is_call = isinstance(call, Mapping) and isinstance(call.get("tool"), str)
            if not is_call or not isinstance(call.get("arguments"), Mapping):
                raise VerifierError(f'turns.{place}.calls.{number}: expected {{"tool": name, "arguments": {{…}}}}')
    return turns


def _checked(field: str, value: Any, names: Sequence[str]) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or len(value) > MOST_LINES:
        raise VerifierError(f'{field}: expected a list of at most {MOST_LINES} lines {{"say": …, "after": …}}')
    for place, line in enumerate(value):
        if not isinstance(line, Mapping):
            raise VerifierError(f'{field}.{place}: expected an object {{"say": …, "after": …}}')
        if odd := next((name for name in line if name not in names), None):
            raise VerifierError(f"{field}.{place}.{str(odd)[:100]}: there is no such field, only {', '.join(names)}")
        for name in ("say", "after"):
            text = line.get(name, "" if name == "say" else "-")
            if not isinstance(text, str) or not text.strip():
                raise VerifierError(f"{field}.{place}.{name}: expected a text")
            if field == "script" and len(text) > LONGEST_LINE:
                raise VerifierError(f"{field}.{place}.{name}: expected at most {LONGEST_LINE} characters")
    return value


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _recorded_turn(turns: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> str:
    place = sum(message.role == "user" for message in messages)
    if place >= len(turns) or not _fits(messages[-1].content, turns[place]["after"]):
        return ""
    made = [call for message in messages if message.role == "assistant" for call in tooling.calls_of(message)]
    recorded = [call for turn in turns[: place + 1] for call in turn["calls"]]
    is_made = all(any(is_exact_call(call, one) for call in made) for one in recorded)
    is_all = all(any(is_exact_call(call, one) for one in recorded) for call in made)
    return str(turns[place]["say"]) if is_made and is_all else ""


def _unused(lines: Sequence[Mapping[str, Any]], messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The lines that were not said yet, each message of a user having taken the one that fitted."""
    left = list(lines)
    for said, answer in pairwise(messages):
        if (said.role, answer.role) == ("assistant", "user") and (line := _fitting(left, said.content)):
            left.remove(line)
    return left


def _fitting(lines: Sequence[Mapping[str, Any]], words: str) -> Mapping[str, Any] | None:
    return next((line for line in lines if "after" not in line or _fits(words, line["after"])), None)


def _fits(words: str, after: str) -> bool:
    """Whether an answer to these words of the agent answers those, too."""
    is_question = [spoken_answers.question(text, "").score == 1.0 for text in (words, after)]
    return is_question[0] == is_question[1] and spoken_answers.names_the_same(words, after)


def _values(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The texts and numbers that are wanted."""
    for call in wanted_calls(items):
        yield from _leaves(call["arguments"])
    for item in items:
        yield from filter(None, [item.get("text", ""), *item.get("or", ())])


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(each)


def words_of(messages: Sequence[Message]) -> str:
    """All that stands in messages, arguments of calls too."""
    texts = [message.content for message in messages]
    called = [call.arguments for message in messages for call in tooling.calls_of(message)]
    return "\n".join([*texts, *(json.dumps(each, ensure_ascii=False) for each in called)])
