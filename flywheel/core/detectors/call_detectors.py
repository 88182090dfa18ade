"""Faults of a single call: broken format, invented tools, bad arguments, unsafe actions."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from flywheel.core.detectors import request_words
from flywheel.core.detectors.scene import (
    CUT,
    LONG,
    Found,
    Scene,
    as_word,
    called,
    find,
    folded,
    is_put_right,
    made_up,
    plain_name,
    quoted,
)
from flywheel.core.traces import tooling
from flywheel.core.traces.episodes import Call, Turn

_TRIES = re.compile(
    r"(^|\n)\s*action\s*:\s*(```\w*\s*)?(\[\s*)?\{|<tool_call>|<function="
    r'|(^\s*|```\w*\s*)\[?\{\s*"(tool|tool_name|action|function|name)"\s*:\s*["{]',
    re.IGNORECASE,
)
_ANSWER = re.compile(r'"(action|name|tool)"\s*:\s*"final[ _]?answer"', re.IGNORECASE)
"""An answer in a framework's own form, which looks like a call."""
_DUMP = re.compile(r"^\s*\{'\w+': .{0,5000}'intermediate_steps'", re.DOTALL)
_UNPARSED = re.compile(r"\bpars(e|er|ing) error|could not (be )?parsed?\b|OutputParser", re.IGNORECASE)
_OBJECT = re.compile(r"\s*\[?\s*\{")
NO_TOOL = frozenset({"", "none", "null", "n/a", "undefined"})


def is_dump(text: str) -> bool:
    """Whether a text is the agent framework's own data, in which calls stand that may have run."""
    return _DUMP.match(text) is not None


def broken_output(scene: Scene) -> Iterator[Found]:
    for turn in scene.episode.turns:
        for call in turn.calls:
            if isinstance(call.arguments, str):
                yield turn.step, 0.95, f"The arguments of {called(call)} are no JSON object: {quoted(call.arguments)}."
            elif call.name.strip().lower() in NO_TOOL and not call.worked:
                yield turn.step, 0.9, f"It asked for a tool named {called(call)} instead of calling one or answering."
        if not turn.calls and turn.text.strip() and turn.finish_reason not in CUT:
            yield from _unread(scene, turn)
    last, reported = scene.episode.last, scene.trace.metadata.get("error")
    silent = last is not None and not last.calls and not last.text.strip() and scene.trace.outcome != "success"
    if last and silent and isinstance(reported, str) and _UNPARSED.search(reported[:LONG]):
        yield last.step, 0.93, f"The answer is empty, and the run reports {quoted(reported)}."


def _unread(scene: Scene, turn: Turn) -> Iterator[Found]:
    """A message that is meant as a call and is none."""
    text = turn.text[:LONG]
    is_object, must_call = _OBJECT.match(text), scene.context.policy.get("must_call") is True
    problem = tooling.parse_call(scene.episode.messages[turn.at]).problem if is_object or must_call else ""
    # Prose holds none of the marks by which the slow pattern finds a call.
    tries = ("{" in text or "<" in text) and _TRIES.search(text) and not _ANSWER.search(text)
    if is_dump(text):
        yield turn.step, 0.6, f"The answer is a dump of the agent framework's own data, not an answer: {quoted(text)}."
    elif is_object and problem.startswith("not valid JSON") and (scene.context.tools or tries):
        yield turn.step, 0.95, f"The answer begins as JSON and is {quoted(problem, 80)}: {quoted(text)}."
    elif tries:
        yield turn.step, 0.95, f"It wrote a call as text, and nothing ran: {quoted(text)}."
    elif must_call:
        yield turn.step, 0.9, f"A tool call was wanted, and the answer is {quoted(problem, 80)}: {quoted(text)}."
    elif scene.context.tools and scene.trace.outcome == "failed" and not scene.episode.calls:
        yield turn.step, 0.55, f"The run was reported as failed; the agent called no tool and answered {quoted(text)}."


def unknown_tool(scene: Scene) -> Iterator[Found]:
    known = scene.tools
    # An agent that goes on with a tool that works may have learnt from the answer.
    went_on = max((call.at for call in scene.episode.calls if call.worked), default=-1)
    for call in scene.once:
        if call.worked or call.name.strip().lower() in NO_TOOL:
            continue
        if call.observation and call.observation.no_such_tool:
            score = 0.97 if call.at > went_on else 0.7
            yield call.step, score, f"It called {called(call)} and was told {quoted(call.observation.text)}."
        elif known and plain_name(call.name) not in known:
            names = ", ".join(quoted(tool["name"], 40) for tool in list(scene.context.tools)[:6])
            yield call.step, 0.95, f"It called {called(call)}, which is not among its {len(known)} tools: {names}."


