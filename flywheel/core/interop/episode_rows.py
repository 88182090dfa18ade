"""Tasks of kind `episode` out of other people's rows: questions with answers in words, conversations to go on from,
rows that want calls, and tasks that were exported here.

The request is a text or chat messages; a system prompt in them is left out, for the version under test brings its own.
What is right is a text, several of which any will do, or calls to tools of the environment.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flywheel.core.envs import Task
from flywheel.core.envs.replay import user_turns, wanted_items
from flywheel.core.envs.replay.episode_replay import beginning, explain_cut
from flywheel.core.interop import foreign_tasks
from flywheel.core.interop.foreign_tasks import (
    CannotTake,
    about_row,
    described,
    is_held_out,
    outside_names,
    wanted_calls,
)
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.openai_messages import arguments, text
from flywheel.core.verifiers import VerifierError
from flywheel.core.verifiers.attempt_numbers import number_of
from flywheel.core.verifiers.attempt_places import NotThere

Items = list[dict[str, Any]]
"""A target's `wanted`."""
REQUESTS = ("prompt", "question", "query", "problem", "messages", "input", "instruction")
ANSWERS = (
    "expected_calls", "answer", "ideal", "ground_truth", "target", "expected_output", "reference_answer", "solution",
    "output", "response", "completion",
)  # fmt: skip
CHOICES = ("choices", "options")
_ATTEMPTED = {"reward", "score", "metrics"}
"""Fields of rows whose completion is somebody's attempt, which nobody calls right."""
_FINAL = "####"
"""GSM8K's last line begins with it, after the way to it."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant"}
_ROLES |= {"gpt": "assistant", "tool": "tool", "function": "tool"}


def source_of(row: Mapping[str, Any]) -> str:
    """Whose row it seems to be, in words."""
    source = foreign_tasks.source_of(row)
    if not source.startswith("verifiers ") or row.keys() & {*_ATTEMPTED, "traces", "info"}:
        return source
    return "conversations" if "messages" in row else "questions"


def task_of(row: Any, tools: Sequence[Mapping[str, Any]], match: str = "words") -> Task:
    """The task that a row tells of, texts compared by `match`, one of `wanted_items.MATCHES`. Raises CannotTake."""
    if not isinstance(row, dict):
        raise CannotTake("it is not a JSON object")
    if isinstance(row.get("traces"), list):
        raise CannotTake("it is an attempt and no task; import it as a trajectory", field="traces")
    about = about_row(row) | {name: row[name] for name in (*ANSWERS, *_ATTEMPTED) if row.get(name) is not None}
    if is_held_out(split := about.get("split")):
        raise CannotTake(
            f"it is of the split {split} where it comes from, and here it might be trained on", field="split"
        )
    name = str(row.get("id", row.get("example_id", "")))[:100]
    if isinstance(row.get("target"), dict) and "wanted" in row["target"]:
        return described(_exported(row, name, tools), about)
    field, begun = _request(row, tools)
    answer = begun.pop() if begun and begun[-1].role == "assistant" else None
    wanted = _right_items(about, tools, match)
    if wanted is None and answer is not None:
        wanted = _items_of(field, answer, tools, match)
    elif answer is not None:
        raise CannotTake("it ends with the agent's own message, and the last one is to be answered", field=field)
    if wanted is None:
        raise CannotTake(f"it says nowhere what is right ({', '.join(ANSWERS)})")
    requests = [message.content for message in begun if message.role == "user" and message.content.strip()]
    if not requests:
        raise CannotTake("it has no request of a user", field=field)
    if problem := explain_cut(begun):
        raise CannotTake(problem, field=field)
    state = {"messages": [message.to_json() for message in begun], "replies": []} if len(begun) > 1 else {}
    return described(Task(name, requests[-1], {"wanted": wanted}, state), about)


def _exported(row: Mapping[str, Any], name: str, tools: Sequence[Mapping[str, Any]]) -> Task:
    """A task as an export writes it, just as it was."""
    prompt, state, target = row.get("prompt"), row.get("state", {}), row["target"]
    if not isinstance(prompt, str) or not prompt.strip():
        raise CannotTake("expected a text", field="prompt")
    if not isinstance(state, dict):
        raise CannotTake("expected an object", field="state")
    try:
        items = wanted_items.check(target)
    except VerifierError as error:
        where, _, problem = str(error).partition(": ")
        raise CannotTake(problem, field=f"target.{where}") from None
    known = {tool["name"] for tool in tools}
    if odd := next((call["tool"] for call in wanted_items.wanted_calls(items) if call["tool"] not in known), None):
        raise CannotTake(f"this environment has no tool {odd[:100]!r}", field="target.wanted")
    task = Task(name, prompt, target, state)
    try:
        begun = beginning(task)
        if not all(isinstance(each, str) for message in begun for each in _texts_of(message)):
            raise TypeError
        problem = explain_cut(begun)
        replies = [(each["tool"], each["arguments"], each["result"]) for each in state.get("replies") or ()]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise CannotTake("the recorded messages or replies are not as an export writes them", field="state") from None
    if problem:
        raise CannotTake(problem, field="state.messages")
    try:
        user_turns.check_turns(state.get("turns", []))
        user_turns.check_script(state.get("script", []))
    except VerifierError as error:
        where, _, problem = str(error).partition(": ")
        raise CannotTake(problem, field=f"state.{where}") from None
    if not all(isinstance(tool, str) and isinstance(given, dict) for tool, given, _ in replies):
        raise CannotTake("a reply names its tool and its arguments", field="state.replies")
    return task


def _texts_of(message: Message) -> Iterator[Any]:
    yield from (message.role, message.content, message.tool_call_id, message.name, message.reasoning)
    for call in message.tool_calls:
        yield from (call.id, call.name)


def _request(row: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[str, list[Message]]:
    """The field of the request and its messages without a system prompt."""
    params = row.get("responses_create_params")
    if isinstance(params, dict):
        field, given = "responses_create_params.input", params.get("input")
    else:
        field = next((name for name in REQUESTS if row.get(name)), "prompt")
        given = row.get(field)
    if field == "input" and isinstance(row.get("instruction"), str) and isinstance(given, str):
        given = f"{row['instruction']}\n\n{given}"
    for name in CHOICES:
        if isinstance(row.get(name), list) and isinstance(given, str):
            raise CannotTake(
                "write the choices into the request, and the right one in words into the answer", field=name
            )
    if given is None or isinstance(given, str):
        given = [{"role": "user", "content": given}] if given and given.strip() else []
    if not isinstance(given, list):
        raise CannotTake("expected a text or a list of messages", field=field)
    ours = outside_names(tools)
    messages = [_message(f"{field}.{place}", each, ours) for place, each in enumerate(given)]
    return field, [message for message in messages if message.role != "system"]


def _message(field: str, row: Any, ours: Mapping[str, str]) -> Message:
    role = _ROLES.get(str(row.get("role", row.get("from", "")))) if isinstance(row, dict) else None
    if role is None:
        raise CannotTake("expected a message with a role, such as user", field=field)
    content, called = row.get("content", row.get("value")), row.get("tool_calls") or []
    if not isinstance(content, str | list | None):
        raise CannotTake("expected a text or a list of parts", field=f"{field}.content")
    if not isinstance(called, list):
        raise CannotTake("expected a list of calls", field=f"{field}.tool_calls")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise CannotTake("it has a part that is no text", field=f"{field}.content")
    calls = [_call(f"{field}.tool_calls.{at}", each, ours) for at, each in enumerate(called)]
    name = str(row.get("name") or "") if role == "tool" else ""
    answers = str(row.get("tool_call_id") or "")
    return Message(role, text(content), tuple(calls), answers, ours.get(name, name))  # type: ignore[arg-type]


def _call(field: str, row: Any, ours: Mapping[str, str]) -> ToolCall:
    inner = row.get("function", row) if isinstance(row, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise CannotTake("a call has no name", field=field)
    return ToolCall(
        str(row.get("id") or ""), ours.get(inner["name"], inner["name"]), arguments(inner.get("arguments", {}))
    )


def _items_of(field: str, message: Message, tools: Sequence[Mapping[str, Any]], match: str) -> Items | None:
    """Take the last message of a conversation as what is right; None where it says and calls nothing."""
    if message.tool_calls:
        rows = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        return _right_items({"answer": rows}, tools, match)
    return _words(field, message.content, match) if message.content.strip() else None


def _right_items(about: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], match: str) -> Items | None:
    """Read what is right from the first field that says it; None where none does."""
    is_attempt = about.keys() & _ATTEMPTED
    for field in ANSWERS:
        given = about.get(field)
        if given is None or given in ("", {}) or (given == [] and field != "expected_calls"):
            continue
        if field == "completion" and is_attempt:
            continue
        if field == "completion" and isinstance(given, list):
            ours = outside_names(tools)
            messages = [_message(f"{field}.{place}", each, ours) for place, each in enumerate(given)]
            return _items_of(field, messages[-1], tools, match)
        if given == []:
            return [{"type": "avoid", "tools": []}]
        if _is_calls(given) or field == "expected_calls":
            calls = wanted_calls(field, given, outside_names(tools))
            return [{"type": "calls", "calls": calls, "order": "given"}]
        return _words(field, given, match)
    return None


def _is_calls(given: Any) -> bool:
    if isinstance(given, str) and given.lstrip()[:1] in ("[", "{"):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return False
    if isinstance(given, dict):
        given = given["calls"] if isinstance(given.get("calls"), list) else [given]
    return isinstance(given, list) and bool(given) and all(map(_is_call, given))


def _is_call(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    inner = row["function"] if isinstance(row.get("function"), dict) else row
    return "arguments" in inner and any(name in inner for name in ("name", "tool", "function_name", "function"))


def _words(field: str, given: Any, match: str) -> Items:
    """The item of a text, or of several of which any is right."""
    rows = given if isinstance(given, list) and all(isinstance(each, str) for each in given) else [given]
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in rows]
    texts = list(dict.fromkeys(each.strip() for each in texts if each.strip()))
    if not texts:
        raise CannotTake("is empty; expected a text", field=field)
    last = texts[0].rpartition("\n")[2]
    if len(texts) == 1 and last.startswith(_FINAL) and (final := last.removeprefix(_FINAL).strip()):
        texts, match = [final], "number" if _has_number(final) else match
    if match == "number" and (odd := next((each for each in texts if not _has_number(each)), None)):
        raise CannotTake(f"there is no number in {odd[:60]!r}", field=field)
    item: dict[str, Any] = {"type": "words", "text": texts[0]}
    item |= {"or": texts[1:]} if texts[1:] else {}
    return [item | ({"match": match} if match != "words" else {})]


def _has_number(words: str) -> bool:
    try:
        number_of(words)
    except NotThere:
        return False
    return True
