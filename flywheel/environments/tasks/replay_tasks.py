"""The content of tasks of kind `episode`: the recorded beginning, what was recorded after it, and what is wanted.

A failure becomes one whatever step was marked and whatever form its correction has; what is missing where it cannot is
said (`Refused`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flywheel.core.envs.replay.episode_replay import answered, explain_cut
from flywheel.core.envs.replay.user_turns import recorded_turns
from flywheel.core.envs.replay.wanted_items import is_exact_call
from flywheel.core.text.normal_form import normalise
from flywheel.core.traces import Message, Trace, tooling
from flywheel.edge.refusals import Refused
from flywheel.failures.models import Failure


@dataclass(frozen=True, slots=True)
class Content:
    """The request of a task, where it begins and what is right."""

    prompt: str
    state: dict[str, Any]
    target: dict[str, Any]


def content_of(
    trace: Trace, failure: Failure, before: Sequence[Message], answer: Message | None, world: Mapping[str, Any]
) -> Content:
    """The task of a decision about a recorded run: `before` the step that counts, and the agent's `answer` there.

    Raises Refused.
    """
    wanted = wanted_in(failure, answer)
    begun = [replace(message, reasoning="") for message in before if message.role != "system"]
    asked = requests_in(begun)
    if problem := explain_cut(begun):
        raise Refused(problem)
    whole = [message for message in trace.conversation() if message.role != "system"]
    later = answered(whole)[len(answered(begun)) :]
    state: dict[str, Any] = {
        "messages": [message.to_json() for message in begun],
        "replies": [{"tool": name, "arguments": arguments, "result": result} for name, arguments, result in later],
    }
    if turns := recorded_turns(begun, whole[len(begun) :], wanted, is_failure=failure.is_failure):
        state["turns"] = turns
    return Content(asked[-1], state | ({"world": dict(world)} if world else {}), {"wanted": wanted})


def requests_in(before: Sequence[Message]) -> list[str]:
    """Return what the user asked before the step that counts. Raises Refused where that is nothing."""
    asked = [message.content for message in before if message.role == "user" and message.content.strip()]
    if not asked:
        raise Refused("this trajectory has no request by a user before the marked step to make a task of")
    return asked


def items_of(corrected: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items that a correction wants, in the words of the kind. Raises Refused for one of no known form."""
    if "tool" in corrected:
        return [_calls([{"tool": corrected["tool"], "arguments": corrected.get("arguments", {})}])]
    if corrected.get("calls"):
        return [_calls(corrected["calls"], corrected.get("order", "given"))]
    text = str(corrected.get("text", ""))
    words = [{"type": "words", "text": text}] if text.strip() else []
    if "avoid" in corrected:
        return [{"type": "avoid", "tools": list(corrected["avoid"])}, *words]
    if "refuse" in corrected:
        return [{"type": "refusal", "text": str(corrected["refuse"])}]
    if "ask" in corrected:
        return [{"type": "question", "text": str(corrected["ask"])}]
    if not words:
        raise Refused("the corrected action names no call and no words: write the corrected action (key c) first")
    return words


def _calls(calls: Sequence[Mapping[str, Any]], order: str = "given") -> dict[str, Any]:
    kept = [{"tool": call["tool"], "arguments": call.get("arguments", {})} for call in calls]
    return {"type": "calls", "calls": kept, "order": order}


def wanted_in(failure: Failure, answer: Message | None) -> list[dict[str, Any]]:
    """The items that a decision wants of the step that counts. Raises Refused."""
    if not failure.is_failure:
        return _guarded(answer)
    assert failure.corrected, "content_from looks"
    if answer is None and not failure.step:
        raise Refused("no step is marked and the agent said nothing: mark the step where it should have acted")
    wanted = items_of(failure.corrected)
    if answer is not None and _is_recorded(wanted, answer):
        raise Refused("the correction equals what the agent did at the marked step")
    return wanted


def _guarded(answer: Message | None) -> list[dict[str, Any]]:
    """The items of what a passing run did at the step that counts, for it to stay so."""
    calls = tooling.calls_of(answer) if answer else ()
    if answer is None or not (calls or answer.content.strip()):
        raise Refused("the passing run says and calls nothing at this step, so there is nothing to guard")
    if broken := next((call for call in calls if isinstance(call.arguments, str)), None):
        raise Refused(f"the passing call of {broken.name[:100]} has arguments that are not a JSON object")
    if calls:  # those of one message stand side by side
        return [_calls([{"tool": call.name, "arguments": call.arguments} for call in calls], "any")]
    return [{"type": "words", "text": answer.content}]


def _is_recorded(wanted: Sequence[Mapping[str, Any]], answer: Message) -> bool:
    """Whether the agent did just this."""
    made, (item, *others) = tooling.calls_of(answer), wanted
    if others:
        return False
    if item["type"] == "words":
        return not made and normalise(answer.content) == normalise(item["text"])
    if item["type"] != "calls" or len(made) != len(item["calls"]):
        return False
    return all(is_exact_call(call, one) for call, one in zip(made, item["calls"], strict=True))
