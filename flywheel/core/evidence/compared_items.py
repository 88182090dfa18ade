"""Rows of training data and held-out tasks as they are compared: what is asked, what is answered, every text beside."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flywheel.core.digests import canonical, read_json, read_json_start
from flywheel.core.envs.environment import Task
from flywheel.core.envs.replay import user_turns
from flywheel.core.envs.replay.episode_replay import beginning
from flywheel.core.envs.replay.wanted_items import STOCK
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message, ToolCall
from flywheel.core.traces.call_forms import as_native
from flywheel.core.traces.tooling import calls_of

LOOKED_AT: Final = 50
"""Places of a text where a call may begin."""


@dataclass(frozen=True, slots=True)
class Item:
    """A training row or a held-out task, as far as it is compared."""

    id: str
    """Of the task; rows of one task have one id."""
    prompt: str
    """What is asked."""
    answers: tuple[str, ...] = ()
    """What is answered, or would be right, as `answer_of` and `wanted_of` write it; empty where a target is only a
    criterion."""
    sources: frozenset[str] = frozenset()
    """Clusters and trajectories that it comes from."""
    world: str = ""
    """The state that it begins in; empty where that is not known."""
    begun: str = ""
    """All that came before the answer, of a row whose prompt is a run under way; empty for one that is a request."""
    later: str = ""
    """What a user may say in an attempt, after its beginning."""
    texts: tuple[str, ...] = ()
    """Every message of a row, whoever wrote it and on whichever side of a pair it is: system prompts and examples in
    them, answers, calls, results of tools."""


def item_of_task(task: Task, *, place: str = "", sources: Iterable[str] = ()) -> Item:
    """A task, held out or practised. `place` (the environment) goes before its id where several are compared. One that
    begins in the middle of a run is compared with all that came before, so that two moments of it are two requests."""
    return Item(
        id=f"{place}/{task.id}" if place else task.id,
        prompt=asked_in(beginning(task)) if task.state.get("messages") else task.prompt,
        answers=wanted_of(task.target),
        sources=frozenset(filter(None, [task.cluster, *sources])),
        world=canonical(task.state).decode(),
        texts=_texts(task.state.get("messages") or ()),
        later="\n".join(line["say"] for line in user_turns.lines_in(task.state)),
    )


def item_of_row(row: Mapping[str, Any], *, place: str = "", sources: Iterable[str] = ()) -> Item:
    """A row of a dataset of any kind: a demonstration, a preference pair, a task to practise."""
    if "prompt" in row and isinstance(row["prompt"], str):
        return item_of_task(Task.from_json(row), place=place, sources=sources)
    answer = row.get("completion") or row.get("chosen") or []
    whole = [*row["prompt"], *answer]  # of a demonstration in several rows, and of a task that begins in a run
    users = [message["content"] for message in row["prompt"] if message["role"] == "user"]
    return Item(
        id=f"{place}/{row['task_id']}" if place else row["task_id"],
        prompt="\n".join(users),
        answers=tuple(dict.fromkeys(filter(None, [answer_of(whole), answer_of(answer)]))),
        sources=frozenset(filter(None, [row.get("cluster", ""), *sources])),
        begun=asked_in([_message(message) for message in row["prompt"]]),
        texts=_texts([*whole, *(row.get("rejected") or ())]),
    )


def item_of_prompt(id: str, prompt: str, tools: Sequence[Mapping[str, Any]] = ()) -> Item:
    """Return what a version is told before every attempt: its system prompt with the examples in it, and its tools."""
    return Item(id, "", texts=(prompt, *(str(tool.get("description", "")) for tool in tools)))


def _texts(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every message as one text, each of its calls as one that is written."""
    read = [_message(message) for message in messages]
    return tuple("\n".join([message.content, *map(_as_text, calls_of(message))]) for message in read)


def _as_text(call: ToolCall) -> str:
    return canonical({"tool": call.name, "arguments": call.arguments}).decode()