def schema(scene: Scene) -> Iterator[Found]:
    for call in scene.once:
        tool = find(scene, call)
        if tool is None or not isinstance(call.arguments, dict):
            continue
        try:
            problems = tooling.schema_problems(tool, call.arguments, patterns=False)
        except Exception:  # noqa: S112  # the schema came from outside; what it cannot say, it cannot prove
            continue
        # A tool that took the call cannot have minded much.
        if problems and not (call.worked and scene.trace.outcome == "success"):
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            yield (
                call.step,
                0.6 if call.worked else 0.92,
                f"The arguments of {called(call)} break its schema: {quoted(str(problems[0]), 160)}{more}.",
            )


def invented_value(scene: Scene) -> Iterator[Found]:
    for call in scene.once:
        invented = list(made_up(scene, call))
        if not invented or is_put_right(scene, call):
            continue
        for name, value, score in invented:
            nowhere = "nowhere in what it was told" + (", nor in the state" if scene.context.state else "")
            yield (
                call.step,
                score,
                f"{quoted(name, 40)} of {called(call)} is {quoted(value, 80)}, which occurs {nowhere}.",
            )


def contradicted_value(scene: Scene) -> Iterator[Found]:
    """One of a fixed choice of values that the user did not name, where the user named another one of them."""
    if scene.trace.outcome == "success":
        return
    for call in scene.once:
        tool = find(scene, call)
        if tool is None or not isinstance(call.arguments, dict):
            continue
        requests = [m.content for m in scene.episode.messages[: call.at] if m.role == "user"]
        for name, schema in tooling.properties(tool).items():
            value, choice = call.arguments.get(name), schema.get("enum")
            if not isinstance(choice, list) or value not in choice or not requests:
                continue
            if scene.was_told(str(value), call.at):
                continue
            asked = folded(requests[-1])
            named = [str(other) for other in choice if len(str(other)) > 2 and as_word(str(other)).search(asked)]
            if len(named) == 1:
                evidence = f"{quoted(name, 40)} of {called(call)} is {quoted(value, 40)}, and the user had said"
                yield call.step, 0.8, f"{evidence} {quoted(named[0], 40)}: {quoted(requests[-1])}."


def other_tool(scene: Scene) -> Iterator[Found]:
    expected, calls = scene.context.expected, scene.episode.calls
    if not expected or scene.trace.outcome == "success" or not calls:
        return
    name, last = str(expected.get("tool", "")), calls[-1]
    if all(plain_name(call.name) != plain_name(name) for call in calls) and (
        find(scene, last) or not scene.context.tools
    ):
        yield last.step, 0.95, f"It called {called(last)} where {quoted(name, 60)} was wanted."


def other_arguments(scene: Scene) -> Iterator[Found]:
    expected = scene.context.expected
    if not expected or scene.trace.outcome == "success":
        return
    wanted, name = expected.get("arguments"), str(expected.get("tool", ""))
    same = [call for call in scene.episode.calls if plain_name(call.name) == plain_name(name)]
    if same and all(call.arguments != wanted for call in same):
        call = same[-1]
        yield call.step, 0.93, f"{called(call)} was given {quoted(call.arguments)} where {quoted(wanted)} was wanted."


def unsafe(scene: Scene) -> Iterator[Found]:
    denied = {plain_name(name) for name in _strings(scene.context.policy.get("deny"))}
    known: frozenset[str] | None = None
    for call in scene.once:
        if denied and plain_name(call.name) in denied:
            yield call.step, 0.97, f"It called {called(call)}, which policy forbids, with {quoted(call.arguments)}."
            continue
        tool = find(scene, call)
        if tool is None or not tool.get("x-unsafe") or scene.trace.outcome == "success":
            continue
        if known is None:
            harmless = [each for each in scene.context.tools if not each.get("x-unsafe")]
            known = request_words.stems(" ".join(f"{each['name']} {each.get('description', '')}" for each in harmless))
        asked = _words_of_user(scene, call)
        if request_words.asks_for(asked, str(tool["name"]), str(tool.get("description", "")), known) is False:
            said = quoted(asked[-1])
            yield call.step, 0.85, f"It called {called(call)}, which is marked unsafe; the user had asked {said}."


def _strings(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | tuple) else []


def _words_of_user(scene: Scene, call: Call) -> list[str]:
    """List what the user had said by then, after what the agent had offered where the user said yes to it."""
    before = scene.episode.messages[: call.at]
    said = [message.content for message in before if message.role == "user"]
    offered = [
        offer.content
        for offer, answer in pairwise(before)
        if (offer.role, answer.role) == ("assistant", "user") and _YES.match(answer.content)
    ]
    return [*offered, *said]


_YES = re.compile(
    r"\W*(yes|yeah|yep|ok(ay)?|sure|correct|confirm\w*|go ahead|please do|do (it|that|so)|proceed)\b", re.IGNORECASE
)