def items_of_row(row: Mapping[str, Any], *, place: str = "", sources: Iterable[str] = ()) -> list[Item]:
    """A row with all that is asked in it: what a user says in the middle of its answers, also of those that are
    rejected, is a request of its own, with what the agent says next."""
    found = [item_of_row(row, place=place, sources=sources)]
    for name in ("completion", "chosen", "rejected"):
        said, is_asked = row.get(name) or (), False
        for at, message in enumerate(said):
            is_asked = is_asked or message["role"] == "user"
            if is_asked and message["role"] == "assistant":
                later = {**row, "prompt": [*row["prompt"], *said[:at]], "completion": [message]}
                found.append(item_of_row(later, place=place, sources=sources))
    return found


def asked_in(messages: Sequence[Message]) -> str:
    """Return a beginning as text: the users' words, and what was called and came back where a run was under way."""
    kept = [as_native(message) for message in messages if message.role != "system"]
    calls = [[[call.name, call.arguments] for call in calls_of(message)] for message in kept]
    texts = zip(kept, calls, strict=True)
    return "\n".join("\n".join(filter(None, [m.content, canonical(c).decode() if c else ""])) for m, c in texts)


def answer_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what an agent's messages do, as text: their calls, in order, else their words. Empty for nothing."""
    agent = [_message(message) for message in messages if message["role"] == "assistant"]
    calls = [[call.name, call.arguments] for message in agent for call in calls_of(message)]
    calls = calls or [each for message in agent for each in written_calls(message.content)]
    if calls:
        return canonical(calls).decode()
    return normalise("\n".join(message.content for message in agent))


def written_calls(text: str) -> list[list[Any]]:
    """Calls that stand in a text, in a fence or after other words: `{"tool" or "name", "arguments"}`."""
    found: list[list[Any]] = []
    at = text.find("{")
    for _ in range(LOOKED_AT):
        if at < 0:
            break
        try:
            value, length = read_json_start(text[at:])
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        name = value.get("tool", value.get("name")) if isinstance(value, dict) else None
        if isinstance(name, str) and isinstance(value.get("arguments"), dict):
            found.append([name, value["arguments"]])
        at = text.find("{", at + length)
    return found


def wanted_of(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a target's right answers, in the form of `answer_of`; empty where it is a criterion, as in a game."""
    if "wanted" in target:
        return _wanted_items(target["wanted"], target.get("solution") or ())
    if "calls" in target:
        return (canonical([[call["tool"], call["arguments"]] for call in target["calls"]]).decode(),)
    if "tool" in target:
        return (canonical([[target["tool"], target.get("arguments", {})]]).decode(),)
    texts = [target[name] for name in ("answer", "text", "value") if name in target]
    return tuple(normalise(text if isinstance(text, str) else canonical(text).decode()) for text in texts)


def _wanted_items(items: Sequence[Mapping[str, Any]], solution: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what a faultless answer does: its calls, or else its words; a state alone has none."""
    wanted = solution or [call for item in items for call in item.get("calls", ())]
    if calls := [[call["tool"], call["arguments"]] for call in wanted]:
        return (canonical(calls).decode(),)
    said = [item for item in items if item["type"] not in ("avoid", "state")] or [
        item for item in items[:1] if item["type"] == "avoid"
    ]
    if not said:
        return ()
    return (normalise("\n".join(item.get("text") or STOCK[item["type"]] for item in said)),)


def _message(row: Mapping[str, Any]) -> Message:
    """A message of a row, whose calls are in the form of the OpenAI API or in our own."""
    rows = [call.get("function", call) for call in row.get("tool_calls") or []]
    calls = tuple(ToolCall("", call["name"], _arguments(call.get("arguments", {}))) for call in rows)
    return Message(row["role"], row.get("content") or "", calls)


def _arguments(value: Any) -> Any:
    """Arguments as an object also where they came as JSON."""
    try:
        parsed = read_json(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return value
    return parsed if isinstance(parsed, dict) else value
